"""What `tools/` call: training, testing and prediction from a config. Each function is one run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner, find_latest_checkpoint

from vitdense.engine.config import ConfigError
from vitdense.engine.preflight import check
from vitdense.weights.load import CheckpointNotFoundError
from vitdense.weights.rename import CheckpointMismatchError

# Faults a user can mend: their message says all, a stack trace would only hide it.
USER_ERRORS = (ConfigError, CheckpointMismatchError, CheckpointNotFoundError)


@contextmanager
def clear_errors() -> Iterator[None]:
    """End the program with exit status 2 and one message where the user can mend the cause."""
    try:
        yield
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def train(cfg: Config, amp: bool = False, resume: str | None = None, auto_scale_lr: bool = False) -> None:
    """Train, evaluating as the config says.

    Args:
        cfg: From `load_config`.
        amp: Automatic mixed precision.
        resume: ``'auto'`` continues from the latest checkpoint of the work folder, if any; a path from that one.
        auto_scale_lr: Scale the learning rate by the actual total batch over ``auto_scale_lr.base_batch_size``.

    Raises:
        ConfigError: See `check`; or an option that the config does not provide for.
        CheckpointNotFoundError: The checkpoint to resume from does not exist.
    """
    if get_device() == "cpu":
        # mmengine asserts both, deep in the start, without a word on what to do.
        for asked, flag in ((amp, "--amp"), (cfg.launcher != "none", f"--launcher {cfg.launcher}")):
            if asked:
                raise ConfigError(f"{flag} needs a GPU, and torch sees none; leave it out to train in one process")
    if amp:
        cfg.optim_wrapper.type = "AmpOptimWrapper"
        cfg.optim_wrapper.setdefault("loss_scale", "dynamic")
    if auto_scale_lr:
        if "base_batch_size" not in cfg.get("auto_scale_lr", {}):
            raise ConfigError(
                "--auto-scale-lr: the config has no auto_scale_lr.base_batch_size; add it, or drop the flag"
            )
        cfg.auto_scale_lr.enable = True
    if resume == "auto":
        resume = find_latest_checkpoint(cfg.work_dir)
    if resume is not None:
        cfg.resume, cfg.load_from = True, find_checkpoint(resume)
    if cfg.get("load_from"):
        # The checkpoint holds the backbone too; fetching its pretraining would be wasted.
        cfg.model.backbone.init_cfg = None
    check(cfg, ("train", "val") if cfg.get("val_cfg") else ("train",))
    Runner.from_cfg(cfg).train()


def test(cfg: Config, checkpoint: str) -> dict[str, float]:
    """Evaluate a checkpoint on the test data of a config.

    Raises:
        ConfigError: See `check`.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: It is not a checkpoint of this model.
    """
    cfg.load_from = find_checkpoint(checkpoint)
    cfg.model.backbone.init_cfg = None
    check(cfg, ("test",))
    return Runner.from_cfg(cfg).test()


def find_checkpoint(checkpoint: str) -> str:
    """The path of a checkpoint file, or of the latest checkpoint in a work folder; addresses pass through.

    Raises:
        CheckpointNotFoundError: It is neither, or the folder holds none.
    """
    if "://" in checkpoint:
        return checkpoint
    path = Path(checkpoint)
    latest = find_latest_checkpoint(path) if path.is_dir() else checkpoint
    if latest is None or not Path(latest).is_file():
        raise CheckpointNotFoundError(
            f"checkpoint {latest or checkpoint} is not there; train one with tools/train.py, or give the path of a "
            f"checkpoint or of a work folder that holds one"
        )
    return latest
