"""Renaming state dicts by tables that read both ways: every key matches exactly one rule, or it is an error."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError


@dataclass(frozen=True)
class Change:
    """What a rule does to its tensors, and the exact inverse.

    A side of several names has several tensors: they are passed as several arguments, returned as a tuple. Where the
    last of them are optional and absent, there are fewer.
    """

    forward: Callable
    inverse: Callable


@dataclass(frozen=True, eq=False)  # equal when the same: tables of rules are keys of caches
class Rule:
    """Keys of one form under two naming schemes.

    A pattern holds indices, ``{i}`` or ``{2i+1}``, and may end in ``*`` for any tail; the other side has the same
    letters. A side may be a tuple of patterns where one scheme splits what the other joins.

    Attributes:
        theirs: Pattern or patterns of the scheme.
        ours: Pattern or patterns of this project.
        change: What becomes of the tensors; None leaves them as they are.
        optional: Those of several patterns of a side that may be absent; they stand last.
        written: Whether files of the scheme are to hold such keys; if not, some do, and they are read.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    change: Change | None = None
    optional: tuple[str, ...] = ()
    written: bool = True

    @cached_property
    def sources(self) -> tuple["Pattern", ...]:
        return tuple(Pattern(text) for text in _as_tuple(self.theirs))

    @cached_property
    def targets(self) -> tuple["Pattern", ...]:
        return tuple(Pattern(text) for text in _as_tuple(self.ours))

    def reversed(self) -> "Rule":
        """The rule from our names to theirs."""
        change = Change(self.change.inverse, self.change.forward) if self.change else None
        return Rule(self.ours, self.theirs, change, self.optional)

    def apply(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The changed tensors, one per target."""
        return _as_tuple(self.change.forward(*tensors)) if self.change else tensors


@dataclass(frozen=True)
class Layout:
    """What patterns cannot tell of a scheme's names, only all keys and shapes together: in which stage a block stands.

    Attributes:
        forward: From a state dict as the rules leave it to our name of each of its keys.
        inverse: From a state dict by our names to the name of each of its keys that the reversed rules know.
    """

    forward: Callable[[Mapping[str, Tensor]], dict[str, str]]
    inverse: Callable[[Mapping[str, Tensor]], dict[str, str]]


def _as_tuple(x: object) -> tuple:
    return x if isinstance(x, tuple) else (x,)


NUMBER = re.compile(r"\d+")


class Pattern:
    """One form of keys, such as ``features.{2i+1}.{j}.norm1.*``."""

    INDEX = re.compile(r"\{(\d*)([a-z])(?:\+(\d+))?\}")

    def __init__(self, text: str) -> None:
        self.text = text
        self.indices = [(name, int(a or 1), int(b or 0)) for a, name, b in self.INDEX.findall(text)]
        literals = self.INDEX.split(text)[::4]  # what stands between the indices
        literals = [re.escape(part).replace(r"\*", "(.+)") for part in literals]
        self.regex = re.compile(r"(0|[1-9]\d*)".join(literals))
        self.regex_of_form = re.compile("0".join(NUMBER.sub("0", part) for part in literals))

    def match(self, key: str) -> tuple[tuple[str, int | str], ...] | None:
        """Values of the indices and of the tail by name, sorted, if `key` has this form."""
        found = self.regex.fullmatch(key)
        if found is None:
            return None
        tail = found.groups()[len(self.indices) :]
        values: dict[str, int | str] = {"*": tail[0]} if tail else {}
        for (name, factor, offset), number in zip(self.indices, found.groups()):
            value, remainder = divmod(int(number) - offset, factor)
            if remainder or value < 0:
                return None
            values[name] = value
        return tuple(sorted(values.items()))

    def fill(self, values: Iterable[tuple[str, int | str]]) -> str:
        """The key of this form with these values."""
        values = dict(values)
        text = self.INDEX.sub(lambda m: str(int(m[1] or 1) * values[m[2]] + int(m[3] or 0)), self.text)
        return text.replace("*", str(values.get("*", "")))


@cache
def _candidates(form: str, rules: tuple[Rule, ...]) -> list[tuple[Rule, int]]:
    """Rules, and which of their names, that a key may match whose numbers are all 0 in `form`: hundreds of keys have a
    few dozen forms."""
    return [
        (rule, part)
        for rule in rules
        for part, pattern in enumerate(rule.sources)
        if pattern.regex_of_form.fullmatch(form)
    ]


def find_rule(key: str, rules: tuple[Rule, ...]) -> tuple[Rule, int, tuple] | None:
    """The one rule that knows `key`, which of its names it is, and the values in it; None if no rule does."""
    found = [
        (rule, part, values)
        for rule, part in _candidates(NUMBER.sub("0", key), rules)
        if (values := rule.sources[part].match(key)) is not None
    ]
    assert len(found) <= 1, f"{key} matches {[rule.theirs for rule, _, _ in found]}"  # a fault of the table
    return found[0] if found else None


@cache
def reverse(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same table from our names to theirs, of what is written."""
    return tuple(rule.reversed() for rule in rules if rule.written)


def rename(state: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> dict[str, Tensor]:
    """Apply a rename table.

    Args:
        state: Tensors by their old names. Not changed.
        rules: The table.

    Returns:
        Tensors by their new names. Those that no rule changes are the same tensors, not copies.

    Raises:
        CheckpointMismatchError: Keys that no rule knows, all listed; part of a tensor that stands under several
            names; two keys of one meaning.
    """
    groups: dict[tuple, dict[int, str]] = {}  # by rule and values: the keys of its parts
    unknown = []
    for key in state:
        found = find_rule(key, rules)
        if found is None:
            unknown.append(key)
            continue
        rule, part, values = found
        groups.setdefault((rule, values), {})[part] = key
    if unknown:
        raise CheckpointMismatchError(f"{len(unknown)} keys that no rename rule knows: {', '.join(unknown)}")
    renamed: dict[str, Tensor] = {}
    for (rule, values), keys in groups.items():
        # Optional ones may be absent from the end only: by their order they are told from each other.
        absent = [
            pattern.fill(values)
            for part, pattern in enumerate(rule.sources)
            if part not in keys and (pattern.text not in rule.optional or part < max(keys))
        ]
        if absent:
            raise CheckpointMismatchError(f"{', '.join(keys.values())} also needs {', '.join(absent)}")
        tensors = rule.apply(*(state[keys[part]] for part in sorted(keys)))
        if len(tensors) > len(rule.targets):
            names = ", ".join(pattern.fill(values) for pattern in rule.targets)
            raise CheckpointMismatchError(
                f"{', '.join(keys.values())} holds {len(tensors)} parts, expected at most {len(rule.targets)}: {names}"
            )
        assert len(rule.targets) - len(tensors) <= len(rule.optional), f"{rule.theirs} gave {len(tensors)} tensors"
        for pattern, tensor in zip(rule.targets, tensors):
            new = pattern.fill(values)
            if new in renamed:
                raise CheckpointMismatchError(f"two keys of the checkpoint both mean {new}; one is {keys[0]}")
            renamed[new] = tensor
    return renamed


def relabel(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The same tensors under the names of a `Layout`.

    Raises:
        CheckpointMismatchError: Two keys get one name.
    """
    relabelled: dict[str, Tensor] = {}
    for key, value in state.items():
        if names[key] in relabelled:
            raise CheckpointMismatchError(f"two keys of the checkpoint both mean {names[key]}; one is {key}")
        relabelled[names[key]] = value
    return relabelled
