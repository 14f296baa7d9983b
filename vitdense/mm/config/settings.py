"""``settings``: a config's length, image size and loggers, each stated once and applied wherever a config repeats it.

``settings = dict(max_epochs=12, image_size=640)`` in a config changes the loop with its learning-rate schedule, and
every size in the pipelines. `max_iters` takes the place of `max_epochs` where the config counts iterations.
``settings = dict(log_to=["tensorboard", "wandb"])`` adds these to the visualizer. ``settings =
dict(normalisation="own")`` changes nothing: it says that images are normalised otherwise than the pretrained weights
expect on purpose, which is refused without it.
"""

import re
from collections.abc import Collection
from typing import Any

from mmengine.config import Config
from mmengine.registry import HOOKS

from vitdense.mm.config.base import flat
from vitdense.mm.config.query import SPLITS, as_list, find_class, hooks, mapped, nodes, type_name
from vitdense.mm.errors import ConfigError

LENGTHS = ("max_epochs", "max_iters")
LOGGERS = {"tensorboard": "TensorboardVisBackend", "wandb": "WandbVisBackend"}
SETTINGS = (*LENGTHS, "image_size", "log_to", "normalisation")
# What is a time in a loop, a scheduler, a hook or a model, and the least that means something; ``end`` needs its
# ``begin``, and is scaled apart. Keys of our hooks and of mm's are here; others that look like times are refused.
TIMES = {
    **{"begin": 0, "T_max": 0, "milestones": 0, "warmups": 1, "step_size": 1, "periods": 1, "total_steps": 1},
    **{"val_begin": 1, "dynamic_intervals": 0},
    **{"switch_epoch": 0, "num_last_epochs": 0, "begin_epoch": 0, "begin_iter": 0, "save_begin": 0},
    **{"starts": 0, "ends": 1, "initial_epoch": 0},
}
KNOWN_PACKAGES = ("mmengine", "mmdet", "mmseg", "vitdense")
TIME = re.compile(
    r"(^|_)(epochs?|iters?|iterations?|steps?|begin|starts?|ends?|stop|until|after|milestones?|switch|warm_?ups?)(_|$)"
)
# Of transforms, the data preprocessor and test_cfg.
SIZES = ("scale", "scales", "crop_size", "size", "img_scale", "img_scales", "stride")
FIXED_SIZES = ("border", "random_size_range", "switch_pipeline")  # of YOLOX and RTMDet, which repeat them in code


def check_settings(cfg: Config) -> None:
    """Raise a ConfigError unless ``cfg.settings`` are known, and of the right kind."""
    for name, value in cfg.get("settings", {}).items():
        if name not in SETTINGS:
            raise ConfigError(f"settings: got {name}, expected one of {', '.join(SETTINGS)}")
        if name == "log_to":
            if unknown := [logger for logger in as_list(value) if logger not in LOGGERS]:
                raise ConfigError(f"settings.log_to: got {unknown}, expected some of {', '.join(LOGGERS)}")
        elif name == "normalisation":
            if value != "own":
                raise ConfigError(f"settings.normalisation: got {value!r}, expected 'own'")
        elif not isinstance(value, int) or value < 1:
            raise ConfigError(f"settings.{name}: got {value!r}, expected a positive int")


def check_kept(cfg: Config) -> None:
    """Raise a ConfigError unless every setting still holds, after the user's own options."""
    settings = cfg.get("settings", {})
    for name in LENGTHS:
        if name in settings and cfg.get("train_cfg") and cfg.train_cfg.get(name) != settings[name]:
            raise ConfigError(f"settings.{name}: got {settings[name]}, but train_cfg.{name}={cfg.train_cfg.get(name)}")
    if "image_size" in settings and (size := image_size(cfg)) != settings.image_size:
        raise ConfigError(f"settings.image_size: got {settings.image_size}, but the pipelines were set to {size}")
    used = {type_name(backend) for backend in as_list((cfg.get("visualizer") or {}).get("vis_backends"))}
    if absent := [x for x in as_list(settings.get("log_to")) if LOGGERS[x].rpartition(".")[2] not in used]:
        raise ConfigError(
            f"settings.log_to (--log-to): got {', '.join(absent)}, but visualizer={cfg.get('visualizer')} logs nothing "
            f"there; leave one of the two out"
        )


def set_loggers(cfg: Config) -> None:
    """Of `LOGGERS`, use exactly those of ``settings.log_to``. What the config says of one stays, and so do its other
    backends."""
    if "log_to" not in cfg.get("settings", {}):
        return
    names = as_list(cfg.settings.log_to)
    if not cfg.get("visualizer"):
        cfg.visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")])
    if logger := (cfg.get("default_hooks") or {}).get("logger"):
        logger.log_metric_by_epoch = False  # or metrics and losses would not be over the same steps
    kept = {type_name(backend): backend for backend in as_list(cfg.visualizer.get("vis_backends"))}
    classes = {name: kind.rpartition(".")[2] for name, kind in LOGGERS.items()}
    others = [backend for kind, backend in kept.items() if kind not in classes.values()]
    cfg.visualizer.vis_backends = others + [kept.get(classes[name], dict(type=LOGGERS[name])) for name in names]


def set_length(cfg: Config, given: Collection[str] = ()) -> None:
    """Set the length of a run, in place. `TIMES` that have its unit keep their share of the run.

    A schedule that already ends with the run is left as it is, and so are the other times then. `given` has the dotted
    keys of the user's own options, which apply later.

    Raises:
        ConfigError: The config counts in the other unit, its schedule ends elsewhere, or a hook that is not known has
            what may be a time.
    """
    for name in LENGTHS:
        if name in cfg.get("settings", {}):
            _set_length(cfg, name, cfg.settings[name], given)


def _set_length(cfg: Config, name: str, length: int, given: Collection[str]) -> None:
    loop = cfg.get("train_cfg")
    if not loop:
        raise ConfigError(f"settings.{name}: got {length}, but train_cfg is {loop}; the config does not train")
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
    if end == length:
        return
    if end != old:
        raise ConfigError(
            f"settings.{name}: got {length}, but train_cfg.{name} is {old} and param_scheduler ends at {end}; expected "
            f"both to be equal, or the schedule to end at {length}"
        )
    for step in schedulers:
        _scale_times(step, length, old)
        if "end" in step:  # a warm-up of one step would never leave its first factor
            whole = max(-(-step["end"] * length // old), int(step.get("begin", 0)) + 2)
            step["end"] = min(whole, length)
    _scale_times(loop, length, old)
    for where, hook in hooks(cfg):
        kind = find_class(HOOKS, hook["type"], cfg)
        if kind is not None and kind.__module__.partition(".")[0] not in KNOWN_PACKAGES:
            for key in (key for key in hook.keys() - TIMES if TIME.search(key) and _is_time(hook[key])):
                if f"{where}.{key}" not in given:
                    raise ConfigError(
                        f"settings.{name}: {where}.{key}={hook[key]!r} of {kind.__name__} may be a time, which does "
                        f"not follow from {old} to {length}; state it: --cfg-options {where}.{key}=..."
                    )
        _scale_times(hook, length, old)
    for node in nodes(cfg.get("model")):
        if "initial_epoch" in node:  # of TOOD
            _scale_times(node, length, old)


def _is_time(value: Any) -> bool:
    return any(isinstance(part, int) and not isinstance(part, bool) and part > 0 for part in as_list(value))


def _scale_times(node: dict, new: int, old: int) -> None:
    """Scale `TIMES` of a part of a config, in place. An int stays one, and before the end."""

    def scaled(time: float) -> float:
        return time * new // old if isinstance(time, int) else time * new / old

    for key, least in TIMES.items():
        if node.get(key) is None:
            continue
        if key == "dynamic_intervals":
            node[key] = [(scaled(time), interval) for time, interval in node[key]]
            continue
        value = mapped(node[key], scaled)
        if isinstance(value, (list, tuple)):
            value = type(value)(max(time, least) for time in value)
        node[key] = max(value, least) if isinstance(value, (int, float)) else value
        if key == "milestones":  # mmengine would apply one at 0 before the first step, and two at one time at once
            node[key] = sorted({time for time in node[key] if time > 0})
        elif key == "ends":
            node[key] = [max(end, start + 1) for start, end in zip(node["starts"], node[key])]


def set_image_size(cfg: Config) -> None:
    """Multiply all sizes, in place, so that `image_size` becomes ``settings.image_size``."""
    size = cfg.get("settings", {}).get("image_size")
    if size is None or (old := image_size(cfg)) == size:
        return

    def resized(side: Any) -> Any:
        return round(side * size / old) if isinstance(side, int) else side  # shares of the image stay

    pipelines = [*nodes([cfg.get(f"{split}_dataloader") for split in SPLITS])]
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
                node[key] = mapped(node[key], resized)
    # ViTDet pads to squares of the training size, and has positions for them.
    for node, key in ((preprocessor, "pad_size_divisor"), (backbone, "img_size")):
        if node.get(key) in trained:
            node[key] = mapped(node[key], resized)


def image_size(cfg: Config) -> int:
    """What ``settings.image_size`` sets: the short side of a detector's images at validation, or test where there is no
    validation; of a segmentor's crops in training.

    Raises:
        ConfigError: The pipelines have no such size.
    """
    splits, key = (("train",), "crop_size") if cfg.get("default_scope") == "mmseg" else (("val", "test"), "scale")
    loader = f"{next((split for split in splits if cfg.get(f'{split}_dataloader')), splits[0])}_dataloader"
    for node in nodes(cfg.get(loader)):
        if sides := _sides(node.get(key)):
            return min(sides)
    step = "Resize, scale=(1333, 800)" if key == "scale" else "RandomCrop, crop_size=(512, 512)"
    raise ConfigError(
        f"settings.image_size (--image-size): no step of the pipeline of {loader} has a {key}, which it sets; "
        f"add one, such as {step}, or set the sizes of the steps themselves"
    )


def _sides(value: Any) -> list[int]:
    """Every int in a size or a list of sizes. Floats are shares of the image."""
    return [side for side in flat(value).values() if isinstance(side, int)]
