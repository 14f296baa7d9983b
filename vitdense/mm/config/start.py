"""Passes for what a run starts from: work folder, checkpoint, order of classes, weights not to load."""

import json
from hashlib import sha256
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict

import vitdense
from vitdense.files import sha256_of
from vitdense.mm.checkpoints import REST, is_checkpoint, read_checkpoint
from vitdense.mm.config.base import Asked
from vitdense.mm.config.classes import follow_checkpoint, follow_points
from vitdense.mm.config.diff import check_task
from vitdense.mm.config.files import named_files
from vitdense.mm.config.query import drop_weights, hooks, model_classes
from vitdense.mm.data.classes import classes_of, difference, meta_of
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import agree
from vitdense.mm.work_folder import WorkFolder


def check_folder(cfg: Config, asked: Asked) -> None:
    """Refuse a work folder where checkpoints of another training, or a file of the user, would be replaced."""
    if asked.overwrite is None:
        return
    folder = WorkFolder(cfg.work_dir)
    if folder.checkpoints and asked.resume is None and not asked.overwrite:
        raise ConfigError(
            f"{folder.path} has checkpoints of a training, up to {(folder.latest or folder.checkpoints[-1]).name}; "
            f"--resume goes on with it, --overwrite starts anew, --work-dir names another folder"
        )
    folder.check_config(cfg)
    if asked.overwrite:
        folder.check_replaceable(named_files(cfg))


def agree_on(cfg: Config, asked: Asked) -> None:
    """Raise unless all processes have the same config, checkpoint and versions; see `agree`."""
    config = {key: value for key, value in cfg.to_dict().items() if key not in ("work_dir", "load_from")}
    facts = {
        "checkpoint": "none",
        "versions": f"vitdense {vitdense.__version__}, torch {torch.__version__}",
        "config": sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12],
    }
    if (saved := cfg.get("load_from")) and is_checkpoint(Path(saved)):
        file = Path(saved) if Path(saved).is_file() else Path(saved, REST)  # has the digests of all parts
        facts["checkpoint"] = f"{Path(saved).name} (SHA-256 {sha256_of(file)[:12]})"
    agree(facts)


def keep_fresh(cfg: Config, asked: Asked) -> None:
    """Name parameters that keep their initial values when `load_from` is loaded; see `ExactLoadHook`."""
    if asked.fresh and asked.resume is None:
        if not cfg.get("load_from"):
            got = "got a config without load_from, whose parameters it leaves out"
            raise ConfigError(f"--fresh: {got}; name the checkpoint: --cfg-options load_from=FILE.pth")
        kept = cfg.setdefault("default_hooks", ConfigDict())
        kept.exact_load = {"type": "vitdense.ExactLoadHook", **kept.get("exact_load", {}), "fresh": list(asked.fresh)}


def resume(cfg: Config, asked: Asked) -> None:
    if asked.resume is not None:
        _load_whole(cfg, asked.resume, True)


def load_tested(cfg: Config, asked: Asked) -> None:
    """Load the checkpoint to test. For an exported file see `vitdense.mm.config.model.test_exported`."""
    if asked.exported and (asked.tta or asked.inference.tiles or asked.inference.amp != "float32"):
        raise ConfigError(f"{asked.exported}: got --tta, --tiles or --amp too, expected none with an exported file")
    _load_whole(cfg, None if asked.exported else asked.checkpoint, False)


def _load_whole(cfg: Config, checkpoint: str | None, goes_on: bool) -> None:
    cfg.load_from, cfg.resume = checkpoint, goes_on
    for _, hook in hooks(cfg):
        hook.pop("fresh", None)  # only for the start of a training


def follow_outputs(cfg: Config, asked: Asked) -> None:
    """Order the classes as in the checkpoint to load, if it is on this machine or an exported file."""
    saved, options = cfg.get("load_from"), [hook for _, hook in hooks(cfg)]
    if asked.exported:
        from vitdense.mm.heads.exported import open_program  # also registers a model

        names = open_program(asked.exported).names
        follow_checkpoint(cfg, asked.exported, names)
        if fault := difference(names, model_classes(cfg)):
            raise ConfigError(f"{asked.exported}: {fault}")
    elif saved and is_checkpoint(Path(saved)):
        file = str(saved if Path(saved).is_file() else Path(saved, REST))
        content = read_checkpoint(file, "meta", any(hook.get("allow_pickle") for hook in options))
        is_fresh = any(hook.get("fresh") for hook in options)
        if not is_fresh:
            check_task(content, cfg, file)
        follow_checkpoint(cfg, file, classes_of(content), is_fresh)
        if (points := meta_of(content).get("keypoints")) and not is_fresh:
            try:
                follow_points(cfg, points)
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}") from error


def drop_weights_of_start(cfg: Config, asked: Asked) -> None:
    if asked.checkpoint or cfg.get("load_from"):
        drop_weights(cfg.model)
