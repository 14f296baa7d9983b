"""Frozen: a backbone that does not train, or hardly, starts from weights."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.backbone import trunk_of
from vitdense.mm.config.query import as_list


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """A warning where random weights would stay random."""
    trunk = trunk_of(cfg)
    parts = as_list(trunk.get("init_cfg"))
    loads = cfg.get("load_from") or any(not isinstance(part, dict) or "checkpoint" in part for part in parts)
    options = {"frozen_stages": (None, -1), "finetune": (None,)}
    fixed = [f"{key}={trunk[key]!r}" for key, none in options.items() if trunk.get(key) not in none]
    if "train" in splits and fixed and not loads:
        yield (
            f"model.backbone has {' and '.join(fixed)} and random weights, which then never learn; set its init_cfg or "
            f"load_from, or train all of it: model = dict(backbone=dict(frozen_stages=-1, finetune=None))"
        )
