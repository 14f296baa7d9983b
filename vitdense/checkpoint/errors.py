"""Errors about checkpoints."""

from vitdense.errors import OptionError


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint at the path or address."""


class CheckpointMismatchError(OptionError):
    """The checkpoint does not fit exactly, cannot be read, or is not the file that was asked for."""
