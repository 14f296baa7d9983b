"""Errors about checkpoints."""


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint at the path or address."""


class CheckpointMismatchError(ValueError):
    """The checkpoint does not fit exactly, cannot be read, or is not the file that was asked for."""
