"""Masks predicted by queries among the tokens of a plain ViT (EoMT, PMT); masked attention and its annealing."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import LayerNorm2d
from vitdense.layers.layout import copied

MASK_STRIDE = 4  # pixels
POWER = 0.9  # exponent in EoMT's schedules


class Prediction(NamedTuple):
    """Logits of Q queries.

    Attributes:
        classes: ``[B, Q, classes + 1]``; the last one is "no object".
        masks: ``[B, Q, H/4, W/4]``.
    """

    classes: Tensor
    masks: Tensor


class UpscaleBlock(nn.Module):
    """Doubles the size of a map: transposed convolution, GELU, depthwise 3x3 without a bias, LayerNorm over channels.

    Args:
        dim: Channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
        self.norm = LayerNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, h, w]`` to ``[B, C, 2h, 2w]``."""
        return self.norm(self.conv2(F.gelu(self.conv1(x))))


class MaskPredictor(nn.Module):
    """Classes and masks of queries: a mask is the inner product of a query with the upscaled patches (EoMT, 3.1).

    Args:
        dim: Channels.
        num_queries: Q.
        num_classes: Classes without "no object".
        patch_size: In pixels. The patch is halved until the stride of masks is the smallest of at least 4 pixels.
    """

    def __init__(self, dim: int, num_queries: int, num_classes: int, patch_size: int) -> None:
        super().__init__()
        self.queries = nn.Embedding(num_queries, dim)
        self.class_head = nn.Linear(dim, num_classes + 1)
        self.mask_head = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        levels = max(1, int(math.log2(patch_size / MASK_STRIDE)))
        self.upscale = nn.Sequential(*(UpscaleBlock(dim) for _ in range(levels)))

    def forward(self, x: Tensor, size: tuple[int, int]) -> Prediction:
        """Normalised tokens ``[B, Q + E + h*w, C]`` of a map (h, w)."""
        # A copy: for a slice, a linear layer asks for the batch size, and a program must serve all.
        queries = copied(x[:, : self.queries.num_embeddings])  # [B, Q, C]
        maps = self.upscale(x[:, -size[0] * size[1] :].mT.unflatten(2, size))  # [B, C, H/4, W/4]
        pixels = maps.permute(0, 2, 3, 1).flatten(1, 2)  # [B, H/4*W/4, C]
        masks = torch.bmm(self.mask_head(queries), pixels.mT)  # [B, Q, H/4*W/4]
        return Prediction(self.class_head(queries), masks.unflatten(2, maps.shape[2:]))

    def with_queries(self, x: Tensor) -> Tensor:
        """Tokens ``[B, N, C]`` with the queries before them: ``[B, Q + N, C]``."""
        return torch.cat([self.queries.weight.expand(x.shape[0], -1, -1), x], dim=1)


@torch.no_grad()
def pairs_that_attend(masks: Tensor, size: tuple[int, int], num_tokens: int, probability: Tensor) -> Tensor:
    """The attention mask of masked attention (Mask2Former section 3.2.1, in the form of EoMT section 3.3).

    A masked query attends only to patches where its resized mask logit is above 0. All other pairs attend, so every row
    has a pair.

    Args:
        masks: Logits ``[B, Q, H/4, W/4]``.
        size: Map (h, w) in tokens, the last tokens.
        num_tokens: N.
        probability: Probability that a query is masked, a tensor of one value; drawn for every image and query.

    Returns:
        Bool ``[B, 1, N, N]``, True for pairs that attend.
    """
    b, q = masks.shape[:2]
    seen = F.interpolate(masks, size, mode="bilinear").flatten(2) > 0  # [B, Q, h*w]
    lifted = torch.rand(b, q, 1, device=masks.device) >= probability  # [B, Q, 1]
    pairs = torch.ones(b, num_tokens, num_tokens, dtype=torch.bool, device=masks.device)  # [B, N, N]
    pairs[:, :q, -size[0] * size[1] :] = seen | lifted
    return pairs[:, None]  # [B, 1, N, N]


def decode(
    x: Tensor,
    size: tuple[int, int],
    steps: Sequence[Callable[[Tensor, Tensor | None], Tensor]],
    predict: Callable[[Tensor], Prediction],
    probabilities: Tensor | None,
) -> list[Prediction]:
    """Run blocks over queries and tokens together, and predict before each of them and after the last.

    Args:
        x: Tokens ``[B, Q + E + h*w, C]``.
        size: Map (h, w) in tokens.
        steps: The blocks, see `ViT.join`.
        predict: From tokens to a prediction; it normalises them.
        probabilities: Probabilities of masked attention, one per block; None for no masks and the last prediction only.

    Returns:
        Predictions in order.
    """
    if probabilities is not None and len(probabilities) != len(steps):
        raise OptionError(
            f"num_blocks: got {len(probabilities)} in the head, and {len(steps)} blocks of the trunk; set num_blocks "
            f"of the head to num_joint_blocks of the backbone"
        )
    predictions = []
    for i, step in enumerate(steps):
        mask = None
        if probabilities is not None:
            predictions.append(predict(x))
            mask = pairs_that_attend(predictions[-1].masks, size, x.shape[1], probabilities[i])
        x = step(x, mask)  # [B, Q + E + h*w, C]
    return [*predictions, predict(x)]


def mask_probability(step: int, start: int, end: int) -> float:
    """Probability of masked attention at a step: 1 until `start`, then falling to 0 at `end` (EoMT section 3.3)."""
    progress = min(max((step - start) / (end - start), 0.0), 1.0)
    return (1 - progress) ** POWER
