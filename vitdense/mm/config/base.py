"""A pass over a config, and what it knows of the command."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmengine.config import Config

from vitdense.mm.config.classes import BY_NAME
from vitdense.mm.config.query import flat
from vitdense.mm.errors import ConfigError

ABSENT = "absent"


@dataclass(frozen=True)
class Asked:
    """What a command asks of a config.

    Attributes:
        options: ``--cfg-options``: dotted keys and values.
        work_dir: Output folder; default: the work folder whose config it is, the config's, or
            ``work_dirs/<name of the config>``.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.
        amp: Data type of automatic mixed precision; None: float32.
        auto_scale_lr: See `vitdense.mm.train.launch.prepare_training`, as of the others.
        shard, fresh, resume: Likewise.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    work_dir: str | None = None
    launcher: str = "none"
    amp: str | None = None
    auto_scale_lr: bool = False
    shard: bool = False
    fresh: Sequence[str] = ()
    resume: str | None = None


class Pass(NamedTuple):
    """One writer of a config.

    Attributes:
        name: What it is, for who asks which pass set a key.
        writes: The dotted keys that it may write, as patterns of `fnmatch`.
        apply: Changes the config in place.
    """

    name: str
    writes: tuple[str, ...]
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
    for step in passes:
        before = flat(cfg.to_dict()) if changes is not None else {}
        step.apply(cfg, asked)
        if changes is not None:
            after = flat(cfg.to_dict())
            pairs = ((key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in {**before, **after})
            changes += [Change(step.name, *pair) for pair in pairs if repr(pair[1]) != repr(pair[2])]
        for key, value in getattr(cfg, "given", {}).items():
            now = find(cfg, key)
            if now not in (value, ABSENT if value is None else value, *BY_NAME.values()):  # the same, read by name
                done = "leaves it out" if now is ABSENT else f"sets it to {now!r}"
                raise ConfigError(f"--cfg-options {key}: got {value!r}, but {step.name} {done}; give one of the two")


def find(node: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(node, (list, tuple)):
            node = node[int(part)] if int(part) < len(node) else ABSENT
        else:
            node = node.get(part, ABSENT) if isinstance(node, (Config, dict)) else ABSENT
    return node
