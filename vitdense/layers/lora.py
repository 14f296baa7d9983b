"""LoRA: low-rank updates of linear layers, while other weights of a trunk are frozen (Hu et al., ICLR 2022)."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.layout import compute_dtype

ATTENTION = "(?:attn|attention)"  # name of attention: ours and timm's, and transformers'


@dataclass(frozen=True)
class LoRA:
    """Options of ``finetune=dict(type='lora', ...)``."""

    rank: int = 8  # of an update
    alpha: float = 16.0  # an update is multiplied by alpha / rank
    # Names of linear layers in attention (qkv, proj) and MLPs (fc1, fc2; w12, w3 in SwiGLU).
    targets: tuple[str, ...] = ("qkv", "proj")


class LowRankUpdate(nn.Module):
    """``B A x * alpha / rank`` (section 4.1); initially zero, because B is zero."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, layer.in_features))
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.alpha = alpha
        self.register_buffer("scale", torch.tensor(alpha / rank))  # so that a checkpoint can be merged without a config
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        nn.init.zeros_(self.B)
        nn.init.constant_(self.scale, self.alpha / len(self.A))

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Add the update for ``x``, ``[..., C]``, to the layer's output, ``[..., C']``."""
        low = F.linear(x, self.A) * self.scale  # [..., rank]
        return torch.addmm(out.flatten(0, -2), low.flatten(0, -2), self.B.mT).view(out.shape)  # [..., C']


def _cast_input(layer: nn.Linear, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook: casts the map once; autocast would cast it for the layer, and again for its update."""
    x, *others = args
    return x.to(compute_dtype(x)), *others


def _add_update(layer: nn.Linear, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """Forward hook that adds the update, so that the linear layer keeps its class and the name of its weight."""
    return layer.lora(args[0], out)


def add_lora(modules: Iterable[tuple[str, nn.Module]], config: LoRA) -> None:
    """Add an update to every linear layer of `config.targets` in `modules`, the trainable parts of a model by name.

    A rank below 1, or a target that is not a linear layer of attention or MLPs, is refused.
    """
    if config.rank < 1:
        raise OptionError(f"finetune: got rank={config.rank} for LoRA, expected at least 1")
    modules = [(name, module) for name, module in modules if isinstance(module, nn.Linear)]
    part = rf".+\.(?:{ATTENTION}|mlp)\d*\.(?:\w+\.)*"
    for target in config.targets:
        layers = [layer for name, layer in modules if re.fullmatch(rf"{part}{target}", name)]
        if not layers:
            known = dict.fromkeys(re.findall(rf"^{part}(\w+)$", "\n".join(n for n, _ in modules), re.M))
            raise OptionError(
                f"finetune: got targets={config.targets} for LoRA, but no attention and no MLP that trains has a "
                f"linear layer {target!r}; expected some of: {', '.join(known) or 'none, there is no linear layer'}"
            )
        for layer in layers:
            layer.lora = LowRankUpdate(layer, config.rank, config.alpha)
            layer.register_forward_pre_hook(_cast_input)
            layer.register_forward_hook(_add_update)


def merge_lora(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with every update added to its weight (section 4.1).

    The sum is rounded once to the dtype of the weight. Other tensors are the same objects.
    """
    merged = {key: value for key, value in state.items() if ".lora." not in key}
    for key in (key.removesuffix("lora.A") for key in state if key.endswith(".lora.A")):
        a, b, scale = (state[f"{key}lora.{part}"].double() for part in ("A", "B", "scale"))
        weight = merged[f"{key}weight"]
        merged[f"{key}weight"] = (weight.double() + scale * (b @ a)).to(weight.dtype)
    return merged
