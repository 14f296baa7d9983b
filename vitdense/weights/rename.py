"""Renaming state dicts by tables: every key matches exactly one rule, or it is an error."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


class CheckpointMismatchError(ValueError):
    """A checkpoint that is not, key by key, what was asked for."""


@dataclass(frozen=True)
class Rule:
    """Keys of one form and what becomes of them.

    Attributes:
        source: Pattern of a key: ``#`` stands for one index, ``*`` at the end for any tail.
        target: New key with the same wildcards in the same order, or None to drop the key on purpose.
        change: Applied to the tensor.
    """

    source: str
    target: str | None
    change: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def pattern(self) -> re.Pattern:
        return re.compile(re.escape(self.source).replace(r"\#", r"(\d+)").replace(r"\*", "(.+)"))

    def apply(self, key: str) -> str:
        """The new key of one that matches and is not dropped."""
        groups = iter(self.pattern.fullmatch(key).groups())
        return re.sub(r"[#*]", lambda _: next(groups), self.target)


def find_rule(key: str, rules: Sequence[Rule]) -> Rule | None:
    """The one rule that matches `key`, or None. Two that match are a fault of the table."""
    found = [rule for rule in rules if rule.pattern.fullmatch(key)]
    assert len(found) <= 1, f"{key} matches {[rule.source for rule in found]}"
    return found[0] if found else None


def rename(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> tuple[dict[str, Tensor], list[str]]:
    """Apply a rename table.

    Args:
        state: Tensors by their old names. Not changed.
        rules: The table.

    Returns:
        Tensors by their new names, and the old names that were dropped on purpose.

    Raises:
        CheckpointMismatchError: Keys that no rule knows, all listed.
    """
    table = {key: find_rule(key, rules) for key in state}
    unknown = [key for key, rule in table.items() if rule is None]
    if unknown:
        raise CheckpointMismatchError(f"{len(unknown)} keys that no rename rule knows: {', '.join(unknown)}")
    renamed, dropped = {}, []
    for key, rule in table.items():
        if rule.target is None:
            dropped.append(key)
            continue
        new = rule.apply(key)
        if new in renamed:
            raise CheckpointMismatchError(f"two keys of the checkpoint both mean {new}; the second is {key}")
        renamed[new] = rule.change(state[key]) if rule.change else state[key]
    return renamed, dropped
