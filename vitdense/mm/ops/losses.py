"""Focal loss. N anchors, C classes."""

import torch
from torch import Tensor

from vitdense.mm.ops.dtypes import widen

FLT_MIN = torch.finfo(torch.float32).tiny  # smallest probability in the compiled losses, for every dtype


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (Lin et al. 2017, eq. 5) of logits [N, C] for targets [N] in [0, C] -> output [N, C].

    Target C is background; weight: class weights [C], or empty.
    """
    _, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    output.copy_(-balance * wrong**gamma * right.clamp(min=FLT_MIN).log())


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fill grad_input [N, C] with the derivative of `sigmoid_focal_loss_forward` (Lin et al. 2017, appendix B)."""
    sign, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    slope = wrong - gamma * right * right.clamp(min=FLT_MIN).log()
    grad_input.copy_(-balance * sign * wrong**gamma * slope)


def _sigmoid_parts(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, ...]:
    """Per logit [N, C]: sign (+1 target class, -1 others), probabilities of right and wrong, and weight."""
    logits, weight = widen(input, weight)
    own = target[:, None] == torch.arange(logits.shape[1], device=logits.device)
    sign = torch.where(own, 1.0, -1.0).to(logits)
    balance = torch.where(own, alpha, 1 - alpha).to(logits)
    if weight.numel():
        # Background has no class weight and gets 1. The compiled op reads out of bounds there.
        known = (target >= 0) & (target < len(weight))
        balance = balance * torch.where(known, weight[target.where(known, 0)], 1.0)[:, None]
    return sign, torch.sigmoid(sign * logits), torch.sigmoid(-sign * logits), balance
