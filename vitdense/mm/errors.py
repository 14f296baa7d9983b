"""The error of everything that a user can fix in a config, data set or option, and lists in its messages."""

import re
from collections.abc import Iterable

from vitdense.errors import OptionError

NAMES_SHOWN = 10
ENDS = {"ies": "y", "xes": "x", "sses": "ss", "s": ""}  # of several things -> of one
VERBS = {"have": "has", "are": "is", "do": "does", "reach": "reaches"}


class ConfigError(OptionError):
    """An error in a config, data set or option; the message says what was expected and how to fix it."""


def join_some(items: Iterable[object]) -> str:
    """The first items, and how many more there are."""
    names = [str(item) for item in items]
    more = f", ... {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def count(number: int, words: str) -> str:
    """So many things, and what they are or have: of "masks have no pixel" as well "1 mask has no pixel"."""
    if number == 1:
        words = re.sub(r"(\w+?)(ies|xes|sses|s)\b", lambda match: match[1] + ENDS[match[2]], words, count=1)
        words = re.sub(rf"\b({'|'.join(VERBS)})\b", lambda match: VERBS[match[1]], words, count=1)
    return f"{number} {words}"
