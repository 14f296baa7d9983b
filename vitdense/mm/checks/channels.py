"""Channels: those of the backbone's maps against the neck or the heads."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from vitdense.mm.checks.base import Finding, caught
from vitdense.mm.config.query import as_list
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    yield from caught(check_channels, cfg)


def check_channels(cfg: Config) -> None:
    """Check the channels of a backbone of this package against the first module after it: a neck or mmseg's heads.

    Builds the backbone on the meta device, without memory and weights.

    Raises:
        ConfigError: They differ, or the backbone or a neck of this package cannot be built.
    """
    model = cfg.model.get("module", cfg.model)  # inside the TTA wrapper
    backbone = _build_on_meta(model.get("backbone"), "model.backbone")
    if backbone is None:
        return
    source, channels = "the backbone's out_channels", list(backbone.out_channels)
    necks = model.get("neck")
    for i, neck in enumerate(as_list(necks)):
        name = f"model.neck.{i}" if isinstance(necks, (list, tuple)) else "model.neck"
        wanted = neck.get("in_channels", channels)
        # A number: some necks take one map. In any order: some start at the last map.
        if wanted not in channels if isinstance(wanted, int) else sorted(wanted) != sorted(channels):
            raise ConfigError(
                f"{name}.in_channels: got {wanted}, expected {source}, {channels}; set {name}.in_channels"
            )
        built = _build_on_meta(neck, name)
        if built is None:
            return  # its outputs are its own
        source, channels = f"out_channels of {name}", list(built.out_channels)
    for name in ("decode_head", "auxiliary_head"):
        for head in as_list(model.get(name)):
            _check_head(f"model.{name}", head, source, channels)


def _check_head(name: str, head: Mapping, source: str, channels: Sequence[int]) -> None:
    """Check the channels of a head of mmseg, which takes the maps `in_index`."""
    wanted = head.get("in_channels")
    if wanted is None:
        return
    all_maps = -1 if isinstance(wanted, int) else list(range(len(wanted)))
    index = head.get("in_index", all_maps)  # Mask2Former's head has no in_index
    try:
        expected = channels[index] if isinstance(index, int) else [channels[i] for i in index]
    except IndexError as error:
        raise ConfigError(f"{name}.in_index: got {index}, but there are {len(channels)} maps: {source}") from error
    if (wanted if isinstance(wanted, int) else list(wanted)) != expected:
        raise ConfigError(
            f"{name}.in_channels: got {wanted}, expected {expected}: {source} are {channels}, of which in_index {index}"
        )


def _build_on_meta(cfg: Mapping | None, name: str) -> nn.Module | None:
    """A module of this package on the meta device; None for modules of others."""
    if not cfg or not str(cfg.get("type")).startswith("vitdense."):
        return None
    options = {key: value for key, value in cfg.items() if key not in ("type", "init_cfg")}
    kind = MODELS.get(cfg["type"])
    if kind is None:
        raise ConfigError(f"{name}: no module of type {cfg['type']!r} is registered")
    try:
        with torch.device("meta"):
            return kind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
