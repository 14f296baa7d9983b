"""Hooks of the training loop."""

import random
from collections.abc import Sequence

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from vitdense.registry import HOOKS
from vitdense.weights.load import match_exactly


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
    """Refuse a checkpoint (`load_from`, resume, test) that does not fill the model exactly.

    mmengine only logs missing keys and other shapes, and goes on with random weights.

    Args:
        fresh: Regular expressions of parameters that may be absent or of another shape in the checkpoint, such as
            ``r'roi_head\\.bbox_head\\..*fc_(cls|reg)\\..*'`` to fine-tune on other classes. They keep their fresh
            weights.

    Raises:
        CheckpointMismatchError: Anything else is missing, left over or of another shape.
    """

    def __init__(self, fresh: Sequence[str] = ()) -> None:
        self.fresh = tuple(fresh)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        match_exactly(model, checkpoint.get("state_dict", checkpoint), self.fresh)
