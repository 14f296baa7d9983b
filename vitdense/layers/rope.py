"""Rotary position embedding: queries and keys are rotated by angles of the row and the column of their token.

Attention then depends on differences of positions (Su et al., 2021; for maps: EVA-02, DINOv3).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitdense.layers.attention import attend
from vitdense.layers.layout import compute_dtype, made_once, window_layout


@dataclass(frozen=True)
class RopeSpec:
    """How a model rotates. Channels of a head are in pairs, half of them for the rows, half for the columns.

    Attributes:
        base: Of the geometric progression of the frequencies, or periods.
        reference: Positions count from 0 to this number over the map; None: from -1 to 1, at the centres of tokens,
            and a period is a full turn. Periods are a buffer then, which checkpoints may hold.
        neighbours: Whether channels 2k and 2k + 1 are a pair, or k and k + d/2.
        per_window: Whether positions count from the corner of a window, as large as the map, or of the map.
        columns_first: Whether the first half of the pairs is for the columns.
        offset: Added to the number of a token.
    """

    base: float
    reference: int | None
    neighbours: bool
    per_window: bool
    columns_first: bool = False
    offset: int = 0


ROPES = {
    "dinov3": RopeSpec(100.0, None, neighbours=False, per_window=False),
    "eva02": RopeSpec(10000.0, 16, neighbours=True, per_window=True),
    # Perception Encoder, which has no windows of its own; its largest model counts from 0.
    "pe": RopeSpec(10000.0, 32, neighbours=True, per_window=False, columns_first=True, offset=1),
    "pe_giant": RopeSpec(10000.0, 32, neighbours=True, per_window=False, columns_first=True),
}
AUGMENTATIONS = ("shift", "jitter", "rescale")


@dataclass(frozen=True)
class Rotation:
    """The rotation of the tokens of a map, or of windows.

    Attributes:
        cos: ``[n, 1, 1, d]``, or ``[nW, n, 1, 1, d]`` where windows differ.
        sin: Likewise, with the sign of the channel that it is multiplied with.
        neighbours: See `RopeSpec`.
        num_windows: nW; None where all windows, or maps, are the same.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool
    num_windows: int | None

    def rotate(self, x: Tensor) -> Tensor:
        """Queries and keys ``[B, n, 2, heads, d]`` to the same, rotated."""
        pairs, axis = ((-1, 2), -1) if self.neighbours else ((2, -1), -2)
        other = x.unflatten(-1, pairs).flip(axis).flatten(-2)  # [B, n, 2, heads, d]
        if self.num_windows is None:
            return torch.addcmul(x * self.cos, other, self.sin)
        b, rest = x.shape[0] // self.num_windows, x.shape[1:]
        x, other = (y.view(b, self.num_windows, *rest) for y in (x, other))  # [B / nW, nW, n, 2, heads, d]
        return torch.addcmul(x * self.cos, other, self.sin).view(b * self.num_windows, *rest)  # [B, n, 2, heads, d]


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
        if not self.augment.keys() <= {*AUGMENTATIONS} or (self.augment and self.spec.reference is not None):
            raise ValueError(
                f"rope_augment: got {self.augment} with rope {kind!r}, expected any of {', '.join(AUGMENTATIONS)} for "
                f"a rope of positions from -1 to 1, such as 'dinov3'"
            )
        self.register_buffer("periods", _periods(self.spec.base, head_dim) if self.spec.reference is None else None)

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
    places = [torch.arange(n, device=device, dtype=torch.float32) for n in grid]  # [h], [w]
    if spec.reference is None:
        places = [(at + 0.5) / n * 2 - 1 for at, n in zip(places, grid)]
        if change is not None:
            places = [at * factor + summand for at, factor, summand in zip(places, *change)]
        places = [2 * math.pi * at for at in places]
    else:
        places = [(at + spec.offset) / n * spec.reference for at, n in zip(places, grid)]
    turn = _periods(spec.base, dim, device) if periods is None else periods.to(device)  # [d/4]
    rows, columns = (at[:, None] / turn for at in places)  # [h or w, d/4]
    of_row, of_column = rows[:, None].expand(-1, grid[1], -1), columns.expand(grid[0], -1, -1)  # [h, w, d/4] each
    angles = torch.cat([of_column, of_row] if spec.columns_first else [of_row, of_column], dim=-1)  # [h, w, d/2]
    cos, sin = angles.cos(), angles.sin()
    if spec.neighbours:
        cos, sin = (torch.stack(pair, dim=-1).flatten(-2) for pair in ((cos, cos), (-sin, sin)))  # [h, w, d] each
    else:
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # [h, w, d] each
    num_windows = None
    if window and not spec.per_window:
        # Positions of the map, cut into windows. Padding is zero: minus 1, it is not rotated.
        both = torch.cat([cos - 1, sin], dim=-1)[None]  # [1, h, w, 2*d]
        both = window_layout(both, window).partition(both)  # [nW, n, 2*d]
        cos, sin, num_windows = both[..., :dim] + 1, both[..., dim:], both.shape[0]  # [nW, n, d] each
    else:
        cos, sin = cos.flatten(0, 1), sin.flatten(0, 1)  # [n, d] each
    if num_extra:
        cos, sin = torch.cat([cos.new_ones(num_extra, dim), cos]), torch.cat([sin.new_zeros(num_extra, dim), sin])
    cos, sin = (x[..., None, None, :].to(dtype) for x in (cos, sin))
    return Rotation(cos, sin, spec.neighbours, num_windows)


_rotation = made_once(_make)
