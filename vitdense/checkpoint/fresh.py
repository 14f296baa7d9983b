"""The pattern of parameters that a model for other classes does not take from a checkpoint."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator

LONGEST = 200  # characters; a longer pattern is no help


def fresh_pattern(keys: Collection[str], others: Collection[str]) -> str | None:
    """A short regular expression that fully matches `keys` and none of `others`.

    Args:
        keys: Names of parameters, such as ``roi_head.bbox_head.0.fc_cls.weight``.
        others: Names of all other parameters.

    Returns:
        The shortest of a few forms, such as ``roi_head\\..*(fc_cls|fc_reg)\\..*``; None if it is long.
    """

    def is_exact(pattern: str) -> bool:
        fits = re.compile(pattern).fullmatch
        return all(map(fits, keys)) and not any(map(fits, others))

    exact = [pattern for pattern in _candidates(keys) if len(pattern) <= LONGEST and is_exact(pattern)]
    return min(exact, key=len, default=None)


def _candidates(keys: Collection[str]) -> Iterator[str]:
    yield _either(map(re.escape, keys))
    for number in (r"\d+", None):  # of a module in a list: any, or as it is
        modules = [
            [number if number and part.isdecimal() else re.escape(part) for part in key.split(".")[:-1]] for key in keys
        ]
        for depth in range(1, max(map(len, modules)) + 1):
            yield _either(r"\.".join(module[:depth]) for module in modules) + r"\..*"
        shared = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*modules))]
        leaves = [next((part for part in module[::-1] if part[0].isalpha()), "") for module in modules]
        yield "".join(rf"{part}\." for part in shared) + ".*" + _either(leaves) + r"\..*"


def _either(patterns: Iterable[str]) -> str:
    alternatives = sorted(set(patterns))
    return alternatives[0] if len(alternatives) == 1 else f"({'|'.join(alternatives)})"
