"""Errors about checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager

from vitdense.errors import OptionError


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint at the path or address."""


class CheckpointMismatchError(OptionError):
    """The checkpoint does not fit exactly, cannot be read, or is not the file that was asked for."""


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Name the option for another file in the error for weights that cannot be found."""
    try:
        yield
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(f"{error}; the option for it is {option}") from error
