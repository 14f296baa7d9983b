"""The error for faults in a config, data set or option, and a helper for its messages."""

from collections.abc import Iterable

from vitdense.errors import OptionError

NAMES_SHOWN = 10


class ConfigError(OptionError):
    """An error in a config, data set or option; the message says what was expected and how to fix it."""


def join_some(items: Iterable[object]) -> str:
    """The first items, and how many more there are."""
    names = [str(item) for item in items]
    more = f", ... {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
