"""Passes for the name, precision, processes, data loaders, hooks and checkpoints of a run."""

import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS

from vitdense.families import arguments, is_whole
from vitdense.mm.config.base import OF_WORKERS, Asked
from vitdense.mm.config.query import SPLITS, as_list, find_class, hooks, nodes, type_name
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import check_precision
from vitdense.mm.work_folder import CHECKPOINT, WorkFolder

_runs = count(1)
AMP_REPLACES = ("OptimWrapper", "AmpOptimWrapper", "vitdense.Bfloat16OptimWrapper")
OWN_DEFAULTS = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")  # mmengine's
GUARD = "vitdense.GuardModelHook"
OWN_READERS = {"mmcv.LoadImageFromFile": "vitdense.LoadImage", "mmseg.LoadAnnotations": "vitdense.LoadAnnotations"}


def drop_worker_keys(cfg: Config, asked: Asked) -> None:
    """Drop `OF_WORKERS` from data loaders without workers."""
    for loader in filter(None, (cfg.get(f"{split}_dataloader") for split in SPLITS)):
        for key in OF_WORKERS:
            if loader.get(key) and not loader.get("num_workers"):
                del loader[key]


def own_readers(cfg: Config, keys: Sequence[str]) -> None:
    """Read images and label maps by `OWN_READERS`, whose errors name the file.

    Test data keep mm's readers in the saved config, because mm's inferencers look for them.
    """
    names = {name.partition(".")[2] for name in OWN_READERS}
    for step in (step for key in keys for step in nodes(cfg.get(key)) if type_name(step) in names):
        package = getattr(find_class(TRANSFORMS, step["type"], cfg), "__module__", "").partition(".")[0]
        own = OWN_READERS.get(f"{package}.{type_name(step)}")
        if own and step.keys() <= {"type", *arguments(TRANSFORMS.get(own))}:
            step["type"] = own


def leave_out_hooks(cfg: Config, asked: Asked) -> None:
    """Leave out hooks that are None; mmengine does so only for its own default hooks."""
    for name, hook in list((cfg.get("default_hooks") or {}).items()):
        if hook is None and name not in OWN_DEFAULTS:
            del cfg.default_hooks[name]


def name_run(cfg: Config, asked: Asked) -> None:
    """Set the launcher and the work folder: as given, the folder that the config lies in, or by the config's name."""
    cfg.launcher = asked.launcher
    file = Path(cfg.filename)
    if WorkFolder(file.parent).is_of(file) and "work_dir" not in cfg.given:  # the folder may be a copy
        cfg.work_dir = str(file.parent)
    cfg.work_dir = asked.work_dir or cfg.get("work_dir") or str(Path("work_dirs") / file.stem)


def name_test(cfg: Config, asked: Asked) -> None:
    """Give a test its own folder in the work folder, whose config and log are the training's."""
    getattr(cfg, "given", {}).pop("work_dir", None)
    cfg.work_dir = str(Path(cfg.work_dir, "test"))


def train_in(cfg: Config, asked: Asked) -> None:
    """Train with automatic mixed precision; in float16 with mmengine's loss scaling."""
    wrapper, amp = cfg.optim_wrapper, asked.amp
    if not amp:
        return
    check_precision(f"--amp {amp}", amp, get_device())
    if wrapper.get("type") not in (None, *AMP_REPLACES):
        raise ConfigError(f"--amp {amp}: got optim_wrapper.type {wrapper.type} too; leave one of the two out")
    if amp == "float16":
        wrapper.update(type="AmpOptimWrapper", dtype=amp)
        wrapper.setdefault("loss_scale", "dynamic")
        return
    for option in ("dtype", "loss_scale"):  # from a config with mmengine's AMP
        wrapper.pop(option, None)
    wrapper.type = "vitdense.Bfloat16OptimWrapper"


def test_in(cfg: Config, asked: Asked) -> None:
    """Let the test loop keep the precision of the context around it; mmengine's would switch autocast off."""
    if asked.inference.amp != "float32":
        cfg.test_cfg.fp16 = True


def share_batch(cfg: Config, asked: Asked) -> None:
    """Set the images per process to its share of ``settings.total_batch_size``, which accumulated iterations divide."""
    total = cfg.get("settings", {}).get("total_batch_size")
    counts = (cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
    if total is None or not is_whole(counts):
        return  # the checks report wrong counts
    if total % (shares := get_world_size() * counts):
        raise ConfigError(
            f"settings.total_batch_size (--total-batch-size): got {total}, expected a multiple of {shares}: "
            f"{get_world_size()} processes with {counts} iterations a step; give another number of images or processes"
        )
    cfg.train_dataloader.batch_size = total // shares


def scale_rate(cfg: Config, asked: Asked) -> None:
    """Let mmengine scale the learning rate by the images per step."""
    if asked.auto_scale_lr:
        if not (cfg.get("auto_scale_lr") or {}).get("base_batch_size"):
            raise ConfigError(
                "--auto-scale-lr: the config does not say how many images a step its learning rate is for; set it: "
                "--cfg-options auto_scale_lr.base_batch_size=16"
            )
        cfg.merge_from_dict({"auto_scale_lr.enable": True})


def log_short_runs(cfg: Config, asked: Asked) -> None:
    """Log every iteration of a run that is shorter than the log interval, and the last one of every epoch."""
    if logger := (cfg.get("default_hooks") or {}).get("logger"):
        logger.setdefault("ignore_last", False)
        is_short = cfg.train_cfg.get("max_iters", math.inf) < logger.get("interval", 10)
        if is_short and "default_hooks.logger.interval" not in getattr(cfg, "given", ()):
            logger.interval = 1


def save_whole_steps(cfg: Config, asked: Asked) -> None:
    """Save checkpoints only after whole steps of accumulated gradients."""
    saves, counts = (cfg.get("default_hooks") or {}).get("checkpoint"), cfg.optim_wrapper.get("accumulative_counts", 1)
    if not is_whole(counts):
        return  # the checks report it
    if saves and not saves.get("by_epoch", True) and (rest := saves.get("interval", 1) % counts):
        saves.interval += counts - rest
        print_log(f"checkpoints every {saves.interval} iterations, for {counts} make a step", logger="current")


def check_saves(cfg: Config, asked: Asked) -> None:
    """Raise unless a training saves checkpoints in the places and by the names where they are looked for."""
    saves = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    if saves.get("out_dir"):
        got = f"got {saves['out_dir']}, expected none: checkpoints are in the work folder"
        raise ConfigError(f"default_hooks.checkpoint.out_dir: {got}; --work-dir names another one")
    if not CHECKPOINT.fullmatch(str(saves.get("filename_tmpl") or "iter_{}.pth").format(1)):
        raise ConfigError(
            f"default_hooks.checkpoint.filename_tmpl: got {saves['filename_tmpl']!r}, expected 'iter_{{}}.pth' or "
            f"'epoch_{{}}.pth', by which checkpoints are found"
        )


def wrap_on_cpus(cfg: Config, asked: Asked) -> None:
    """Wrap the model for processes without a GPU: mmengine's wrapper needs one."""
    if cfg.get("launcher", "none") != "none" and get_device() == "cpu":
        options = {"broadcast_buffers": False, "find_unused_parameters": cfg.get("find_unused_parameters", False)}
        given = cfg.get("model_wrapper_cfg") or {}
        cfg.model_wrapper_cfg = {"type": "MMDistributedDataParallel", **options, **given, "device_ids": None}


def add_guard(cfg: Config, asked: Asked) -> None:
    if GUARD not in {hook["type"] for _, hook in hooks(cfg)}:
        cfg.custom_hooks = [*as_list(cfg.get("custom_hooks")), ConfigDict(type=GUARD)]


def name_visualizer(cfg: Config, asked: Asked) -> None:
    """Give the visualizer a unique name: by the name in the config, mmengine would reuse one of an earlier run in the
    process, which writes into that run's folder."""
    if cfg.get("visualizer"):
        cfg.visualizer.name = f"run {next(_runs)} of this process"
