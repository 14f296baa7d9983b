"""Tensors that depend only on the map size (window indices, masks, relative indices), and how windows are cut.

In training nearly every batch has a new size. So cached tensors depend on one axis of a map (`cached_by_size`), and a
pass computes the rest by a few kernels. While a model is compiled or exported, sizes are symbols, and all tensors are
part of the graph.

Maps are ``[B, H, W, C]``; windows are row-major: image, window row, window column, unless said otherwise.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from vitdense.layers.resize import crop

MASK_VALUE = -100.0  # added to the logits of masked pairs; the value with which every published Swin was trained
ALIGNMENT = 8  # elements; fused kernels copy a bias whose rows do not start at a multiple


def align(length: int) -> int:
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which linear layers and attention compute for a map: autocast's, or the map's own."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):  # the meta device has no autocast
        return torch.get_autocast_dtype(kind)
    return x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Autocast switched off for the device of a tensor; the meta device has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def longer(a: int, b: int) -> int:
    """The maximum of two sizes.

    `max` would ask for their values while exporting. The compiler and `torch.jit.trace` do not know torch's function.
    """
    return max(a, b) if torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing() else torch.sym_max(a, b)


def is_traced() -> bool:
    """Whether a compiler, an exporter or `torch.jit.trace` records what runs.

    They do not support gradients written in Python, and tensors of one record must not be cached for another.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def allows_own_gradients() -> bool:
    """Whether gradients may be written in Python: not while tracing, and not under `torch.func`.

    So a `Function` here needs no ``setup_context``. With it torch binds the arguments of every call, which takes 1 ms
    of host time in a training step of Swin-T.
    """
    return not is_traced() and not torch._C._are_functorch_transforms_active()


def copied(x: Tensor) -> Tensor:
    """A contiguous copy.

    `contiguous` and `reshape` decide by sizes whether to copy, so a compiled program would fit one size only.
    """
    return x.clone(memory_format=torch.contiguous_format) if torch.compiler.is_compiling() else x.contiguous()


_caches: list[dict[tuple, object]] = []


def cached_by_size(make: Callable | None = None, *, at_most: int | None = None) -> Callable:
    """Cache the results of `make(*sizes, device, dtype)`; the wrapper's first argument is a tensor on that device.

    Use it for tensors that depend on one axis of a map, ``O(h)`` or ``O(w)``: thousands take a few MB. Or set
    `at_most`, to keep the last results only. Every CUDA stream has its own cache, so that memory is reused only after
    the kernels that read it. A CUDA graph does not use the cache, and makes its own tensors in its own memory.
    """
    if make is None:
        return partial(cached_by_size, at_most=at_most)
    kept: dict[tuple, object] = {}
    _caches.append(kept)

    @wraps(make)
    def layout(x: Tensor, *sizes: object) -> object:
        args = (*sizes, x.device, compute_dtype(x))
        fake = type(x) not in (Tensor, nn.Parameter)
        is_cuda = x.device.type == "cuda"
        own = is_traced() or fake or torch._C._are_functorch_transforms_active()
        if own or (is_cuda and torch.cuda.is_current_stream_capturing()):
            return make(*args)
        key = (torch.cuda.current_stream(x.device).cuda_stream if is_cuda else None, *args)
        result = kept.get(key)
        if result is None:
            # Tensors made in inference mode could not be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                result = kept[key] = make(*args)
            if at_most is not None and len(kept) > at_most:
                kept.pop(next(iter(kept)), None)
        return result

    return layout


def empty_cache() -> None:
    """Free the tensors that are cached by map size; they are made again on demand."""
    for kept in _caches:
        kept.clear()


@cached_by_size
def zero(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.zeros(1, device=device, dtype=dtype)


def numbers(x: Tensor, length: int) -> Tensor:
    """``[length]``: 0, 1, 2, ... in int32, on the device of a tensor. All lengths share a few tensors."""
    return _numbers(x, 1 << max(length - 1, 0).bit_length())[:length]


@cached_by_size
def _numbers(length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.arange(length, device=device, dtype=torch.int32)


@dataclass(frozen=True)
class Windows:
    """The partition of maps of one size into windows; maps are padded right and bottom to whole windows."""

    size: tuple[int, int]  # map (h, w) in tokens
    window: tuple[int, int]  # window (h, w) in tokens
    mask: Tensor | None = None  # for logits: 0 or `MASK_VALUE`, [n, images or 1, 1, N, align(N)]; None: no shift
    num_plain: int = 0  # windows before the n with a mask

    @property
    def tokens(self) -> int:
        """Tokens and padding in a window, N."""
        return self.window[0] * self.window[1]

    @property
    def grid(self) -> tuple[int, int]:
        """Windows along each axis, (nH, nW)."""
        return tuple((n + side - 1) // side for n, side in zip(self.size, self.window))

    def partition(self, x: Tensor) -> Tensor:
        """Map ``[B, h, w, C]`` to windows ``[B * nH * nW, N, C]``; padding is zero."""
        return _exchange(x, self.cut, self.join)

    def unpartition(self, windows: Tensor) -> Tensor:
        """Windows ``[B * nH * nW, N, C]`` to the map ``[B, h, w, C]``; padding is dropped."""
        return _exchange(windows, self.join, self.cut)

    def cut(self, x: Tensor) -> Tensor:
        """`partition`, with the gradients of torch's own operations."""
        x = self.pad(x)  # [B, nH*wh, nW*ww, C]
        (nh, nw), (wh, ww), (b, *_, c) = self.grid, self.window, x.shape
        x = x.unflatten(2, (nw, ww)).unflatten(1, (nh, wh)).transpose(2, 3)  # [B, nH, nW, wh, ww, C]
        return copied(x).view(b * nh * nw, wh * ww, c)  # [B*nH*nW, N, C]

    def join(self, windows: Tensor) -> Tensor:
        """`unpartition`, with the gradients of torch's own operations."""
        (nh, nw), (wh, ww), c = self.grid, self.window, windows.shape[-1]
        b = windows.shape[0] // (nh * nw)
        x = windows.reshape(b, nh, nw, wh, ww, c).transpose(2, 3)  # [B, nH, wh, nW, ww, C]
        return self.crop(copied(x).view(b, nh * wh, nw * ww, c))  # [B, h, w, C]

    def pad(self, x: Tensor) -> Tensor:
        """``[B, h, w, C]`` to ``[B, nH*wh, nW*ww, C]``."""
        bottom, right = (n * side - old for n, side, old in zip(self.grid, self.window, self.size))
        # Always while a model is compiled: one program serves all sizes.
        return F.pad(x, (0, 0, 0, right, 0, bottom)) if torch.compiler.is_compiling() or bottom or right else x

    def crop(self, x: Tensor) -> Tensor:
        """``[B, nH*wh, nW*ww, C]`` to ``[B, h, w, C]``."""
        return crop(x, self.size, dim=1)


class _Exchange(Function):
    """A map to windows, or back: each is the other's gradient.

    torch's own, an atomic sum for a gather and two passes for a part of a map, cost more.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Exchange.apply(grad, ctx.back, ctx.there), None, None


def _exchange(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    return _Exchange.apply(x, there, back) if x.requires_grad and allows_own_gradients() else there(x)


@dataclass(frozen=True)
class ShiftedWindows(Windows):
    """Windows of a map that is padded, then rolled by ``-shift``, as in the authors' dense code (Swin section 3.2).

    timm rolls first, which differs if the map is not a multiple of the window. Only windows in the last row and the
    last column have masked pairs. They come last, so that all others share one bias: bias plus mask for all windows
    would be as large as the attention matrix. The order is: other windows, last column, last row, corner; each image by
    image.
    """

    gather: Tensor | None = None  # index of the token in every slot of the windows, [B * nH * nW * N], int32
    slots: Tensor | None = None  # index of the slot of every token of the padded map, [B * nH * wh * nW * ww]

    def cut(self, x: Tensor) -> Tensor:
        tokens = self.pad(x).flatten(0, 2)  # [B*nH*wh*nW*ww, C]
        return tokens.index_select(0, self.gather).unflatten(0, (-1, self.tokens))  # [B*nH*nW, N, C]

    def join(self, windows: Tensor) -> Tensor:
        (nh, nw), (wh, ww) = self.grid, self.window
        x = windows.flatten(0, 1).index_select(0, self.slots)  # [B*nH*wh*nW*ww, C]
        return self.crop(x.unflatten(0, (-1, nh * wh, nw * ww)))  # [B, h, w, C]


@dataclass(frozen=True)
class IndexedWindows(Windows):
    """`ShiftedWindows` for compiled and exported models: in the order of the map, all with a mask, by two gathers.

    A program for all sizes cannot treat windows without a mask apart, as there may be none. In eager mode, masks for
    all windows would take 0.15 GB more for Swin-T at 800x1344, and with windows of 24 six times the memory of queries,
    keys and values. In onnxruntime, gathers take 13 ms of a pass; rolls, crops and transposes took 38.
    """

    gather: Tensor | None = None  # index in a padded map of the token in every slot of its windows, [nH * nW * N]
    slots: Tensor | None = None  # index of the slot of every token of a map, [h * w]

    def cut(self, x: Tensor) -> Tensor:
        (nh, nw), b, c = self.grid, x.shape[0], x.shape[-1]
        x = self.pad(x).flatten(1, 2).index_select(1, self.gather)  # [B, nH*nW*N, C]
        return x.view(b * nh * nw, self.tokens, c)  # [B*nH*nW, N, C]

    def join(self, windows: Tensor) -> Tensor:
        (nh, nw), (h, w), c = self.grid, self.size, windows.shape[-1]
        b = windows.shape[0] // (nh * nw)
        slots = windows.reshape(b, nh * nw * self.tokens, c)  # [B, nH*nW*N, C]
        return slots.index_select(1, self.slots).view(b, h, w, c)  # [B, h, w, C]


class WholeMap(Windows):
    """One window: the map itself, which is never padded."""

    def partition(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2)  # [B, h*w, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        return windows.unflatten(1, self.size)  # [B, h, w, C]


def window_layout(x: Tensor, window: tuple[int, int] | None, shift: tuple[int, int] = (0, 0)) -> Windows:
    """The windows of (h, w) tokens of a map ``[B, h, w, C]``, cyclically shifted by (h, w) tokens; None: the whole map.

    Masks have the dtype in which attention computes for the map.
    """
    batch, h, w, _ = x.shape
    if window is None:
        return WholeMap((h, w), (h, w))
    if not any(shift):
        return Windows((h, w), window)
    if torch.compiler.is_compiling():
        return _indexed(x, (h, w), window, shift)
    return _shifted(x, batch, (h, w), window, shift)


def _indexed(x: Tensor, size: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> IndexedWindows:
    masks = _masks(x, window, shift)  # [3, N, align(N)]
    is_last = [torch.arange(n, device=x.device) == n - 1 for n in Windows(size, window).grid]  # [nH], [nW]
    kinds = (2 * is_last[0].int()[:, None] + is_last[1]).flatten()  # [nH*nW]
    masks = torch.cat([torch.zeros_like(masks[:1]), masks]).index_select(0, kinds)  # [nH*nW, N, align(N)]
    (nh, nw), (wh, ww) = Windows(size, window).grid, window
    rows, columns = _rolled_axis(x, nh * wh, shift[0]), _rolled_axis(x, nw * ww, shift[1])  # [nH*wh], [nW*ww]
    gather = rows.view(nh, 1, wh, 1) * (nw * ww) + columns.view(nw, 1, ww)  # [nH, nW, wh, ww]
    rows, columns = _rolled_axis(x, nh * wh, -shift[0]), _rolled_axis(x, nw * ww, -shift[1])
    rows, columns = rows[: size[0], None], columns[: size[1]]  # [h, 1], [w]
    slots = ((rows // wh * nw + columns // ww) * wh + rows % wh) * ww + columns % ww  # [h, w]
    return IndexedWindows(size, window, masks[:, None, None], gather=gather.flatten(), slots=slots.flatten())


def _rolled_axis(x: Tensor, length: int, by: int) -> Tensor:
    """The indices of rows (or columns) after a roll by ``-by``, ``[length]``."""
    numbers = torch.arange(length, device=x.device)
    return torch.cat([numbers[by:], numbers[:by]])


@cached_by_size(at_most=8)  # enough for two image sizes, as in evaluation or with fixed crops
def _shifted(
    batch: int,
    size: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> ShiftedWindows:
    like = torch.empty(0, device=device, dtype=dtype)
    nh, nw = Windows(size, window).grid
    masks = zip(_masks(like, window, shift), (nh - 1, nw - 1, 1))  # of the last column, the last row, the corner
    mask = torch.cat([mask.expand(number, -1, -1) for mask, number in masks])  # [nH + nW - 1, N, align(N)]
    rows, by_column = _row_slots(like, batch, nh, window, shift[0])  # [2, B, nH*wh], [2, 1, nH*wh]
    columns, is_last = _column_slots(like, batch, nw, window, shift[1])  # [nW*ww] each
    plain, last = torch.add(rows, by_column, alpha=nw - 1)[..., None]  # [B, nH*wh, 1] each
    slots = (torch.where(is_last, last, plain) + columns).flatten()  # [B*nH*wh*nW*ww]
    gather = torch.empty_like(slots, dtype=torch.int32).scatter_(0, slots, numbers(like, len(slots)))
    mask = mask[:, None, None].expand(-1, batch, -1, -1, -1)  # [nH + nW - 1, B, 1, N, align(N)]
    return ShiftedWindows(size, window, mask, batch * (nh - 1) * (nw - 1), gather, slots)


def _slots_of_axis(count: int, side: int, shift: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Window of every row (or column) of a padded map rolled by ``-shift``, and the position in it: ``[count * side]``
    each."""
    slot = (torch.arange(count * side, device=device) - shift) % (count * side)
    return slot // side, slot % side


@cached_by_size
def _row_slots(
    batch: int, count: int, window: tuple[int, int], shift: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The summand of rows in `ShiftedWindows.slots`, for windows before and in the last column, ``[2, B, nH*wh]``, and
    a summand to multiply by ``nW - 1``, ``[2, 1, nH*wh]``.

    Windows before the last column and row are numbered ``row (nW - 1) + column``; windows of the last column
    ``(nH - 1) (nW - 1) + row``; windows of the last row ``(nH - 1) (nW - 1) + nH - 1 + column``.
    """
    row, place = _slots_of_axis(count, window[0], shift, device)  # [nH*wh] each
    is_last, before = (row == count - 1).long(), count - 1
    slots = window[0] * window[1]
    numbers = torch.stack([is_last * before, row])[:, None] * (batch * slots)  # [2, 1, nH*wh]
    images = torch.arange(batch, device=device)[:, None] * slots  # [B, 1]
    by_column = torch.stack([row, before + is_last])[:, None] * (batch * slots)  # [2, 1, nH*wh]
    return numbers + images + place * window[1], by_column


@cached_by_size
def _column_slots(
    batch: int, count: int, window: tuple[int, int], shift: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The summand of columns in `ShiftedWindows.slots`, and whether they are in the last window: ``[nW*ww]`` each."""
    column, place = _slots_of_axis(count, window[1], shift, device)  # [nW*ww] each
    is_last = column == count - 1
    return torch.where(is_last, 0, column) * (batch * window[0] * window[1]) + place, is_last


@cached_by_size
def _masks(window: tuple[int, int], shift: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Attention masks of shifted windows in the last column, the last row and the corner, ``[3, N, align(N)]``.

    They block pairs that are adjacent only because of the cyclic shift. Padding is treated like the pixels next to it:
    padded keys stay visible, as in the authors' dense code, with which every published detector was trained.
    """
    moved = [torch.arange(side, device=device) >= side - by for side, by in zip(window, shift)]  # [wh], [ww]
    rows, columns = (x[:, None] ^ x for x in moved)  # [wh, wh], [ww, ww]; torch 2.11 compiles no `!=` of bools
    rows, columns = rows[:, None, :, None], columns[None, :, None]  # [wh, 1, wh, 1], [1, ww, 1, ww]
    tokens = window[0] * window[1]
    apart = torch.stack([torch.broadcast_to(x, window * 2) for x in (columns, rows, rows | columns)])
    mask = apart.reshape(3, tokens, tokens).to(dtype) * MASK_VALUE  # [3, N, N]
    return F.pad(mask, (0, align(tokens) - tokens))  # [3, N, align(N)]


def resample(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``[B, h, w, C]`` times a matrix for each axis, ``[H, h]`` and ``[W, w]``: ``[B, H, W, C]``."""
    b, h, w, c = x.shape
    new_h, new_w = rows.shape[0], columns.shape[0]
    # matmul would ask for the batch size, and a program would refuse a batch of one.
    x = torch.bmm(rows.expand(b, -1, -1), x.view(b, h, w * c))  # [B, H, w*C]
    x = torch.bmm(columns.expand(b * new_h, -1, -1), x.view(b * new_h, w, c))  # [B*H, W, C]
    return x.view(b, new_h, new_w, c)  # [B, H, W, C]


@cached_by_size
def one_hot(length: int, value: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One-hot codes of rows (or columns) of a map, times `value`: ``[length, length]``."""
    number = torch.arange(length, device=device)
    return (number == number[:, None]).to(dtype) * value  # [length, length]


@cached_by_size
def relative_index(
    num_queries: int, num_keys: int, width: int, repeats: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`relative_index_1d` with every row repeated `repeats` times: ``[num_queries * repeats * width]``, int32."""
    index = relative_index_1d(num_queries, num_keys, width, device)  # [q, width]
    return index[:, None].expand(-1, repeats, -1).flatten().int()  # [q*repeats*width]


def relative_index_1d(
    num_queries: int, num_keys: int, width: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Row of a decomposed table for every query and key along one axis (MViTv2 section 3.1), ``[num_queries, width]``,
    int64.

    Queries and keys may differ in number: both are placed on the finer of the two grids. The table has
    ``2 max(q, k) - 1`` rows; query i and key j read row ``i max(k/q, 1) - j max(q/k, 1) + (k - 1) max(q/k, 1)``,
    computed in float32 and rounded towards zero, as by the authors. If `width` is larger than the number of keys, the
    remaining columns have any valid row.
    """
    finer = longer(num_queries, num_keys)
    of_query, of_key = finer / num_queries, finer / num_keys
    i = torch.arange(num_queries, device=device)[:, None] * of_query  # [q, 1]
    j = torch.arange(num_keys if width is None else width, device=device) * of_key  # [width]
    return (i - j + (num_keys - 1) * of_key).long().clamp(min=0)  # [q, width]
