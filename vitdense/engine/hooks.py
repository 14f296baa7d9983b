"""Hooks of the training loop."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import get_rank, master_only
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper

from vitdense.engine.checkpoints import install_loader
from vitdense.files import atomic_write
from vitdense.registry import HOOKS
from vitdense.weights.load import LoadReport, fit_whole


def seed_everything(*keys: int) -> None:
    """Seed Python, numpy and torch from a tuple of non-negative ints; different tuples give unrelated streams."""
    seed = int(np.random.SeedSequence(keys).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@HOOKS.register_module()
class ReproducibleHook(Hook):
    """Make the randomness of a training step depend on the seed, the rank and the iteration alone.

    A run that is killed and resumed then draws what an uninterrupted one would have drawn: drop path, sampled
    RoIs, and with `SeededInfiniteSampler` or `SeededEpochSampler` and `SeedFromSample` the augmentation too. No
    generator state has to be saved. Exact from the checkpoints of an iteration-based loop, and from those at the end
    of an epoch of an epoch-based one; ``randomness=dict(seed=...)`` must be set, and the device deterministic.
    """

    priority = "VERY_HIGH"

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        seed_everything(runner.seed, get_rank(), runner.iter)


@HOOKS.register_module()
class ExactLoadHook(Hook):
    """Load a checkpoint (`load_from`, resume, test) exactly or refuse it, and keep the report of what was loaded.

    mmengine only logs missing keys and size mismatches, and goes on with random weights. Whole detectors and segmentors
    of mmdet and mmseg load as well: their backbone's names become ours. The reports of this and of the backbone's
    `init_cfg` are written to ``load_report.txt``, in the folder of the log.

    Making this hook also calls `vitdense.engine.checkpoints.install_loader`: from then on mmengine reads every
    checkpoint of the process without running code from it. A Runner makes its hooks in its constructor, before it
    loads or resumes.

    Args:
        fresh: Regular expressions of parameters that may be missing, unexpected or of a mismatching size, such as
            ``r'roi_head\\.bbox_head\\..*fc_(cls|reg)\\..*'`` to fine-tune on other classes. They are kept at
            initialisation.
        allow_pickle: Run the code that a checkpoint asks for, as mmengine itself does. A run whose message hub holds
            objects of other than mmengine's classes needs it to be resumed. Only for files whose author you trust.

    Raises:
        CheckpointMismatchError: On loading: other keys are missing, unexpected, of a mismatching size or not finite; or
            the file would run code.
    """

    priority = "VERY_HIGH"  # before hooks that take the checkpoint as it is, such as that of the moving average

    def __init__(self, fresh: Sequence[str] = (), allow_pickle: bool = False) -> None:
        self.fresh = tuple(fresh)
        self.reports: list[LoadReport] = []
        install_loader(allow_pickle)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if isinstance(model, BaseTTAModel):
            model = model.module  # as mmengine does: checkpoints know nothing of test-time augmentation
        # mmengine loads the dict's entry after this hook, so the fitted weights replace the file's there.
        checkpoint["state_dict"], report = fit_whole(
            model, checkpoint, self.fresh, source=str(runner._load_from or "checkpoint")
        )
        runner.logger.info(f"{type(model).__name__}: {report}")
        self.reports.append(report)

    @master_only
    def before_train(self, runner) -> None:
        reports = [module.load_report for module in runner.model.modules() if getattr(module, "load_report", None)]
        if reports := [*reports, *self.reports]:
            with atomic_write(Path(runner.log_dir) / "load_report.txt") as scratch:
                scratch.write_text("\n".join(report.details() for report in reports) + "\n")

    before_val = before_test = before_train
