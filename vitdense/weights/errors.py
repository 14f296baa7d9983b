"""What can be wrong with a checkpoint."""


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint where one was looked for."""


class CheckpointMismatchError(ValueError):
    """A checkpoint that is not, key by key, what was asked for."""
