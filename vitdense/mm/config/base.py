"""A config by dotted keys: what a command asks of it, and a pass that changes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from mmengine.config import Config

from vitdense.mm.config.asked import Asked
from vitdense.mm.config.classes import BY_NAME
from vitdense.mm.config.print import code
from vitdense.mm.errors import ConfigError

ABSENT = "absent"
SHOWN = 60  # characters of a value


def has_parts(node: Any) -> bool:
    """Whether a part of a config is a dict or list that is not empty."""
    return bool(node) and isinstance(node, (dict, list, tuple))


def has_dicts(node: Any) -> bool:
    return has_parts(node) and (isinstance(node, dict) or any(isinstance(part, dict) for part in node))


def flat(node: Any, key: str = "", opens: Callable[[Any], bool] = has_parts) -> dict[str, Any]:
    """The values in a part of a config by dotted keys that begin with `key`; `opens` says which nodes to go into."""
    if not opens(node):
        return {key: node}
    parts = node.items() if isinstance(node, dict) else enumerate(node)
    return {
        name: value
        for part, inner in parts
        for name, value in flat(inner, f"{key}.{part}" if key else part, opens).items()
    }


def find(node: Any, key: str) -> Any:
    """The value at a dotted key, or `ABSENT`."""
    for part in key.split("."):
        if isinstance(node, (list, tuple)):
            node = node[int(part)] if part.isdigit() and int(part) < len(node) else ABSENT
        else:
            node = node.get(part, ABSENT) if isinstance(node, (Config, Mapping)) else ABSENT
    return node


class Pass(NamedTuple):
    """One writer of a config: `apply` changes it in place."""

    name: str  # its option or setting, or what it does
    apply: Callable[[Config, Asked], None]


class Change(NamedTuple):
    """A key that a pass changed, with its old and new value; `ABSENT` for a missing key."""

    by: str
    key: str
    old: Any
    new: Any


def run_passes(passes: Sequence[Pass], cfg: Config, asked: Asked, changes: list[Change] | None = None) -> None:
    """Change a config in place, pass by pass, else a ConfigError; `changes` gets what each changed."""
    before = flat(cfg.to_dict(), opens=has_dicts) if changes is not None else {}
    for step in passes:
        step.apply(cfg, asked)
        if changes is not None:
            after = flat(cfg.to_dict(), opens=has_dicts)
            pairs = ((key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in {**before, **after})
            changes += [Change(step.name, *pair) for pair in pairs if repr(pair[1]) != repr(pair[2])]
            before = after
        for key, value in getattr(cfg, "given", {}).items():
            now = find(cfg, key)
            if now not in (value, ABSENT if value is None else value, *BY_NAME.values()):  # the same type, read by name
                done = "leaves it out" if now is ABSENT else f"sets it to {now!r}"
                raise ConfigError(f"--cfg-options {key}: got {value!r}, but {step.name} {done}; give one of the two")


def describe(changes: Sequence[Change]) -> Iterator[str]:
    """Lines of text: the name of each pass that changed something, and its changes ``key: old -> new``."""
    for name, group in groupby(changes, lambda change: change.by):
        yield name
        yield from (f"    {key}: {short(old)} -> {short(new)}" for _, key, old, new in group)


def short(value: Any) -> str:
    text = value if value is ABSENT else " ".join(code(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
