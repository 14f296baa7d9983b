"""What a run starts from: a checkpoint, its classes, the weights that it replaces."""

from pathlib import Path

from mmengine.config import Config, ConfigDict

from vitdense.mm.checkpoints import REST, is_checkpoint, read_checkpoint
from vitdense.mm.config.base import Asked
from vitdense.mm.config.classes import follow_checkpoint, model_classes
from vitdense.mm.config.query import drop_weights, hooks
from vitdense.mm.data.classes import classes_of, difference
from vitdense.mm.errors import ConfigError


def keep_fresh(cfg: Config, asked: Asked) -> None:
    """Parameters of `load_from` that keep their initial values; see `ExactLoadHook`."""
    if asked.fresh and asked.resume is None:
        kept = cfg.setdefault("default_hooks", ConfigDict())
        kept.exact_load = {"type": "vitdense.ExactLoadHook", **kept.get("exact_load", {}), "fresh": list(asked.fresh)}


def resume(cfg: Config, asked: Asked) -> None:
    """Go on with the training of a checkpoint."""
    if asked.resume is not None:
        cfg.resume, cfg.load_from = True, asked.resume
        _load_everything(cfg)


def load_tested(cfg: Config, asked: Asked) -> None:
    """Load a checkpoint to test; an exported file is the model itself, see `vitdense.mm.config.model.test_exported`.

    Raises:
        ConfigError: An exported file is to be augmented, tiled or cast.
    """
    if asked.exported and (asked.tta or asked.inference.tiles or asked.inference.amp != "float32"):
        raise ConfigError(f"{asked.exported}: got --tta, --tiles or --amp too, expected none with an exported file")
    cfg.pop("shard", None)
    cfg.load_from, cfg.resume = None if asked.exported else asked.checkpoint, False
    _load_everything(cfg)


def _load_everything(cfg: Config) -> None:
    """Take `fresh` out of the hooks: it is for the start of a training."""
    for _, hook in hooks(cfg):
        hook.pop("fresh", None)


def follow_outputs(cfg: Config, asked: Asked) -> None:
    """The order of the classes is that of the checkpoint to load, where it is a file of this machine, or exported.

    Raises:
        ConfigError: Its classes are others.
    """
    saved, options = Path(cfg.get("load_from") or ""), [hook for _, hook in hooks(cfg)]
    if asked.exported:
        from vitdense.mm.heads.exported import open_program  # which registers a model

        names = open_program(asked.exported).names
        follow_checkpoint(cfg, asked.exported, names)
        if fault := difference(names, model_classes(cfg)):
            raise ConfigError(f"{asked.exported}: {fault}")
    elif is_checkpoint(saved):
        file = str(saved if saved.is_file() else saved / REST)
        content = read_checkpoint(file, "meta", any(hook.get("allow_pickle") for hook in options))
        follow_checkpoint(cfg, file, classes_of(content), any(hook.get("fresh") for hook in options))


def drop_weights_of_start(cfg: Config, asked: Asked) -> None:
    """Do not load what the checkpoint of the whole model replaces."""
    if asked.checkpoint or cfg.get("load_from"):
        drop_weights(cfg.model)
