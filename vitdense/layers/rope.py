"""Rotary position embedding: queries and keys are rotated by angles of the row and the column of their token.

Attention then depends on differences of positions (Su et al., 2021; for maps: EVA-02, DINOv3).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.layers.attention import attend
from vitdense.layers.layout import compute_dtype, made_once, window_layout


@dataclass(frozen=True)
class RopeSpec:
    """How a model rotates. Channels of a head are in pairs, half of them for the rows, half for the columns.

    Attributes:
        base: Of the geometric progression of the periods.
        position: Of the tokens 0 to n - 1 of an axis, from their numbers ``[n]`` and n.
        neighbours: Whether channels 2k and 2k + 1 are a pair, or k and k + d/2.
        per_window: Whether the axes are those of a window, or of the map.
        columns_first: Whether the first half of the pairs is for the columns.
        turn: Angle of a period in radians.
        has_buffer: Whether the periods are a buffer, which checkpoints may hold.
    """

    base: float
    position: Callable[[Tensor, int], Tensor]
    neighbours: bool
    per_window: bool = False
    columns_first: bool = False
    turn: float = 1.0
    has_buffer: bool = False


ROPES = {
    # The centres of tokens in a map from -1 to 1.
    "dinov3": RopeSpec(100.0, lambda i, n: (2 * i + 1) / n - 1, neighbours=False, turn=2 * math.pi, has_buffer=True),
    # Every window, and every map, is as large as the 16 tokens of pretraining.
    "eva02": RopeSpec(10000.0, lambda i, n: i / n * 16, neighbours=True, per_window=True),
    # Perception Encoder: the class token, which is not rotated, is at 0. Without one the 1 has no effect.
    "pe": RopeSpec(10000.0, lambda i, n: i + 1, neighbours=True, columns_first=True),
}
AUGMENTATIONS = ("shift", "jitter", "rescale")


@dataclass(frozen=True)
class Rotation:
    """The rotation of the tokens of a map, or of windows.

    Attributes:
        cos: ``[nW, n, 1, 1, d]`` for nW windows that differ; 1 where all windows, or maps, are the same.
        sin: Likewise, with the sign of the channel that it is multiplied with.
        neighbours: See `RopeSpec`.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool

    def rotate(self, x: Tensor) -> Tensor:
        """Queries and keys ``[B, n, 2, heads, d]`` to the same, rotated."""
        pairs, axis = ((-1, 2), -1) if self.neighbours else ((2, -1), -2)
        other = x.unflatten(-1, pairs).flip(axis).flatten(-2)  # [B, n, 2, heads, d]
        num_windows = self.cos.shape[0]
        x, other = (y.view(y.shape[0] // num_windows, num_windows, *y.shape[1:]) for y in (x, other))
        return torch.addcmul(x * self.cos, other, self.sin).flatten(0, 1)  # [B, n, 2, heads, d]


def attend_rotated(qkv: Tensor, rotation: Rotation) -> Tensor:
    """Attention of rotated queries and keys: ``[B, n, 3, heads, d]`` to ``[B, n, heads d]``."""
    qk, v = qkv.split((2, 1), dim=2)  # [B, n, 2, heads, d], [B, n, 1, heads, d]
    q, k = rotation.rotate(qk).unbind(2)  # [B, n, heads, d] each
    y = attend(*(x.transpose(1, 2) for x in (q, k, v.squeeze(2))))  # [B, heads, n, d]
    return y.transpose(1, 2).flatten(2)  # [B, n, heads*d]


def _periods(base: float, dim: int, device: torch.device | None = None) -> Tensor:
    """Of heads of `dim` channels, ``[d/4]``: a geometric progression from 1 to nearly `base`."""
    return base ** (torch.arange(dim // 4, device=device, dtype=torch.float32) * (4 / dim))


class Rope(nn.Module):
    """Makes the rotations of a model, once per size of a map; for other periods, load or assign them: do not write.

    Args:
        kind: One of `ROPES`.
        head_dim: Channels of a head, a multiple of 4.
        augment: In training, positions from -1 to 1 are drawn anew at every forward pass: ``shift`` s adds from -s to s
            to rows and to columns; ``jitter`` J scales rows and columns by 1/J to J each, ``rescale`` R both alike.

    Raises:
        ValueError: Heads of another width, or augmentations that this kind does not have.
    """

    def __init__(self, kind: str, head_dim: int, augment: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.spec, self.head_dim, self.augment = ROPES[kind], head_dim, dict(augment or {})
        if head_dim % 4:
            raise ValueError(f"arch: rope needs heads of a multiple of 4 channels, got {head_dim}; change num_heads")
        if self.augment and (kind != "dinov3" or not self.augment.keys() <= {*AUGMENTATIONS}):
            raise ValueError(
                f"rope_augment: got {self.augment} with rope {kind!r}, expected any of {', '.join(AUGMENTATIONS)} with "
                f"rope 'dinov3', whose positions are from -1 to 1"
            )
        self.register_buffer("periods", _periods(self.spec.base, head_dim) if self.spec.has_buffer else None)

    def _apply(self, fn: object, recurse: bool = True) -> "Rope":
        """As in torch, but ``half()`` and ``bfloat16()`` do not round the periods."""
        before = self.periods
        super()._apply(fn, recurse)
        if before is not None and self.periods.dtype != before.dtype:
            self.periods = before.to(self.periods.device)
        return self

    def _load_from_state_dict(self, *args: object) -> None:
        """As in torch, but into another tensor: it is the key of the rotations that are kept."""
        self.periods = None if self.periods is None else self.periods.clone()
        super()._load_from_state_dict(*args)

    def forward(self, x: Tensor, window: tuple[int, int] | None, num_extra: int) -> Rotation:
        """The rotation for a block.

        Args:
            x: Map ``[B, h, w, C]``; its size, device and dtype count.
            window: Of the block, (h, w) in tokens; None for global attention.
            num_extra: Tokens before the map, which are not rotated.
        """
        args = (x.shape[1], x.shape[2]), self.spec, self.head_dim, window, num_extra, self.periods
        if self.training and self.augment:
            return _make(*args, self._draw(x.device), x.device, compute_dtype(x))
        return _rotation(x, *args, None)

    def _draw(self, device: torch.device) -> Tensor:
        """Factor and summand of rows and columns, ``[2, 2]``."""
        shift, jitter, rescale = (self.augment.get(name, default) for name, default in zip(AUGMENTATIONS, (0, 1, 1)))
        draw = torch.rand(5, device=device) * 2 - 1
        factor = (draw[:2] * math.log(jitter) + draw[2] * math.log(rescale)).exp()  # [2]
        return torch.stack([factor, factor * draw[3:] * shift])  # [2, 2]


def _make(
    size: tuple[int, int],
    spec: RopeSpec,
    dim: int,
    window: tuple[int, int] | None,
    num_extra: int,
    periods: Tensor | None,
    change: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Rotation:
    grid = window if window and spec.per_window else size
    places = [spec.position(torch.arange(n, device=device, dtype=torch.float32), n) for n in grid]  # [h], [w]
    if change is not None:
        places = [at * factor + summand for at, factor, summand in zip(places, *change)]
    period = _periods(spec.base, dim, device) if periods is None else periods.to(device)  # [d/4]
    rows, columns = (at[:, None] * spec.turn / period for at in places)  # [h or w, d/4]
    halves = [rows[:, None].expand(-1, grid[1], -1), columns.expand(grid[0], -1, -1)]  # [h, w, d/4] each
    angles = torch.cat(halves[::-1] if spec.columns_first else halves, dim=-1)[None]  # [1, h, w, d/2]
    # Windows of a map differ. Their padding and the extra tokens have angles of 0: they are not rotated.
    differ = window is not None and not spec.per_window
    angles = window_layout(angles, window).partition(angles) if differ else angles.flatten(1, 2)  # [nW, n, d/2]
    angles = F.pad(angles, (0, 0, num_extra, 0))[:, :, None, None]  # [nW, n, 1, 1, d/2]
    cos, sin = angles.cos(), angles.sin()
    if spec.neighbours:
        cos, sin = (torch.stack(pair, dim=-1).flatten(-2) for pair in ((cos, cos), (-sin, sin)))  # [..., d] each
    else:
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # [..., d] each
    return Rotation(cos.to(dtype), sin.to(dtype), spec.neighbours)


_rotation = made_once(_make)
