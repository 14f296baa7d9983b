"""``settings``: a config's length, image size and loggers, each stated once and applied wherever a config repeats it.

``settings = dict(max_epochs=12, image_size=640)`` in a config changes the loop with its learning-rate schedule, and
every size in the pipelines. `max_iters` takes the place of `max_epochs` where the config counts iterations.
``settings = dict(log_to=["tensorboard", "wandb"])`` adds these to the visualizer. ``settings =
dict(normalisation="own")`` changes nothing: it says that images are normalised otherwise than the pretrained weights
expect on purpose, which is refused without it.
"""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from vitdense.mm.config.walk import as_list, nodes
from vitdense.mm.errors import ConfigError

LENGTHS = ("max_epochs", "max_iters")
LOGGERS = {"tensorboard": "TensorboardVisBackend", "wandb": "vitdense.WandbVisBackend"}
SETTINGS = (*LENGTHS, "image_size", "log_to", "normalisation")
# Of transforms, the data preprocessor and test_cfg.
SIZES = ("scale", "scales", "crop_size", "size", "img_scale", "img_scales", "stride")
FIXED_SIZES = ("border", "random_size_range", "switch_pipeline")  # of YOLOX and RTMDet, which repeat them in code


def apply_settings(cfg: Config) -> None:
    """Apply ``cfg.settings``, in place. Applying them again changes nothing.

    Raises:
        ConfigError: A length or size is not a positive int, a logger is unknown, or a setting does not apply to this
            config.
    """
    for name, value in cfg.get("settings", {}).items():
        if name not in SETTINGS:
            raise ConfigError(f"settings: got {name}, expected one of {', '.join(SETTINGS)}")
        if name == "log_to":
            _set_loggers(cfg, as_list(value))
            continue
        if name == "normalisation":
            if value != "own":
                raise ConfigError(f"settings.normalisation: got {value!r}, expected 'own'")
            continue
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"settings.{name}: got {value!r}, expected a positive int")
        if name in LENGTHS:
            _set_length(cfg, name, value)
        else:
            _set_image_size(cfg, value)


def _set_loggers(cfg: Config, names: list[str]) -> None:
    """Of `LOGGERS`, use exactly these. What the config says of one stays, and so do its other backends."""
    if unknown := [name for name in names if name not in LOGGERS]:
        raise ConfigError(f"settings.log_to: got {unknown}, expected some of {', '.join(LOGGERS)}")
    if not cfg.get("visualizer"):
        cfg.visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")])
    if logger := cfg.get("default_hooks", {}).get("logger"):
        logger.log_metric_by_epoch = False  # or metrics and losses would not be over the same steps
    kept = {str(backend["type"]).rpartition(".")[2]: backend for backend in as_list(cfg.visualizer.get("vis_backends"))}
    classes = {name: kind.rpartition(".")[2] for name, kind in LOGGERS.items()}
    others = [backend for kind, backend in kept.items() if kind not in classes.values()]
    cfg.visualizer.vis_backends = others + [kept.get(classes[name], dict(type=LOGGERS[name])) for name in names]


def _set_length(cfg: Config, name: str, length: int) -> None:
    """Set the length of a run. Times of the schedule that have its unit keep their share of the run.

    A schedule that already ends with the run is left as it is.
    """
    loop = cfg.train_cfg
    old = loop.get(name)
    if old is None:
        unit, other = ("iterations", "max_iters") if name == "max_epochs" else ("epochs", "max_epochs")
        raise ConfigError(f"settings.{name}: this config counts {unit}; set settings.{other} (--{other[4:]})")
    loop[name] = length
    if "val_interval" in loop:
        loop.val_interval = min(loop.val_interval, length)
    by_epoch = name == "max_epochs"
    schedulers = [step for step in as_list(cfg.get("param_scheduler")) if step.get("by_epoch", True) == by_epoch]
    end = max((step["end"] for step in schedulers if "end" in step), default=old)
    if end == max(length, 2):  # the schedule of one step ends at 2, see below
        return
    if end != old:
        raise ConfigError(
            f"settings.{name}: got {length}, but train_cfg.{name} is {old} and param_scheduler ends at {end}; expected "
            f"both to be equal, or the schedule to end at {length}"
        )
    for step in schedulers:
        for key in {"begin", "T_max", "milestones", "warmups"} & step.keys():
            step[key] = _scale(step[key], length, old)
            if key == "milestones":  # mmengine would apply one at 0 before the first step
                step[key] = [time for time in step[key] if time > 0]
            elif key == "warmups":
                step[key] = [max(time, 1) for time in step[key]]
        if "end" in step:  # a warm-up of one step would never leave its first factor
            step["end"] = max(-(-step["end"] * length // old), step.get("begin", 0) + 2)
    for hook in as_list(cfg.get("custom_hooks")):  # of masked attention, which ends before the training does
        for key in {"starts", "ends"} & hook.keys():
            hook[key] = _scale(hook[key], length, old)


def _scale(value: Any, new: int, old: int) -> Any:
    """A time, or a list of times, in a run of `new` in place of `old` steps. An int stays one, and before the end."""
    if isinstance(value, (list, tuple)):
        return type(value)(_scale(part, new, old) for part in value)
    return value * new // old if isinstance(value, int) else value * new / old


def _set_image_size(cfg: Config, size: int) -> None:
    """Multiply all sizes, so that `image_size` becomes `size`."""
    old = image_size(cfg)
    if old == size:
        return
    pipelines = [*nodes([cfg.get(f"{split}_dataloader") for split in ("train", "val", "test")])]
    fixed = {key for step in (*pipelines, *nodes(cfg.get("custom_hooks"))) for key in FIXED_SIZES if key in step}
    if fixed:
        raise ConfigError(f"settings.image_size: cannot change {', '.join(fixed)} of this config; set the sizes there")
    # A segmentor whose validation images keep their size is trained on crops of images that keep theirs.
    resizes = any("scale" in step for step in nodes(cfg.get("val_dataloader")))
    keys = SIZES if resizes else ("crop_size", "size", "stride")
    pipelines += nodes(cfg.get("tta_pipeline"))
    trained = {side for step in pipelines for key in keys for side in _sides(step.get(key))}
    preprocessor, backbone = (cfg.model.get(name) or {} for name in ("data_preprocessor", "backbone"))
    for node in (*pipelines, *nodes(preprocessor), cfg.model.get("test_cfg") or {}):
        for key in keys:
            if key in node:
                node[key] = _resize(node[key], size / old)
    # ViTDet pads to squares of the training size, and has positions for them.
    for node, key in ((preprocessor, "pad_size_divisor"), (backbone, "img_size")):
        if node.get(key) in trained:
            node[key] = _resize(node[key], size / old)


def image_size(cfg: Config) -> int:
    """What ``settings.image_size`` sets: the short side of a detector's images at validation; of a segmentor's crops in
    training.

    Raises:
        ConfigError: The pipelines have no such size.
    """
    loader, key = ("train", "crop_size") if cfg.get("default_scope") == "mmseg" else ("val", "scale")
    for node in nodes(cfg.get(f"{loader}_dataloader")):
        if sides := list(_sides(node.get(key))):
            return min(sides)
    raise ConfigError(f"settings.image_size: no step of the pipeline of {loader}_dataloader has a {key}")


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
