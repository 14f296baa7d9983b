"""A config by dotted keys: what a command asks of it, and a pass that changes it."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, NamedTuple

from mmengine.config import Config

from vitdense.mm.config.classes import BY_NAME
from vitdense.mm.config.print import code
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import AMP, Inference

ABSENT = "absent"
SHOWN = 60  # characters of a value


def whole_number(text: str) -> int:
    """A whole number above 0 on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)


def has_parts(node: Any) -> bool:
    """Whether a part of a config has parts itself: a dict or list that is not empty."""
    return bool(node) and isinstance(node, (dict, list, tuple))


def has_dicts(node: Any) -> bool:
    """Whether a part of a config has parts with names: a dict, or a list with a dict."""
    return has_parts(node) and (isinstance(node, dict) or any(isinstance(part, dict) for part in node))


def flat(node: Any, key: str = "", opens: Callable[[Any], bool] = has_parts) -> dict[str, Any]:
    """The values in a part of a config by dotted keys; an empty dict or list is a value.

    Args:
        node: The part.
        key: Of the part.
        opens: Whether a part has values, rather than being one.
    """
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


def option(command: str, default: Any = None, **how: Any) -> Any:
    """A field of `Asked` that is an option of a command; `how`: see `argparse.ArgumentParser.add_argument`."""
    return field(default=default, metadata={"command": command, "how": how})


@dataclass(frozen=True)
class Asked:
    """What a command asks of a config. Fields made by `option` are options of ``train`` and ``test``, by their names.

    Attributes:
        options: ``--cfg-options``: dotted keys and values.
        work_dir: Output folder; default: the work folder whose config it is, the config's, or
            ``work_dirs/<name of the config>``.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.
        check: Checks a config for splits, before a training or a test.
        overwrite: Of a training, whether it takes the place of the one in its work folder; None: it writes nothing.
        checkpoint: To test or to predict with: a file, an address, or an exported file.
        inference: How a model predicts that is tested.
        args: The parsed arguments of a training or test, for options of extensions; None: there are none.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    work_dir: str | None = None
    launcher: str = "none"
    check: Callable[[Config, Sequence[str]], None] = lambda cfg, splits: None
    checkpoint: str | None = None
    inference: Inference = field(default_factory=Inference)
    args: argparse.Namespace | None = None

    amp: str | None = option("train", **AMP)
    resume: str | None = option(
        "train",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="continue from this checkpoint; by default, from the latest of the work folder",
    )
    overwrite: bool | None = option(
        "train", action="store_true", help="start anew in a work folder that has checkpoints"
    )
    fresh: Sequence[str] = option(
        "train",
        (),
        nargs="+",
        metavar="PATTERN",
        help="regular expressions of the parameters of load_from that keep their initial values",
    )
    auto_scale_lr: bool = option(
        "train", False, action="store_true", help="scale the learning rate to the total batch size"
    )
    tta: bool = option("test", False, action="store_true", help="test-time augmentation as in the config")

    @classmethod
    def add_options(cls, command: str, parser: argparse.ArgumentParser) -> None:
        """Add the options of a command to its parser."""
        for one in fields(cls):
            if one.metadata.get("command") == command:
                parser.add_argument(f"--{one.name.replace('_', '-')}", default=one.default, **one.metadata["how"])

    @classmethod
    def keywords(cls, command: str, args: argparse.Namespace) -> dict[str, Any]:
        """What parsed arguments give of the options of a command, as keywords of `Asked`; with ``args`` themselves."""
        names = [one.name for one in fields(cls) if one.metadata.get("command") == command]
        return {name: getattr(args, name) for name in names} | {"args": args}

    @property
    def exported(self) -> str | None:
        """The checkpoint, if it is a file of ``vitdense export --to onnx``."""
        return self.checkpoint if str(self.checkpoint).endswith(".onnx") else None


class Pass(NamedTuple):
    """One writer of a config.

    Attributes:
        name: The option or setting that it obeys, or what it does.
        apply: Changes the config in place.
    """

    name: str
    apply: Callable[[Config, Asked], None]


class Change(NamedTuple):
    """A key that a pass changed; `ABSENT` where there was or is none."""

    by: str
    key: str
    old: Any
    new: Any


def run_passes(passes: Sequence[Pass], cfg: Config, asked: Asked, changes: list[Change] | None = None) -> None:
    """Change a config in place, pass by pass.

    Args:
        passes: Of `vitdense.mm.config.passes`.
        cfg: The config.
        asked: What for.
        changes: Gets what each pass changed.

    Raises:
        ConfigError: What is asked does not fit the config or itself; two of it contradict each other.
    """
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
            if now not in (value, ABSENT if value is None else value, *BY_NAME.values()):  # the same, read by name
                done = "leaves it out" if now is ABSENT else f"sets it to {now!r}"
                raise ConfigError(f"--cfg-options {key}: got {value!r}, but {step.name} {done}; give one of the two")


def describe(changes: Sequence[Change]) -> Iterator[str]:
    """Lines of text: the name of every pass that changed something, and what: ``key: old -> new``.

    Keys that change alike and differ in one part share a line: ``{train,val}_dataloader.batch_size``.
    """
    for name, group in groupby(changes, lambda change: change.by):
        yield name
        alike: dict[tuple[str, str], list[str]] = {}
        for _, key, old, new in group:
            like = re.sub(r"^(train|val|test)_|(?<=\.)\d+(?=\.)", "*", key)
            alike.setdefault((like, f"{short(old)} -> {short(new)}"), []).append(key)
        yield from (f"    {key}: {text}" for (_, text), keys in alike.items() for key in _joined(keys))


def _joined(keys: Sequence[str]) -> list[str]:
    """Keys as one, ``{train,val}_dataloader.batch_size``, if they differ in one part."""
    parts = [
        list(dict.fromkeys(part))
        for part in zip(*(re.split(r"(?<=^train)_|(?<=^val)_|(?<=^test)_|\.", key) for key in keys))
    ]
    if len(keys) == 1 or sum(len(part) > 1 for part in parts) != 1:
        return list(keys)
    joined = ".".join(part[0] if len(part) == 1 else f"{{{','.join(part)}}}" for part in parts)
    return [re.sub(r"^((?:train|val|test)|\{[^}]*\})\.(dataloader|evaluator|cfg)", r"\1_\2", joined)]


def short(value: Any) -> str:
    """A value as code, cut to `SHOWN` characters."""
    text = value if value is ABSENT else code(value).replace("\n", " ")
    if isinstance(value, (list, tuple)) and len(text) > SHOWN:
        return f"{len(value)} values, {code(value[0])} to {code(value[-1])}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
