"""Rotary position embedding: queries and keys are rotated by angles from the row and the column of their token.

Attention then depends on differences of positions (Su et al., 2021; for maps: EVA-02, DINOv3).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitdense.errors import OptionError
from vitdense.layers.attention import attend
from vitdense.layers.buffers import FormulaBuffers
from vitdense.layers.layout import Windows, cached_by_size, compute_dtype


@dataclass(frozen=True)
class RopeSpec:
    """How a model rotates. Channels of a head form pairs, half of them for rows, half for columns."""

    base: float  # base of the geometric progression of periods
    position: str  # one of `POSITIONS`
    neighbours: bool  # whether channels 2k and 2k + 1 are a pair, or k and k + d/2
    per_window: bool = False  # whether positions are within a window, or in the map
    columns_first: bool = False  # whether the first half of the pairs is for the columns
    turn: float = 1.0  # angle of a period in radians
    is_saved: bool = False  # whether checkpoints may have the periods


# Name -> positions of the tokens of an axis, from their indices 0 to n - 1 and n.
POSITIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "centred": lambda i, n: (2 * i + 1) / n - 1,  # the centres of tokens in a map from -1 to 1
    "of_16": lambda i, n: i / n * 16,  # every window and map spans the 16 tokens of pretraining
    "from_1": lambda i, n: i + 1,  # the class token, which is not rotated, is at 0
}
ROPES = {
    "dinov3": RopeSpec(100.0, "centred", neighbours=False, turn=2 * math.pi, is_saved=True),
    "eva02": RopeSpec(10000.0, "of_16", neighbours=True, per_window=True),
    "pe": RopeSpec(10000.0, "from_1", neighbours=True, columns_first=True),  # Perception Encoder
}
AUGMENTATIONS = ("shift", "jitter", "rescale")


@dataclass(frozen=True)
class Periods:
    """The periods of angles as numbers, and on the model's device: a copy from the host would make it wait."""

    values: tuple[float, ...]
    tensor: Tensor = field(compare=False, repr=False)  # [d/4]


@dataclass(frozen=True)
class Rotation:
    """The rotation of the tokens of a map, or of windows."""

    cos: Tensor  # [nW, n, 1, 1, d] for nW different windows, or 1 if all are the same
    sin: Tensor  # likewise, with the sign for the channel that it multiplies
    neighbours: bool  # see `RopeSpec`

    def rotate(self, x: Tensor) -> Tensor:
        """Queries and keys ``[B, n, 2, heads, d]`` to the same, rotated."""
        pairs, axis = ((-1, 2), -1) if self.neighbours else ((2, -1), -2)
        other = x.unflatten(-1, pairs).flip(axis).flatten(-2)  # [B, n, 2, heads, d]
        num_windows = self.cos.shape[0]
        x, other = (y.view(y.shape[0] // num_windows, num_windows, *y.shape[1:]) for y in (x, other))
        return torch.addcmul(x * self.cos, other, self.sin).flatten(0, 1)  # [B, n, 2, heads, d]


def attend_rotated(qkv: Tensor, rotation: Rotation, mask: Tensor | None = None) -> Tensor:
    """Attention of rotated queries and keys: ``[B, n, 3, heads, d]`` to ``[B, n, heads d]``. `mask`: see `attend`."""
    qk, v = qkv.split((2, 1), dim=2)  # [B, n, 2, heads, d], [B, n, 1, heads, d]
    q, k = rotation.rotate(qk).unbind(2)  # [B, n, heads, d] each
    y = attend(*(x.transpose(1, 2) for x in (q, k, v.squeeze(2))), mask)  # [B, heads, n, d]
    return y.transpose(1, 2).flatten(2)  # [B, n, heads*d]


class Rope(FormulaBuffers):
    """Makes the rotations of a model. To change periods, load or assign them; do not write in place.

    Args:
        kind: One of `ROPES`.
        head_dim: Channels of a head, a multiple of 4.
        augment: Random changes of positions in every training pass. ``shift`` s adds -s to s to rows and columns;
            ``jitter`` J scales rows and columns by 1/J to J independently, ``rescale`` R both alike.

    Attributes:
        periods: ``[d/4]`` in float32; checkpoints of some kinds have them.
        values: The same as numbers, by default a geometric progression from 1 to nearly the base.
    """

    def __init__(self, kind: str, head_dim: int, augment: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.spec, self.head_dim, self.augment = ROPES[kind], head_dim, dict(augment or {})
        if head_dim % 4:
            raise OptionError(f"arch: rope needs heads of a multiple of 4 channels, got {head_dim}; change num_heads")
        if self.augment and (kind != "dinov3" or not self.augment.keys() <= {*AUGMENTATIONS}):
            raise OptionError(
                f"rope_augment: got {self.augment} with rope {kind!r}, expected any of {', '.join(AUGMENTATIONS)} with "
                f"rope 'dinov3', whose positions are from -1 to 1"
            )
        # Exponents in float32, as by the authors; in numpy, because a tensor on the meta device has no values.
        exponents = np.arange(head_dim // 4, dtype=np.float32) * np.float32(4 / head_dim)
        self.values = tuple(self.spec.base ** float(exponent) for exponent in exponents)
        self.make_buffers()

    def make_buffers(self, device: torch.device | None = None) -> None:
        periods = torch.tensor(self.values, dtype=torch.float32, device=device)  # [d/4]
        self.register_buffer("periods", periods, persistent=self.spec.is_saved)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "periods" and isinstance(value, Tensor) and not value.is_meta:
            self.values = tuple(value.tolist())

    def _apply(self, fn: Callable, recurse: bool = True) -> "Rope":
        """As in torch, but ``half()`` and ``bfloat16()`` do not round the periods."""
        before = self.periods
        super()._apply(fn, recurse)
        if self.periods.dtype != before.dtype:
            self.periods = before.to(self.periods.device)
        return self

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, *args: object) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        if self.spec.is_saved and prefix + "periods" in state and not self.periods.is_meta:
            self.values = tuple(self.periods.tolist())

    def forward(self, x: Tensor, window: tuple[int, int] | None, num_extra: int) -> Rotation:
        """The rotation for a map ``[B, h, w, C]``, whose values do not count, and a block's window (h, w) or None.

        `num_extra` tokens before the map are not rotated.
        """
        if self.periods.is_meta and not x.is_meta:  # weights were assigned from a file without these
            self.make_buffers(x.device)
        size = x.shape[1], x.shape[2]
        # Windows of a map differ; positions continue in the padding.
        differ = window is not None and not self.spec.per_window
        size = window if window and self.spec.per_window else size
        lengths = tuple(-(-n // side) * side for n, side in zip(size, window)) if differ else size
        periods = Periods(self.values, self.periods)
        if self.training and self.augment:
            axes = [
                _turns(self.spec, periods, n, length, change, x.device, compute_dtype(x))
                for n, length, change in zip(size, lengths, self._draw(x.device).unbind(1))
            ]
        else:
            axes = [_kept_turns(x, self.spec, periods, *axis, None) for axis in zip(size, lengths)]
        rows, columns = axes[0][:, :, None], axes[1][:, None]  # [2, h, 1, parts, d/2/parts], [2, 1, w, ...]
        halves = (columns, rows) if self.spec.columns_first else (rows, columns)
        turns = torch.cat([half.expand(-1, *lengths, -1, -1) for half in halves], dim=-1).flatten(3)  # [2, h, w, d]
        turns = Windows(lengths, window).cut(turns) if differ else turns.flatten(1, 2)  # [2*nW, n, d]
        turns = turns.unflatten(0, (2, -1))  # [2, nW, n, d]
        if num_extra:
            turns = torch.cat([_no_turn(x).expand(-1, turns.shape[1], num_extra, turns.shape[3]), turns], dim=2)
        return Rotation(*turns[:, :, :, None, None], self.spec.neighbours)  # [nW, n, 1, 1, d] each

    def _draw(self, device: torch.device) -> Tensor:
        """Factor and summand of rows and columns, ``[2, 2]``."""
        shift, jitter, rescale = (self.augment.get(name, default) for name, default in zip(AUGMENTATIONS, (0, 1, 1)))
        draw = torch.rand(5, device=device) * 2 - 1
        factor = (draw[:2] * math.log(jitter) + draw[2] * math.log(rescale)).exp()  # [2]
        return torch.stack([factor, factor * draw[3:] * shift])  # [2, 2]


def _turns(
    spec: RopeSpec,
    periods: Periods,
    size: int,
    length: int,
    change: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Cosine and signed sine of the angles of the first `length` tokens of an axis of `size`.

    The result is ``[2, length, 1, d/2]`` if neighbours form pairs, else ``[2, length, 2, d/4]``.
    """
    at = POSITIONS[spec.position](torch.arange(length, device=device, dtype=torch.float32), size)  # [length]
    if change is not None:
        at = at * change[0] + change[1]
    angle = at[:, None] * spec.turn / periods.tensor  # [length, d/4]
    cos, sin = angle.cos(), angle.sin()
    dim = 2 if spec.neighbours else 1
    turns = torch.stack([torch.stack(pair, dim) for pair in ((cos, cos), (-sin, sin))]).to(dtype)
    return turns.flatten(2)[:, :, None] if spec.neighbours else turns


_kept_turns = cached_by_size(_turns)


@cached_by_size
def _no_turn(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Cosine and sine of 0, ``[2, 1, 1, 1]``."""
    return 1 - torch.arange(2, device=device, dtype=dtype).view(2, 1, 1, 1)
