"""``settings``: length, image size and loggers of a config, stated once and applied wherever the config repeats them.

``settings = dict(max_epochs=12, image_size=640)`` changes the loop with its learning-rate schedule, and every size in
the pipelines; so does ``image_size=(288, 512)``, height and width, where images are resized to one size.
``dict(log_to=["tensorboard", "wandb"])`` adds these loggers to the visualizer. ``dict(normalisation="own")`` permits
another normalisation than the pretrained weights expect, which is refused else. ``dict(total_batch_size=16)`` shares
the images of a step out among the processes, however many there are.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.mm.config.query import SPLITS, as_list, has_one_size, hooks, image_size, mapped, nodes, sides, type_name
from vitdense.mm.errors import ConfigError

LENGTHS = ("max_epochs", "max_iters")
LOGGERS = {"tensorboard": "TensorboardVisBackend", "wandb": "WandbVisBackend"}
SETTINGS = (*LENGTHS, "image_size", "log_to", "normalisation", "total_batch_size")
# Keys that are times in loops, schedulers, hooks and models, and the least useful value. ``end`` depends on ``begin``
# and is scaled separately.
TIMES = {
    **{"begin": 0, "T_max": 0, "milestones": 0, "warmups": 1, "step_size": 1, "periods": 1, "total_steps": 1},
    **{"val_begin": 1, "dynamic_intervals": 0},
    **{"switch_epoch": 0, "num_last_epochs": 0, "begin_epoch": 0, "begin_iter": 0, "save_begin": 0},
    **{"starts": 0, "ends": 1, "initial_epoch": 0},
}
# Keys of sizes in transforms, the data preprocessor and test_cfg.
SIZES = ("scale", "scales", "crop_size", "smallest", "size", "img_scale", "img_scales", "stride")
FIXED_SIZES = ("border", "random_size_range", "switch_pipeline")  # in YOLOX and RTMDet, whose code repeats sizes


def check_settings(cfg: Config) -> None:
    """Raise a ConfigError unless the keys of ``cfg.settings`` are known and their values valid."""
    for name, value in cfg.get("settings", {}).items():
        if name not in SETTINGS:
            raise ConfigError(f"settings: got {name}, expected one of {', '.join(SETTINGS)}")
        if name == "log_to":
            fits, expected = all(logger in LOGGERS for logger in as_list(value)), f"some of {', '.join(LOGGERS)}"
        elif name == "normalisation":
            fits, expected = value == "own", "'own'"
        elif name == "image_size" and isinstance(value, (list, tuple)):
            fits, expected = _is_pair(value) and min(value) > 0, "a positive int, or two: (height, width)"
        else:
            fits, expected = type(value) is int and value > 0, "a positive int"
        if not fits:
            raise ConfigError(f"settings.{name}: got {value!r}, expected {expected}")


def check_kept(cfg: Config) -> None:
    """Raise a ConfigError unless every setting still holds after the user's options."""
    settings = cfg.get("settings", {})
    for name in LENGTHS:
        if name in settings and cfg.get("train_cfg") and cfg.train_cfg.get(name) != settings[name]:
            raise ConfigError(f"settings.{name}: got {settings[name]}, but train_cfg.{name}={cfg.train_cfg.get(name)}")
    if "image_size" in settings and (size := image_size(cfg)) != (wanted := _wanted_size(cfg, size, has_one_size(cfg))):
        raise ConfigError(f"settings.image_size: got {shown(wanted)}, but the pipelines were set to {shown(size)}")
    used = {type_name(backend) for backend in as_list((cfg.get("visualizer") or {}).get("vis_backends"))}
    if absent := [x for x in as_list(settings.get("log_to")) if LOGGERS[x] not in used]:
        got = f"got {', '.join(absent)}, but visualizer={cfg.get('visualizer')} logs nothing there"
        raise ConfigError(f"settings.log_to (--log-to): {got}; leave one of the two out")


def set_loggers(cfg: Config) -> None:
    """Log to exactly the `LOGGERS` that ``settings.log_to`` names.

    Options that the config has for one stay, and so do its other backends.
    """
    if "log_to" not in cfg.get("settings", {}):
        return
    if not cfg.get("visualizer"):
        cfg.visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")])
    if logger := (cfg.get("default_hooks") or {}).get("logger"):
        logger.log_metric_by_epoch = False  # metrics and losses over the same steps
    kept = {type_name(backend): backend for backend in as_list(cfg.visualizer.get("vis_backends"))}
    others = [backend for kind, backend in kept.items() if kind not in LOGGERS.values()]
    wanted = [LOGGERS[name] for name in as_list(cfg.settings.log_to)]
    cfg.visualizer.vis_backends = others + [kept.get(kind, dict(type=kind)) for kind in wanted]


def set_length(cfg: Config) -> None:
    """Set the length of a run, in place. `TIMES` in the same unit keep their share of the run.

    If the schedule already ends with the run, all times stay as they are. A config that counts in the other unit, or
    whose schedule ends elsewhere, is a ConfigError.
    """
    name = next((name for name in LENGTHS if name in cfg.get("settings", {})), None)
    if name is None:
        return
    length, loop = cfg.settings[name], cfg.get("train_cfg")
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
        got = f"got {length}, but train_cfg.{name} is {old} and param_scheduler ends at {end}"
        raise ConfigError(f"settings.{name}: {got}; expected both to be equal, or the schedule to end at {length}")
    for step in schedulers:
        _scale_times(step, length, old)
        if "end" in step:  # at least two steps: a warm-up of one would keep its first factor
            whole = max(-(-step["end"] * length // old), int(step.get("begin", 0)) + 2)
            step["end"] = min(whole, length)
    _scale_times(loop, length, old)
    of_tood = [node for node in nodes(cfg.get("model")) if "initial_epoch" in node]
    for node in (*(hook for _, hook in hooks(cfg)), *of_tood):
        _scale_times(node, length, old)


def _scale_times(node: dict, new: int, old: int) -> None:
    """Scale `TIMES` in a part of a config, in place. An int stays an int, and before the end."""

    def scaled(time: float) -> float:
        return time * new // old if isinstance(time, int) else time * new / old

    for key, least in TIMES.items():
        if node.get(key) is None:
            continue
        if key == "dynamic_intervals":
            node[key] = [(scaled(time), interval) for time, interval in node[key]]
            continue
        node[key] = mapped(node[key], lambda time, least=least: max(scaled(time), least))
        if key == "milestones":  # mmengine applies a milestone at 0 before the first step, and equal ones together
            node[key] = sorted({time for time in node[key] if time > 0})
        elif key == "ends":
            node[key] = [max(end, start + 1) for start, end in zip(node["starts"], node[key])]


def set_image_size(cfg: Config) -> None:
    """Multiply all sizes, in place, so that `image_size` becomes ``settings.image_size``.

    Sides that whole windows do not divide are rounded, which is logged.
    """
    given = cfg.get("settings", {}).get("image_size")
    if given is None:
        return
    old, is_one = image_size(cfg), has_one_size(cfg)
    pipelines = [*nodes([cfg.get(f"{split}_dataloader") for split in SPLITS])]
    fixed = {key for step in (*pipelines, *nodes(cfg.get("custom_hooks"))) for key in FIXED_SIZES if key in step}
    # If a segmentor's validation images keep their size, its training images do too, and only the crops scale.
    resizes = any("scale" in step for step in nodes(cfg.get("val_dataloader") or cfg.get("test_dataloader")))
    keys = SIZES if resizes else ("crop_size", "size", "stride")
    pipelines += nodes(cfg.get("tta_pipeline"))
    preprocessor, backbone = (cfg.model.get(name) or {} for name in ("data_preprocessor", "backbone"))
    others = [*nodes(preprocessor), cfg.model.get("test_cfg") or {}]
    trained = {side for step in pipelines for key in keys for side in sides(step.get(key))}
    if old == (new := _wanted_size(cfg, old, is_one)):
        return
    if fixed:
        raise ConfigError(f"settings.image_size: cannot change {', '.join(fixed)} of this config; set the sizes there")
    if (given if isinstance(given, int) else tuple(given)) not in (min(new), new):
        divisor = f"multiples of {preprocessor.get('pad_size_divisor')}, the data_preprocessor.pad_size_divisor"
        print_log(f"settings.image_size: {shown(given)} is rounded to {shown(new)}, {divisor}", "current")
    by, short = [Fraction(*pair) for pair in zip(new, old)], Fraction(min(new), min(old))
    crops_by_height = cfg.get("default_scope") == "mmseg"
    for step in pipelines:
        in_any_order = step.get("keep_ratio") or step.get("crop_type") == "absolute_range"  # long and short, or a range
        for key in keys:
            by_height = key == "crop_size" and crops_by_height
            ratios = [short] * 2 if in_any_order else by if by_height else by[::-1]
            if key in step:
                step[key] = _resized(step[key], ratios)
    for node in others:
        for key in keys:
            if key in node:
                node[key] = _resized(node[key], by)
    # ViTDet pads to squares of the training size and has position embeddings for them.
    for node, key in ((preprocessor, "pad_size_divisor"), (backbone, "img_size")):
        if node.get(key) in trained:
            node[key] = _resized(node[key], by)


def shown(size: int | Sequence[int]) -> str:
    """A size (h, w) as text: 288x512."""
    return str(size) if isinstance(size, int) else "x".join(map(str, size))


def _wanted_size(cfg: Config, old: tuple[int, int], is_one: bool) -> tuple[int, int]:
    """``settings.image_size`` as (h, w), in whole windows: one number is the short side, in the ratio of `old`.

    `is_one`: whether all images have one size, whose sides are multiples of what a detector pads to.
    """
    given, divides = cfg.settings.image_size, is_one and cfg.get("default_scope") != "mmseg"
    divisor = (divides and (cfg.model.get("data_preprocessor") or {}).get("pad_size_divisor")) or 1
    if isinstance(given, int):
        by = Fraction(_whole(given, divisor), min(old))
        given = [side * by for side in old]
    elif not is_one:
        raise ConfigError(
            f"settings.image_size (--image-size): got {shown(given)}, but images keep their ratio in this config; give "
            f"their short side alone, or resize them to one size by keep_ratio=False"
        )
    return tuple(_whole(side, divisor) for side in given)


def _whole(side: Fraction | int, divisor: int) -> int:
    return max(round(Fraction(side, divisor)), 1) * divisor


def _resized(value: Any, by: Sequence[Fraction]) -> Any:
    """A size or a list of sizes with the first and second side times `by`. Floats are shares of the image."""
    if _is_pair(value):
        return type(value)(round(side * one) for side, one in zip(value, by))
    if isinstance(value, (list, tuple)):
        return type(value)(_resized(part, by) for part in value)
    if isinstance(value, int):
        return round(value * by[0]) if by[0] == by[1] else tuple(round(value * one) for one in by)
    return value


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(side) is int for side in value)
