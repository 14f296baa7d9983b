"""What `tools/` call: training, testing and prediction from a config. Each function is one run."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner, find_latest_checkpoint

from vitdense.engine.checkpoints import install_loader
from vitdense.engine.config import ConfigError
from vitdense.engine.preflight import check, leaf_datasets
from vitdense.models import find_model
from vitdense.ops import ops_in_use
from vitdense.weights.errors import CheckpointMismatchError, CheckpointNotFoundError

# Faults a user can fix: their message says all, a stack trace would only hide it.
USER_ERRORS = (
    *(CheckpointMismatchError, CheckpointNotFoundError),  # also raised by tools/verify.py
    *(FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),  # of an output
)
AMP_DTYPES = ("float16", "bfloat16")


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """End the program with exit status 2 and one message where the user can fix the cause.

    These are `USER_ERRORS`, and every `ValueError` that this package itself raises.
    """
    try:
        yield
    except (*USER_ERRORS, ValueError) as error:
        if not (isinstance(error, USER_ERRORS) or _is_ours(error)):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _is_ours(error: BaseException | None) -> bool:
    """Whether an error, or the one it was raised from (mm's registries raise anew), comes from this package's code."""
    while error is not None:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        if Path(raised_in).is_relative_to(Path(__file__).parents[1]):
            return True
        error = error.__cause__ or error.__context__
    return False


def train(cfg: Config, amp: str | None = None, resume: str | None = None, auto_scale_lr: bool = False) -> None:
    """Train, evaluating as the config says.

    Args:
        cfg: From `load_config`.
        amp: Data type of automatic mixed precision, one of `AMP_DTYPES`; None: float32 alone.
        resume: ``'auto'`` continues from the latest checkpoint of the work folder, if any; a path from that one.
        auto_scale_lr: Scale the learning rate by the actual total batch over ``auto_scale_lr.base_batch_size``.

    Raises:
        ConfigError: See `check`.
        CheckpointNotFoundError: The checkpoint to resume from does not exist.
    """
    if amp:
        cfg.optim_wrapper.update(type="AmpOptimWrapper", dtype=amp)
        if amp == "bfloat16":  # has the range of float32, so that no gradient underflows
            cfg.optim_wrapper.loss_scale = dict(enabled=False)
        else:
            cfg.optim_wrapper.setdefault("loss_scale", "dynamic")
    if auto_scale_lr:
        cfg.merge_from_dict({"auto_scale_lr.enable": True})  # mmengine checks the rest
    if resume == "auto":
        resume = latest_checkpoint(Path(cfg.work_dir))
        if resume is None:
            print_log(f"no checkpoint in {cfg.work_dir} to resume from: training starts anew", level=logging.WARNING)
    if resume is not None:
        cfg.resume, cfg.load_from = True, find_checkpoint(resume)
    check(cfg, ("train", "val") if cfg.get("val_cfg") else ("train",))
    _runner(cfg).train()


def test(cfg: Config, checkpoint: str, tta: bool = False) -> dict[str, float]:  # noqa: PT028  no test of pytest
    """Evaluate a checkpoint on the test data of a config.

    Args:
        cfg: From `load_config`.
        checkpoint: See `find_checkpoint`.
        tta: Test-time augmentation: ``tta_pipeline`` varies every image, ``tta_model`` merges the predictions.

    Raises:
        ConfigError: See `check`; or `tta`, and the config has no ``tta_pipeline`` or ``tta_model``.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: It is not a checkpoint of this model.
    """
    cfg.load_from = find_checkpoint(checkpoint)
    check(cfg, ("test",))
    if tta:
        _augment_tests(cfg)
    return {name: float(value) for name, value in _runner(cfg).test().items()}  # mmseg's are of numpy


def _augment_tests(cfg: Config) -> None:
    """Wrap the model of a config for test-time augmentation, and give its test data the pipeline for that."""
    if absent := [key for key in ("tta_pipeline", "tta_model") if not cfg.get(key)]:
        raise ConfigError(
            f"--tta: the config has no {' and no '.join(absent)}; configs/_base_/seg_data.py has both, for a segmentor"
        )
    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline
    cfg.model = dict(cfg.tta_model, module=cfg.model)


def _runner(cfg: Config) -> Runner:
    """mmengine's runner of a config; its log says which ops are in use."""
    model = cfg.model.get("module", cfg.model)  # of test-time augmentation
    if cfg.get("load_from") and "backbone" in model:
        model.backbone.init_cfg = None  # the checkpoint holds the backbone too: do not fetch its pretraining
    install_loader()  # for configs without ExactLoadHook; a hook of the config calls it again, with its own options
    runner = Runner.from_cfg(cfg)
    runner.logger.info("mmcv ops in use: {} ({})".format(*ops_in_use()))
    return runner


def latest_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint of a work folder, or None. mmengine's own note of it may be cut off by a kill."""
    noted = find_latest_checkpoint(folder)
    if noted and Path(noted).is_file():
        return noted
    saved = [path for kind in ("iter", "epoch") for path in folder.glob(f"{kind}_*.pth")]
    return str(max(saved, key=lambda path: path.stat().st_mtime)) if saved else None


def find_checkpoint(checkpoint: str) -> str:
    """The path of a checkpoint file, or of the latest one in a work folder; addresses and named weights pass through.

    Raises:
        CheckpointNotFoundError: It is neither, or the folder holds none.
    """
    path = Path(checkpoint)
    if "://" in checkpoint or (find_model(checkpoint) is not None and not path.exists()):
        return checkpoint
    latest = latest_checkpoint(path) if path.is_dir() else checkpoint
    if latest is None or not Path(latest).is_file():
        raise CheckpointNotFoundError(
            f"checkpoint {latest or checkpoint} is not there; train one with tools/train.py, or give the path of a "
            f"checkpoint or of a work folder that holds one"
        )
    return latest
