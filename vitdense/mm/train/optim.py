"""Optimisation: layer-wise learning-rate decay for our backbones, training in bfloat16, and EoMT's schedule."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from mmengine.logging import MMLogger
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.runner.amp import autocast
from torch import nn

from vitdense.errors import OptionError
from vitdense.layers.mask_attention import POWER
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, PARAM_SCHEDULERS
from vitdense.models.base import Backbone


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """Automatic mixed precision in bfloat16, on a GPU or a CPU; mmengine's `AmpOptimWrapper` needs a GPU.

    The loss is not scaled: bfloat16 has the range of float32, so gradients do not underflow.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), autocast(dtype=torch.bfloat16):
            yield


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor with layer-wise learning-rate decay. It logs one table, not a line per parameter.

    The formula is detectron2's for ViTDet. With L blocks, the stem gets ``rate ** (L + 1)`` of the learning rate and
    block i, counted from 0, ``rate ** (L - i)``. Everything else (output norms, necks, heads) gets the full rate. The
    factors of ``paramwise_cfg=dict(custom_keys=..., norm_decay_mult=...)`` are multiplied in. Frozen parameters are
    left out.

    Args:
        optim_wrapper_cfg: See the default constructor.
        paramwise_cfg: The default constructor's, and `layer_decay_rate` in (0, 1], default 1. Below 1, the optimiser
            needs an `lr`, and the model a trunk of this project.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        options = dict(paramwise_cfg or {})
        self.rate = options.pop("layer_decay_rate", 1.0)
        if not 0 < self.rate <= 1:
            raise OptionError(f"layer_decay_rate: got {self.rate!r}, expected a number in (0, 1]; 1 is no decay")
        # Without any option the default constructor does not call add_params.
        super().__init__(optim_wrapper_cfg, {"bypass_duplicate": True, **options})
        if self.rate < 1 and self.base_lr is None:
            raise OptionError(f"layer_decay_rate: got {self.rate} for an optimiser without lr; set optimizer.lr")

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = "", **kwargs) -> None:
        """Add the parameter groups of a model. The default constructor also calls this for every sub-module."""
        if prefix:
            super().add_params(params, module, prefix, **kwargs)
            return
        logger = MMLogger.get_current_instance()
        level = logger.level
        logger.setLevel(logging.ERROR)  # no line per parameter
        try:
            per_parameter: list[dict] = []
            super().add_params(per_parameter, module, prefix, **kwargs)
        finally:
            logger.setLevel(level)
        parts = {id(parameter): name.partition(".")[0] for name, parameter in module.named_parameters()}
        layers = self.layer_factors(module)
        merged: dict[tuple, dict] = {}
        for group in per_parameter:
            (parameter,) = group["params"]
            layer, factor = layers.get(id(parameter), ("", 1.0))
            # lr and weight_decay include the factors of custom keys.
            options = {key: value for key, value in group.items() if key not in ("params", "lr_mult", "decay_mult")}
            options["part"] = f"{parts[id(parameter)]} {layer}".rstrip()
            if self.base_lr is not None:
                options["lr"] = group.get("lr", self.base_lr) * factor
            merged_group = merged.setdefault(repr(sorted(options.items())), {**options, "params": []})
            merged_group["params"].append(parameter)
        params.extend(merged.values())
        logger.info(f"parameters of the optimiser:\n{table(params, self.base_lr, self.base_wd)}")

    def layer_factors(self, model: nn.Module) -> dict[int, tuple[str, float]]:
        return layer_factors(model, self.rate)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class EoMTOptimWrapperConstructor(LayerDecayOptimWrapperConstructor):
    """The layer-wise decay of EoMT's authors: the last block has the full learning rate, the stem the rate of block 0.

    Args:
        optim_wrapper_cfg, paramwise_cfg: See the base, plus `num_full_blocks`, the number of last blocks without decay
            (default 0; for DINOv3 the blocks in which queries take part).
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        options = dict(paramwise_cfg or {})
        self.num_full_blocks = options.pop("num_full_blocks", 0)
        super().__init__(optim_wrapper_cfg, options)

    def layer_factors(self, model: nn.Module) -> dict[int, tuple[str, float]]:
        factors = layer_factors(model, self.rate)
        depth = len(model.backbone.layers()) - 1
        decayed = {"stem": depth - 1, **{f"block {i}": depth - 1 - i for i in range(depth - self.num_full_blocks)}}
        return {key: (layer, self.rate ** decayed.get(layer, 0)) for key, (layer, _) in factors.items()}


def layer_factors(model: nn.Module, rate: float) -> dict[int, tuple[str, float]]:
    """``id(parameter)`` -> layer name and learning-rate factor, for a backbone's layers; empty for a `rate` of 1.

    Below 1, a model without a backbone of this project is an OptionError.
    """
    if rate == 1:
        return {}
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    if not backbones:
        raise OptionError(f"layer_decay_rate: got {rate} for a model without a backbone of vitdense; leave it out")
    factors = {}
    for backbone in backbones:
        layers = backbone.layers()
        for i, modules in enumerate(layers):
            layer = "stem" if i == 0 else f"block {i - 1}", rate ** (len(layers) - i)
            factors.update({id(parameter): layer for part in modules for parameter in part.parameters()})
    return factors


def table(groups: Sequence[dict], base_lr: float | None, base_wd: float | None) -> str:
    def product(value: float | None, base: float | None) -> str:
        return f"{value:.3g} (x {value / base:.3g})" if base else "-"

    lines = [f"{'part':20} {'lr':>20} {'weight decay':>20} {'tensors':>8} {'params (M)':>11}"]
    for group in groups:
        rate, decay = product(group.get("lr"), base_lr), product(group.get("weight_decay", base_wd), base_wd)
        count = sum(parameter.numel() for parameter in group["params"])
        lines.append(f"{group['part']:20} {rate:>20} {decay:>20} {len(group['params']):8} {count / 1e6:11.3f}")
    return "\n".join(lines)


def two_warmups(step: int, is_trunk: bool, warmups: tuple[int, int], end: int) -> float:
    """Factor of a learning rate at a step, counted from 0, of `end`; see `TwoWarmupsLR`."""
    start, length = (warmups[0], warmups[1]) if is_trunk else (0, warmups[0])
    if step < start + length:
        return max(step - start, 0) / length
    return max(1 - (step - start - length) / (end - start - length), 0.0) ** POWER


@PARAM_SCHEDULERS.register_module()
class TwoWarmupsLR(_ParamScheduler):
    """The schedule of EoMT's authors, by iterations, for groups of `LayerDecayOptimWrapperConstructor`.

    New parameters warm up linearly during the first of `warmups`. The trunk has factor 0 in this time, and warms up
    during the second. Each factor then falls to 0 by a polynomial of power 0.9.

    Args:
        warmups: Steps of the first and of the second warm-up.
        end: Steps of the training.
        by_epoch: Must be False.
    """

    def __init__(self, optimizer, warmups: tuple[int, int], end: int, by_epoch: bool = False) -> None:
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
        super().__init__(optimizer, "lr", by_epoch=by_epoch)

    def _get_value(self) -> list[float]:
        groups = zip(self.base_values, self.optimizer.param_groups)  # mmengine adds one more for its log
        return [
            value * two_warmups(self.last_step, group.get("part", "").startswith("backbone"), self.warmups, self.last)
            for value, group in groups
        ]
