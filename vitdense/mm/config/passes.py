"""The one list of what changes a config between its file and the Runner.

Settings come first, then what the user's own ``--cfg-options`` say, verbatim: they may change what followed from a
setting. Later passes complete what they leave open; one that would change what they say is refused.
"""

import math
import os
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.logging import print_log

from vitdense.mm.config import settings
from vitdense.mm.config.base import Asked, Change, Pass, find, run_passes
from vitdense.mm.config.classes import follow_classes
from vitdense.mm.config.loaders import OF_WORKERS
from vitdense.mm.config.options import is_setting, merge_options, resolve_options
from vitdense.mm.config.query import flat, hooks
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import check_precision
from vitdense.mm.train.work_folder import WorkFolder

SPLITS = ("train", "val", "test")
AMP_REPLACES = ("OptimWrapper", "AmpOptimWrapper", "vitdense.Bfloat16OptimWrapper")
OWN_DEFAULTS = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")  # of mmengine


def _merge_settings(cfg: Config, asked: Asked) -> None:
    merge_options(cfg, {key: value for key, value in asked.options.items() if is_setting(key)})
    settings.check_settings(cfg)


def _move_data(cfg: Config, asked: Asked) -> None:
    """A new ``data_root`` takes the place of the old one in the paths of data sets and metrics. mmengine would change
    the variable alone, after all paths were made from it."""
    new, old = asked.options.get("data_root"), cfg.get("data_root")
    if new is None or new == old:
        return
    if not isinstance(new, str):
        raise ConfigError(f"--cfg-options data_root: got {new!r}, expected a path")
    moved = False
    for key in (f"{split}_{part}" for split in SPLITS for part in ("dataloader", "evaluator")):
        if cfg.get(key):
            part = _replace_root(cfg[key], str(old).rstrip("/"), os.path.expanduser(new).rstrip("/"))
            moved |= part != cfg[key]
            cfg[key] = part
    if not moved:
        raise ConfigError(
            f"--cfg-options data_root: no path of a data set begins with the data_root {old!r}; set the paths "
            f"themselves, such as train_dataloader.dataset.data_root"
        )


def _replace_root(node: Any, old: str, new: str) -> Any:
    """`node` with the folder `old` replaced by `new` in every path."""
    if isinstance(node, dict):
        return ConfigDict({key: _replace_root(value, old, new) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_replace_root(value, old, new) for value in node)
    if isinstance(node, str) and (node == old or node.startswith(old + "/")):
        return new + node[len(old) :]
    return node


def _merge_given(cfg: Config, asked: Asked) -> None:
    given = {key: value for key, value in asked.options.items() if not is_setting(key)}
    merge_options(cfg, given)
    settings.check_kept(cfg)
    cfg.given.update((key, value) for key, value in flat(given).items() if find(cfg, key) == value)


def _leave_out(cfg: Config, asked: Asked) -> None:
    """None leaves a hook out. mmengine knows it of its own default hooks alone."""
    default = cfg.get("default_hooks") or {}
    for name in [name for name, hook in default.items() if hook is None and name not in OWN_DEFAULTS]:
        del default[name]


def _drop_worker_keys(cfg: Config, asked: Asked) -> None:
    for split in SPLITS:
        loader = cfg.get(f"{split}_dataloader")
        if loader and not loader.get("num_workers"):
            for key in OF_WORKERS:
                if loader.get(key):
                    del loader[key]


def _name_run(cfg: Config, asked: Asked) -> None:
    cfg.launcher = asked.launcher
    file = Path(cfg.filename)
    if WorkFolder(file.parent).is_of(file) and "work_dir" not in cfg.given:  # it may be a copy, with another's name
        cfg.work_dir = str(file.parent)
    cfg.work_dir = asked.work_dir or cfg.get("work_dir") or str(Path("work_dirs") / file.stem)


def _train_in(cfg: Config, asked: Asked) -> None:
    """Automatic mixed precision in a data type, with mmengine's scaling of the loss in float16."""
    wrapper, amp = cfg.optim_wrapper, asked.amp
    if not amp:
        return
    check_precision(f"--amp {amp}", amp, get_device())
    if wrapper.get("type") not in (None, *AMP_REPLACES):
        raise ConfigError(
            f"--amp {amp}: optim_wrapper.type is {wrapper.type}, which it would replace; leave one of the two out"
        )
    if amp == "float16":
        wrapper.update(type="AmpOptimWrapper", dtype=amp)
        wrapper.setdefault("loss_scale", "dynamic")
        return
    for option in ("dtype", "loss_scale"):  # of a config with mmengine's
        wrapper.pop(option, None)
    wrapper.type = "vitdense.Bfloat16OptimWrapper"


def _scale_rate(cfg: Config, asked: Asked) -> None:
    if asked.auto_scale_lr:
        if not (cfg.get("auto_scale_lr") or {}).get("base_batch_size"):
            raise ConfigError(
                "--auto-scale-lr: the config has no auto_scale_lr.base_batch_size, the images of a step that its "
                "learning rate is for; set it: --cfg-options auto_scale_lr.base_batch_size=16"
            )
        cfg.merge_from_dict({"auto_scale_lr.enable": True})


def _shard(cfg: Config, asked: Asked) -> None:
    cfg.pop("shard", None)  # of the run whose config this is
    if asked.shard:
        if cfg.launcher == "none":
            raise ConfigError("--shard: got one process, expected several: torchrun --nproc-per-node N tools/train.py")
        cfg.shard = True


def _log_short_runs(cfg: Config, asked: Asked) -> None:
    """Every iteration of a run that is shorter than the interval of the log, and the last one of every epoch."""
    logger = (cfg.get("default_hooks") or {}).get("logger")
    if not logger:
        return
    logger.setdefault("ignore_last", False)
    is_short = cfg.train_cfg.get("max_iters", math.inf) < logger.get("interval", 10)
    if is_short and "default_hooks.logger.interval" not in getattr(cfg, "given", ()):
        logger.interval = 1


def _save_whole_steps(cfg: Config, asked: Asked) -> None:
    """A checkpoint waits for the step whose gradients accumulate."""
    saves, counts = (cfg.get("default_hooks") or {}).get("checkpoint"), cfg.optim_wrapper.get("accumulative_counts", 1)
    if saves and not saves.get("by_epoch", True) and (rest := saves.get("interval", 1) % counts):
        saves.interval += counts - rest
        print_log(f"checkpoints every {saves.interval} iterations, for {counts} make a step", logger="current")


def _keep_fresh(cfg: Config, asked: Asked) -> None:
    if asked.fresh and asked.resume is None:
        kept = cfg.setdefault("default_hooks", ConfigDict())
        kept.exact_load = {"type": "vitdense.ExactLoadHook", **kept.get("exact_load", {}), "fresh": list(asked.fresh)}


def _resume(cfg: Config, asked: Asked) -> None:
    if asked.resume is not None:
        cfg.resume, cfg.load_from = True, asked.resume
        load_everything(cfg)


def load_everything(cfg: Config) -> None:
    """Take `fresh` out of the hooks: it is for the start of a training."""
    for _, hook in hooks(cfg):
        hook.pop("fresh", None)


def completed(cfg: Config, asked: Asked, changes: list[Change] | None = None) -> Config:
    """A config as every command takes it: what `LOADING` makes of the content of its file."""
    asked = Asked(**{**vars(asked), "options": resolve_options(cfg, asked.options)})
    run_passes(LOADING, cfg, asked, changes)
    return cfg


LENGTH = ("train_cfg.*", "param_scheduler.*", "default_hooks.*", "custom_hooks.*", "model.*initial_epoch")
# By every command.
LOADING = (
    Pass("settings", ("settings", "settings.*"), _merge_settings),
    Pass("settings.max_epochs or max_iters", LENGTH, lambda cfg, asked: settings.set_length(cfg, asked.options)),
    Pass(
        "settings.image_size",
        (
            "*_dataloader.*",
            "tta_pipeline.*",
            "model.data_preprocessor.*",
            "model.backbone.img_size",
            "model.test_cfg.*",
        ),
        lambda cfg, asked: settings.set_image_size(cfg),
    ),
    Pass(
        "settings.log_to",
        ("visualizer", "visualizer.*", "default_hooks.logger.log_metric_by_epoch"),
        lambda cfg, asked: settings.set_loggers(cfg),
    ),
    Pass("data_root", ("*_dataloader.*", "*_evaluator", "*_evaluator.*"), _move_data),
    Pass("--cfg-options", ("*",), _merge_given),
    Pass("hooks that are left out", ("default_hooks", "default_hooks.*"), _leave_out),
    Pass("num_workers=0", tuple(f"*_dataloader.{key}" for key in OF_WORKERS), _drop_worker_keys),
    Pass(
        "the classes of the training data",
        (
            *("*_dataloader.*.metainfo*", "*_dataloader.*.type", "*_dataloader.*.values*"),
            *(f"*_evaluator{of}.{key}" for of in ("", ".*") for key in ("ann_file", "type")),
            *("model.*num_classes", "model.*num_things_classes", "model.*num_stuff_classes", "model.*class_weight*"),
        ),
        lambda cfg, asked: follow_classes(cfg),
    ),
    Pass("--launcher or --work-dir", ("launcher", "work_dir"), _name_run),
)
# By a training, after `LOADING`.
TRAINING = (
    Pass("--amp", ("optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale"), _train_in),
    Pass("--auto-scale-lr", ("auto_scale_lr.enable",), _scale_rate),
    Pass("--shard", ("shard",), _shard),
    Pass(
        "the log of a short run", ("default_hooks.logger.ignore_last", "default_hooks.logger.interval"), _log_short_runs
    ),
    Pass("optim_wrapper.accumulative_counts", ("default_hooks.checkpoint.interval",), _save_whole_steps),
    Pass("--fresh", ("default_hooks.exact_load*",), _keep_fresh),
    # The last: the config without it starts the same training anew.
    Pass("--resume", ("resume", "load_from", "default_hooks.*.fresh*", "custom_hooks.*.fresh*"), _resume),
)
