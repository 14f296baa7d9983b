"""Schedules of the mask transformers: when masked attention ends, and two warm-ups."""

from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler

from vitdense.layers.mask_attention import POWER, mask_probability
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import HOOKS, PARAM_SCHEDULERS


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Ends masked attention of EoMT and PMT block after block, so that a trained model needs none (EoMT section 3.3).
    Its probability is a function of the step alone, `mask_probability`: a resumed run goes on as it was.

    Args:
        starts: Of every block, the iteration from which masks become less probable.
        ends: And from which there are none.

    Raises:
        ConfigError: The model has no such head, or one of another number of blocks.
    """

    priority = "HIGH"

    def __init__(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.starts, self.ends = tuple(starts), tuple(ends)
        if len(starts) != len(ends) or any(start >= end for start, end in zip(starts, ends)):
            raise ConfigError(f"starts, ends: got {starts}, {ends}, expected as many, each end after its start")

    def before_train(self, runner) -> None:
        buffers = dict(runner.model.named_buffers())
        self.buffers = [x for name, x in buffers.items() if name.endswith(".mask_probabilities")]
        if not self.buffers or any(len(x) != len(self.starts) for x in self.buffers):
            raise ConfigError(
                f"vitdense.MaskAnnealingHook: got {len(self.starts)} starts, and heads with "
                f"{[len(x) for x in self.buffers]} blocks; give a start and an end for each block of an EoMT or a PMT"
            )

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        for buffer in self.buffers:
            for i, span in enumerate(zip(self.starts, self.ends)):
                buffer[i] = mask_probability(runner.iter, *span)


def two_warmups(step: int, is_trunk: bool, warmups: tuple[int, int], end: int) -> float:
    """Factor of a learning rate at a step: what is new warms up linearly in the first steps, the trunk stays as it is
    and then warms up in the second ones; each then falls to 0 by a polynomial of power 0.9.

    Args:
        step: Counted from 0.
        is_trunk: Whether it is the trunk's.
        warmups: Steps of the first and of the second warm-up.
        end: Steps of the training.
    """
    start, length = (warmups[0], warmups[1]) if is_trunk else (0, warmups[0])
    if step < start + length:
        return max(step - start, 0) / length
    return max(1 - (step - start - length) / (end - start - length), 0.0) ** POWER


@PARAM_SCHEDULERS.register_module()
class TwoWarmupsLR(_ParamScheduler):
    """The schedule of EoMT's authors; see `two_warmups`. It counts iterations.

    The groups of the optimiser are those of `LayerDecayOptimWrapperConstructor`, whose names tell the trunk.

    Args:
        warmups: Steps of the first and of the second warm-up.
        end: Steps of the training.
        by_epoch: As of mmengine's schedulers; it counts iterations alone.
        last_step, verbose: As of mmengine's.
    """

    def __init__(
        self,
        optimizer,
        warmups: tuple[int, int],
        end: int,
        by_epoch: bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        if by_epoch:
            raise ConfigError("vitdense.TwoWarmupsLR: got by_epoch=True, expected False: it counts iterations")
        if not 0 < warmups[0] < sum(warmups) < end:
            raise ConfigError(f"warmups, end: got {warmups}, {end}, expected two numbers of steps, before the end")
        self.warmups, self.last = tuple(warmups), end
        if not any("part" in group for group in optimizer.param_groups):
            raise ConfigError(
                "vitdense.TwoWarmupsLR: the groups of the optimiser do not say their part of the model; set "
                "optim_wrapper.constructor='vitdense.EoMTOptimWrapperConstructor'"
            )
        super().__init__(optimizer, "lr", by_epoch=by_epoch, last_step=last_step, verbose=verbose)

    def _get_value(self) -> list[float]:
        groups = zip(self.base_values, self.optimizer.param_groups)  # mmengine adds one for its log, without a part
        return [
            value * two_warmups(self.last_step, group.get("part", "").startswith("backbone"), self.warmups, self.last)
            for value, group in groups
        ]
