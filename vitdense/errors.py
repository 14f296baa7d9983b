"""The base of this package's errors."""

import re
from collections.abc import Iterable

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but the end of a line


class OptionError(ValueError):
    """An argument, an option or a file does not fit. The message says what, got, expected and how to fix it.

    Names in a message may come from untrusted files: control characters are printed as escapes.
    """

    def __str__(self) -> str:
        return CONTROL.sub(lambda match: ascii(match[0])[1:-1], super().__str__())


def check_choice(name: str, got: object, known: Iterable) -> None:
    """Raise an `OptionError` unless an option has one of the known values."""
    if got not in (values := list(known)):
        raise OptionError(f"{name}: got {got!r}, expected one of {', '.join(map(repr, values))}")
