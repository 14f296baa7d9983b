"""Absolute position embedding of a feature map, and the extra tokens of a ViT."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense.errors import OptionError
from vitdense.layers.layout import cached_by_size, longer, resample, without_autocast
from vitdense.layers.resize import crop, is_resized, resize_grid, wide_dtype

# How a model resizes its table to a map. bicubic: plain. dinov2 (DINOv2 without registers): bicubic as if the map were
# a tenth of a token larger. antialias (DINOv2 with registers): bicubic with antialias. bilinear (Perception Encoder)
# and bilinear with antialias (TIPSv2): as named. bilinear_square (C-RADIO v4): bilinear to a square of the longer side,
# cut to the map at the top left; bilinear_square_corners (C-RADIO v3): the same with aligned corners.
SQUARE_RULES = ("bilinear_square", "bilinear_square_corners")
POSITION_RULES = ("bicubic", "dinov2", "antialias", "bilinear", "bilinear_antialias", *SQUARE_RULES)


class AbsolutePosition(nn.Module):
    """Learned position embedding of the pretraining grid (h, w) in tokens, resized to a map by one of `POSITION_RULES`.

    `SQUARE_RULES` need a square grid.
    """

    def __init__(self, grid: tuple[int, int], dim: int, rule: str = "bicubic") -> None:
        super().__init__()
        if rule in SQUARE_RULES and grid[0] != grid[1]:
            raise OptionError(f"pretrain_img_size: got a grid of {grid}, expected a square for position_rule={rule!r}")
        self.rule = rule
        self.table = nn.Parameter(torch.empty(1, *grid, dim))
        trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the embedding to ``x`` ``[B, H, W, C]``.

        The sum starts the residual stream; under autocast it is in float32 by torch's promotion.
        """
        size = x.shape[1], x.shape[2]
        if self.rule == "bicubic":
            table = resize_grid(self.table, size)  # [1, H, W, C]
        elif is_resized(self.table.shape[1:3], size):
            wide, grid = wide_dtype(self.table), self.table.shape[1:3]
            added = _added_size(x, grid) if self.rule == "dinov2" else 0.0
            whole = (longer(*size),) * 2 if self.rule in SQUARE_RULES else size
            weights = [_resize_weights(x, *axis, self.rule, added, wide) for axis in zip(whole, grid)]
            with without_autocast(x):
                table = resample(self.table.to(wide), *weights).to(self.table.dtype)  # [1, H or more, W or more, C]
            table = crop(table, size, dim=1) if self.rule in SQUARE_RULES else table  # [1, H, W, C]
        else:
            table = self.table
        # In this order the sum has the memory layout of the table, which suits the next layers, not of a convolution.
        return table + x


def _added_size(x: Tensor, grid: Sequence[int]) -> float | Tensor:
    """DINOv2's tenth of a token, added to the size of a map ``[B, h, w, C]`` that differs from the grid, else 0.

    A program for all sizes decides this at run time.
    """
    if not torch.compiler.is_compiling():
        return 0.1
    sizes = [torch.arange(n, device=x.device)[-1:] + 1 for n in x.shape[1:3]]  # [1] each, without asking for a value
    return 0.1 * torch.stack([size != old for size, old in zip(sizes, grid)]).any().float()


@cached_by_size
def _resize_weights(
    length: int, old: int, rule: str, added: float | Tensor, wide: torch.dtype, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Interpolation matrix ``[length, old]`` of an axis for a rule other than ``'bicubic'``.

    It does not ask for the value of a size, so that one exported program serves all.
    """
    place = torch.arange(length, device=device, dtype=wide)  # [length]
    weights = {
        "dinov2": _bicubic_weights,
        "antialias": partial(_antialias_weights, kernel=partial(_cubic, a=-0.5)),
        "bilinear": _bilinear_weights,
        "bilinear_antialias": partial(_antialias_weights, kernel=lambda x: (1 - x.abs()).clamp(min=0)),
        "bilinear_square": _bilinear_weights,
        "bilinear_square_corners": _corner_weights,
    }[rule]
    return weights(place, old / (place[-1:] + 1 + added), old)


def _cubic(x: Tensor, a: float) -> Tensor:
    x = x.abs()
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0))


def _bicubic_weights(place: Tensor, scale: Tensor, old: int) -> Tensor:
    """torch's bicubic weights without antialias: four neighbours, border repeated."""
    at = (place + 0.5) * scale - 0.5  # [n]
    taps = at.floor()[:, None] + torch.arange(-1, 3, device=place.device)  # [n, 4]
    share = _cubic(at[:, None] - taps, -0.75)  # [n, 4]
    return share.new_zeros(share.shape[0], old).scatter_add(1, taps.long().clamp(0, old - 1), share)  # [n, old]


def _antialias_weights(place: Tensor, scale: Tensor, old: int, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """torch's weights with antialias: a wider kernel for a smaller map; positions outside do not count."""
    centre = (torch.arange(old, device=place.device) + 0.5 - ((place + 0.5) * scale)[:, None]) / scale.clamp(min=1)
    share = kernel(centre)  # [n, old]
    return share / share.sum(1, keepdim=True)


def _bilinear_weights(place: Tensor, scale: Tensor, old: int) -> Tensor:
    """torch's bilinear weights without antialias: two neighbours, border repeated."""
    return _linear_weights(((place + 0.5) * scale - 0.5).clamp(0, old - 1), old)  # [n, old]


def _corner_weights(place: Tensor, scale: Tensor, old: int) -> Tensor:
    """torch's bilinear weights with aligned corners."""
    return _linear_weights(place * ((old - 1) / place[-1:].clamp(min=1)), old)  # [n, old]


def _linear_weights(at: Tensor, old: int) -> Tensor:
    return (1 - (at[:, None] - torch.arange(old, device=at.device)).abs()).clamp(min=0)  # [n, old]


class ExtraTokens(nn.Module):
    """The class token of a ViT, and the distillation token of a DeiT (section 4), prepended to the tokens of the map.

    They have a `position`, except in DeiT III. Registers (Darcet et al., ICLR 2024) come after them and have none.
    """

    def __init__(self, dim: int, distilled: bool, position: bool, registers: int = 0) -> None:
        super().__init__()
        self.register_tokens = None
        if registers:
            self.register_tokens = nn.Parameter(torch.empty(1, registers, dim))
            trunc_normal_(self.register_tokens, std=0.02)
        self.names = ("cls", "dist") if distilled else ("cls",)
        self.position = position
        for name in self.names:
            for part in ("token", "position") if position else ("token",):
                self.register_parameter(f"{name}_{part}", nn.Parameter(torch.empty(1, 1, dim)))
                trunc_normal_(getattr(self, f"{name}_{part}"), std=0.02)

    def __len__(self) -> int:
        return len(self.names) + (0 if self.register_tokens is None else self.register_tokens.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, C]`` to ``[B, len(self) + N, C]``."""
        tokens = [getattr(self, f"{name}_token") for name in self.names]  # [1, 1, C] each
        if self.position:
            tokens = [token + getattr(self, f"{name}_position") for token, name in zip(tokens, self.names)]
        if self.register_tokens is not None:
            tokens.append(self.register_tokens)  # [1, R, C]
        return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], dim=1)  # [B, E+N, C]
