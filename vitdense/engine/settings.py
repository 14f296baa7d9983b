"""``settings``: a config's length and image size, each stated once and applied wherever a config repeats it.

``settings = dict(max_epochs=12, image_size=640)`` in a config changes the loop with its learning-rate schedule, and
every size in the pipelines. `max_iters` takes the place of `max_epochs` where the config counts iterations.
"""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from vitdense.engine.errors import ConfigError

LENGTHS = ("max_epochs", "max_iters")
SETTINGS = (*LENGTHS, "image_size")
# Of transforms, the data preprocessor and test_cfg.
SIZES = ("scale", "scales", "crop_size", "size", "img_scale", "img_scales", "stride")


def apply_settings(cfg: Config) -> None:
    """Apply ``cfg.settings``, in place. Applying them again changes nothing.

    Raises:
        ConfigError: A setting is not a positive int, or does not apply to this config.
    """
    for name, value in cfg.get("settings", {}).items():
        if name not in SETTINGS:
            raise ConfigError(f"settings: got {name}, expected one of {', '.join(SETTINGS)}")
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"settings.{name}: got {value!r}, expected a positive int")
        if name in LENGTHS:
            _set_length(cfg, name, value)
        else:
            _set_image_size(cfg, value)


def _set_length(cfg: Config, name: str, length: int) -> None:
    """Set the length of a run. Times of the schedule that have its unit keep their share of the run, rounded up."""
    loop = cfg.train_cfg
    old = loop.get(name)
    if old is None:
        unit, other = ("iterations", "max_iters") if name == "max_epochs" else ("epochs", "max_epochs")
        raise ConfigError(f"settings.{name}: this config counts {unit}; set settings.{other} (--{other[4:]})")
    loop[name] = length
    if "val_interval" in loop:
        loop.val_interval = min(loop.val_interval, length)
    schedulers = cfg.get("param_scheduler") or []
    for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
        if scheduler.get("by_epoch", True) == (name == "max_epochs"):
            for key in {"begin", "end", "T_max", "milestones"} & scheduler.keys():
                scheduler[key] = _scale(scheduler[key], length, old)
            if "end" in scheduler:  # a warm-up of one step would never leave its first factor
                scheduler["end"] = max(scheduler["end"], scheduler.get("begin", 0) + 2)


def _scale(value: Any, new: int, old: int) -> Any:
    """A time, or a list of times, in a run of `new` in place of `old` steps; int stays int."""
    if isinstance(value, (list, tuple)):
        return type(value)(_scale(part, new, old) for part in value)
    return -(-value * new // old) if isinstance(value, int) else value * new / old


def _set_image_size(cfg: Config, size: int) -> None:
    """Multiply all sizes, so that `image_size` becomes `size`."""
    old = image_size(cfg)
    if old == size:
        return
    nodes = [step for split in ("train", "val", "test") for step in _nodes(cfg.get(f"{split}_dataloader"))]
    nodes += _nodes(cfg.get("tta_pipeline"))
    trained = {side for node in nodes for key in SIZES if key in node for side in _sides(node[key])}
    nodes += [*_nodes(cfg.model.get("data_preprocessor")), cfg.model.get("test_cfg") or {}]
    for node in nodes:
        for key in SIZES:
            if key in node:
                node[key] = _resize(node[key], size / old)
    # ViTDet pads to squares of the training size, and has positions for them.
    for node, key in ((cfg.model.get("data_preprocessor", {}), "pad_size_divisor"), (cfg.model.backbone, "img_size")):
        if node.get(key) in trained:
            node[key] = _resize(node[key], size / old)


def image_size(cfg: Config) -> int:
    """What ``settings.image_size`` sets: the short side of a detector's images at validation; of a segmentor's crops in
    training.

    Raises:
        ConfigError: The pipelines have no such size.
    """
    loader, key = ("train", "crop_size") if cfg.get("default_scope") == "mmseg" else ("val", "scale")
    for node in _nodes(cfg.get(f"{loader}_dataloader")):
        if sides := list(_sides(node.get(key))):
            return min(sides)
    raise ConfigError(f"settings.image_size: no step of the pipeline of {loader}_dataloader has a {key}")


def _nodes(node: Any) -> Iterator[dict]:
    """Every dict in a part of a config."""
    if isinstance(node, dict):
        yield node
    if isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _nodes(value)


def _sides(value: Any) -> Iterator[int]:
    """Every int in a size or a list of sizes. Floats are shares of the image."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _sides(part)
    elif isinstance(value, int):
        yield value


def _resize(value: Any, ratio: float) -> Any:
    """A size or a list of sizes times `ratio`, in whole pixels; shares of the image stay."""
    if isinstance(value, (list, tuple)):
        return type(value)(_resize(part, ratio) for part in value)
    return round(value * ratio) if isinstance(value, int) else value
