"""Naming schemes as rename tables for both directions: every key matches exactly one rule, or it is an error."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError


@dataclass(frozen=True)
class Transform:
    """A function on the tensors of a rule, and its exact inverse.

    Several tensors are passed as several arguments and returned as a tuple. Optional ones may be absent at the end.
    """

    forward: Callable
    inverse: Callable


@dataclass(frozen=True, eq=False)  # equal only if identical: tables of rules are keys of caches
class Rule:
    """Keys of one form in two naming schemes.

    A pattern has indices, ``{i}`` or ``{2i+1}``, and may end in ``*`` for any tail. Both sides use the same letters. A
    side may be a tuple of patterns if one scheme splits a tensor that the other keeps joined.
    """

    theirs: str | tuple[str, ...]  # pattern or patterns of the scheme
    ours: str | tuple[str, ...]  # pattern or patterns of this project
    transform: Transform | None = None  # what happens to the tensors; None leaves them as they are
    optional: tuple[str, ...] = ()  # patterns of a tuple that may be absent; they come last in it
    read_only: bool = False  # legacy key: accepted when reading, never written

    @cached_property
    def sources(self) -> tuple["Pattern", ...]:
        return tuple(Pattern(text) for text in _as_tuple(self.theirs))

    @cached_property
    def targets(self) -> tuple["Pattern", ...]:
        return tuple(Pattern(text) for text in _as_tuple(self.ours))

    def reversed(self) -> "Rule":
        """The rule from our names to theirs."""
        transform = Transform(self.transform.inverse, self.transform.forward) if self.transform else None
        return Rule(self.ours, self.theirs, transform, self.optional)


@dataclass(frozen=True)
class Layout:
    """The part of renaming that needs all keys and shapes, for example for the stage of a block."""

    forward: Callable[[Mapping[str, Tensor]], dict[str, str]]  # state dict after the rules: its key -> our name
    inverse: Callable[[Mapping[str, Tensor]], dict[str, str]]  # our state dict: our key -> key for the reversed rules


def _as_tuple(x: object) -> tuple:
    return x if isinstance(x, tuple) else (x,)


class Pattern:
    """One form of keys, such as ``features.{2i+1}.{j}.norm1.*``."""

    INDEX = re.compile(r"\{(\d*)([a-z])(?:\+(\d+))?\}")

    def __init__(self, text: str) -> None:
        self.text = text
        self.indices = [(name, int(a or 1), int(b or 0)) for a, name, b in self.INDEX.findall(text)]
        literals = self.INDEX.split(text)[::4]  # the text between the indices
        self.longest = max(re.split(r"\*", "*".join(literals)), key=len)  # a text that every key of this form has
        self.literals = literals

    @cached_property
    def regex(self) -> re.Pattern:
        literals = [re.escape(part).replace(r"\*", "(.+)") for part in self.literals]
        return re.compile(r"(0|[1-9]\d*)".join(literals))

    def match(self, key: str) -> tuple[tuple[str, int | str], ...] | None:
        """Values of the indices and of the tail by name, sorted, if `key` has this form."""
        found = self.regex.fullmatch(key) if self.longest in key else None
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
def find_rule(key: str, rules: tuple[Rule, ...]) -> tuple[Rule, int, tuple] | None:
    """The one rule that knows `key`, the number of its pattern, and the values of the indices; None if no rule does."""
    found = [
        (rule, part, values)
        for rule in rules
        for part, pattern in enumerate(rule.sources)
        if (values := pattern.match(key)) is not None
    ]
    assert len(found) <= 1, f"{key} matches {[rule.theirs for rule, _, _ in found]}"  # an error in the table
    return found[0] if found else None


@cache
def reverse(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same table from our names to theirs, without the read-only rules."""
    return tuple(rule.reversed() for rule in rules if not rule.read_only)


def _transformed(transform: Transform, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The tensors of a rule after its transform.

    Errors of the transform, from an unexpected shape or dtype, get the names of the tensors.
    """
    found = ", ".join(f"{key} {list(x.shape)}, {x.dtype}" for key, x in tensors.items())
    if len({x.is_floating_point() for x in tensors.values()}) > 1:  # torch would join them as real numbers
        raise CheckpointMismatchError(f"{found}: expected one kind of numbers, as they belong together")
    try:
        return _as_tuple(transform.forward(*tensors.values()))
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        raise CheckpointMismatchError(f"{found} is not what the naming scheme expects there: {error}") from error


def rename(state: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> dict[str, Tensor]:
    """A state dict with the new names of a rename table. Tensors without a transform are the same objects, not copies.

    Raises:
        CheckpointMismatchError: No rule knows a key (all are listed), a part of a split tensor is missing, or two keys
            get the same name.
    """
    if unknown := [key for key in state if find_rule(key, rules) is None]:
        raise CheckpointMismatchError(f"{len(unknown)} keys that no rename rule knows: {', '.join(unknown)}")
    groups: dict[tuple, dict[int, str]] = {}  # (rule, values) -> keys of its parts
    for key in state:
        rule, part, values = find_rule(key, rules)
        groups.setdefault((rule, values), {})[part] = key
    renamed: dict[str, Tensor] = {}
    for (rule, values), keys in groups.items():
        # Only the last parts may be absent: arguments of a transform are positional.
        absent = [
            pattern.fill(values)
            for part, pattern in enumerate(rule.sources)
            if part not in keys and (pattern.text not in rule.optional or part < max(keys))
        ]
        if absent:
            raise CheckpointMismatchError(f"{', '.join(keys.values())} also needs {', '.join(absent)}")
        tensors = {keys[part]: state[keys[part]] for part in sorted(keys)}
        tensors = _transformed(rule.transform, tensors) if rule.transform else tuple(tensors.values())
        if len(tensors) > len(rule.targets):
            raise CheckpointMismatchError(
                f"{', '.join(keys.values())} holds {len(tensors)} parts, expected at most {len(rule.targets)}"
            )
        assert len(rule.targets) - len(tensors) <= len(rule.optional), f"{rule.theirs} gave {len(tensors)} tensors"
        for pattern, tensor in zip(rule.targets, tensors):
            new = pattern.fill(values)
            if new in renamed:
                raise CheckpointMismatchError(f"two keys are both renamed to {new}; one is {', '.join(keys.values())}")
            renamed[new] = tensor
    return renamed


def new_names(keys: Iterable[str], rules: tuple[Rule, ...]) -> Iterator[str]:
    """Names that `rename` may give to keys that a rule knows, also names of optional parts."""
    for key in keys:
        rule, _, values = find_rule(key, rules)
        yield from (pattern.fill(values) for pattern in rule.targets)


@dataclass(frozen=True)
class Scheme:
    """A naming scheme, or one form of it: a name may appear twice in a family, as classifier and as dense backbone."""

    name: str  # project that uses these names
    rules: tuple[Rule, ...]  # its rename table
    marker: str = ""  # regular expression that a key must match, to tell similar schemes apart
    prefix: str = ""  # added to the keys when a backbone alone is written
    wrapper: str | None = None  # entry of a torch file for the tensors; None for the top level
    layout: Layout | None = None  # second step, after the rules; None if the rules alone give our names

    @property
    def is_written(self) -> bool:
        """Whether files with these names are written, not only read."""
        return bool(reverse(self.rules))

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state dict of this scheme with our names; for errors see `rename`."""
        state = rename(state, self.rules)
        names = self.layout.forward(state) if self.layout else {}
        return {names.get(key, key): value for key, value in state.items()}

    def names_for_rules(self, ours: Mapping[str, Tensor]) -> dict[str, str]:
        """For every key of a state dict with our names, the name that the reversed rules know."""
        return self.layout.inverse(ours) if self.layout else {key: key for key in ours}

    def from_ours(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = self.names_for_rules(ours)
        return rename({names[key]: value for key, value in ours.items()}, reverse(self.rules))
