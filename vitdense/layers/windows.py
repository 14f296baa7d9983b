"""Window partition of feature maps, and the attention mask of shifted windows.

Maps are ``[B, H, W, C]``; windows are row-major: image, window row, window column.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx


def pad_to(size: tuple[int, int], window: tuple[int, int]) -> tuple[int, int]:
    """The size (h, w) rounded up to whole windows, in tokens."""
    return size[0] + -size[0] % window[0], size[1] + -size[1] % window[1]


MASK_VALUE = -100.0  # logit added to a masked pair: the authors' value, with which every published Swin was trained


@dataclass(frozen=True)
class Windows:
    """The partition of a map of one size into windows.

    A slot is a position in the windows: ``nW * N`` of them for nW windows of N tokens. Slots without a token are
    padding.

    Attributes:
        size: Map (h, w) in tokens.
        gather: Index of the token in every slot, ``[nW * N]``; any index where the slot is padding.
        scatter: Index of the slot of every token, ``[h * w]``.
        padding: Indices of the padding slots, ``[nW * N - h * w]``.
        tokens: Slots per window, N.
    """

    size: tuple[int, int]
    gather: Tensor
    scatter: Tensor
    padding: Tensor
    tokens: int

    @classmethod
    def plan(
        cls, size: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], device: torch.device
    ) -> "Windows":
        """Pad right and bottom to whole windows, roll by ``-shift``, and partition.

        The order is that of the authors' dense code: pad, then roll (Swin section 3.2; timm rolls first, which differs
        wherever the map is not a multiple of the window).

        Args:
            size: Map (h, w) in tokens.
            window: Window (h, w) in tokens.
            shift: Cyclic shift (h, w) in tokens.
            device: Of the index tensors.
        """
        (h, w), (hp, wp), (wh, ww) = size, pad_to(size, window), window
        slots = torch.arange(hp * wp, device=device).view(hp // wh, wp // ww, wh, ww)  # of the windows, in order
        slots = slots.transpose(1, 2).reshape(hp, wp).roll(shift, dims=(0, 1))  # [Hp, Wp], by token of the padded map
        scatter = slots[:h, :w].flatten()  # [h*w]
        padding = torch.cat([slots[h:].flatten(), slots[:h, w:].flatten()])  # [Hp*Wp - h*w]
        gather = torch.zeros(hp * wp, dtype=torch.long, device=device)
        gather[scatter] = torch.arange(h * w, device=device)
        return cls(size, gather, scatter, padding, wh * ww)

    def partition(self, x: Tensor) -> Tensor:
        """Map ``[B, h, w, C]`` to windows ``[B * nW, N, C]``; padding is zero."""
        x = _PermuteTokens.apply(x.flatten(1, 2), self.gather, self.padding, self.scatter, None)  # [B, nW*N, C]
        return x.view(-1, self.tokens, x.shape[-1])  # [B*nW, N, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        """Windows ``[B * nW, N, C]`` to the map ``[B, h, w, C]``, padding dropped."""
        x = windows.view(-1, self.gather.numel(), windows.shape[-1])  # [B, nW*N, C]
        x = _PermuteTokens.apply(x, self.scatter, None, self.gather, self.padding)  # [B, h*w, C]
        return x.unflatten(1, self.size)  # [B, h, w, C]


class _PermuteTokens(Function):
    """Rows ``x[:, index]``, zeros in the padding slots. The gradient is the same with the inverse permutation.

    Every token has at most one slot, so that the gradient is a gather too; autograd's own is a slow, atomic sum. It is
    one pass over the data, where padding, rolling and cutting would be three.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        index: Tensor,
        pad_slots: Tensor | None,
        inverse: Tensor,
        inverse_pads: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(index, pad_slots, inverse, inverse_pads)
        y = x.index_select(1, index)
        return y if pad_slots is None or pad_slots.numel() == 0 else y.index_fill_(1, pad_slots, 0)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        index, pad_slots, inverse, inverse_pads = ctx.saved_tensors
        return _PermuteTokens.apply(grad, inverse, inverse_pads, index, pad_slots), None, None, None, None


def shift_mask(
    size: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Attention mask of shifted windows: blocks pairs that are adjacent only because of the cyclic shift.

    The rolled, padded map consists of three row bands and three column bands, cut at ``-window`` and ``-shift``; tokens
    see each other when they share both. Padding shares its band with the pixels next to it: padded keys stay visible,
    as in the authors' dense code with which every published detector was trained.

    Args:
        size: Map (h, w) in tokens.
        window: Window (h, w) in tokens.
        shift: Cyclic shift (h, w) in tokens.
        dtype: Of the result.
        device: Of the result.

    Returns:
        ``[nW, 1, N, N]``, 0 or `MASK_VALUE`, added to the logits; the same for every image of a batch.
    """

    def bands(size: int, window: int, shift: int) -> Tensor:  # -> [n, window], values 0, 1, 2
        i = torch.arange(size, device=device)
        return ((i >= size - window).long() + (i >= size - shift).long()).view(-1, window)

    rows, cols = (bands(p, w, s) for p, w, s in zip(pad_to(size, window), window, shift))
    labels = 3 * rows[:, None, :, None] + cols[None, :, None, :]  # [nH, nW, wh, ww]
    labels = labels.flatten(2).flatten(0, 1)  # [nH*nW, N]
    differ = labels[:, None, :] != labels[:, :, None]  # [nH*nW, N, N]
    return torch.zeros(differ.shape, dtype=dtype, device=device).masked_fill_(differ, MASK_VALUE)[:, None]
