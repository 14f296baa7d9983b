"""Layouts: what the size of a map decides, made once per size on the map's device and shared by all blocks.

Making a layout takes a dozen small kernels, which would cost more than the attention of a small map. While a model is
compiled or exported, sizes are symbols: then layouts are part of the graph, and none is kept.

Maps are ``[B, H, W, C]``; windows are row-major: image, window row, window column, unless said otherwise.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, wraps

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from vitdense.layers.resize import bicubic_weights

MASK_VALUE = -100.0  # logit added to a masked pair: the authors' value, with which every published Swin was trained
ALIGNMENT = 8  # elements: fused kernels copy a bias whose rows do not start at a multiple of it
# Layouts kept per kind, most recently used. A forward pass uses at most ten; a large map takes up to 1 MiB an image.
CACHE_SIZE = 128


def align(length: int) -> int:
    """`length` rounded up to `ALIGNMENT`."""
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
    """The maximum of two sizes. `max` would ask for their values while a model is exported; torch's is unknown to its
    compiler, which knows `max`."""
    return max(a, b) if torch.compiler.is_dynamo_compiling() else torch.sym_max(a, b)


def copied(x: Tensor) -> Tensor:
    """A contiguous copy. `contiguous` and `reshape` ask for sizes: whether they copy would be decided for the one that
    is compiled, and no other size could use the program."""
    return x.clone(memory_format=torch.contiguous_format)


def made_once(make: Callable) -> Callable:
    """Keep what `make(*sizes, device, dtype)` returns; the wrapper's first argument is a tensor of that device."""

    @lru_cache(CACHE_SIZE)
    def keep(*key: object) -> object:
        # Tensors made in inference mode could not be used in training later.
        with torch.inference_mode(False), torch.no_grad():
            return make(*key)

    @wraps(make)
    def layout(x: Tensor, *sizes: tuple[int, ...]) -> object:
        fake = type(x) not in (Tensor, nn.Parameter)  # must not be kept
        symbolic = torch.compiler.is_compiling() or fake
        return (make if symbolic else keep)(*sizes, x.device, compute_dtype(x))

    layout.cache = keep
    return layout


@made_once
def zero(device: torch.device, dtype: torch.dtype) -> Tensor:
    """A zero, ``[1]``: called with a tensor, on its device."""
    return torch.zeros(1, device=device, dtype=dtype)


@dataclass(frozen=True)
class Windows:
    """The partition of maps of one size into windows.

    A slot is a position in the windows: ``nW * N`` of them for nW windows of N tokens. Slots without a token are
    padding. Windows with padding or masked pairs are `special`: they come last.

    Attributes:
        size: Map (h, w) in tokens.
        window: Window (h, w) in tokens.
        gather: Index of the token in every slot, any index where the slot is padding: ``[images * nW * N]``, int32.
            None when windows are a permutation of the map's axes.
        scatter: Index of the slot of every token, ``[images * h * w]``, int32; or None.
        images: Images that both indices cover: all of a batch with shift, otherwise 1.
        num_windows: Windows of an image, nW.
        num_plain: Windows without padding and masked pairs, of all `images`.
        padding: Whether a slot of the special windows is padding, ``[slots, 1]``; None without padding.
        mask: Added to the logits of the special windows of an image: 0 or `MASK_VALUE`, ``[special windows of it, 1, N,
            align(N)]``; None without shift.
    """

    size: tuple[int, int]
    window: tuple[int, int]
    gather: Tensor | None
    scatter: Tensor | None
    images: int
    num_windows: int
    num_plain: int
    padding: Tensor | None
    mask: Tensor | None

    @property
    def tokens(self) -> int:
        """Slots per window, N."""
        return self.window[0] * self.window[1]

    def partition(self, x: Tensor, zero_padding: bool = True) -> Tensor:
        """Map ``[B, h, w, C]`` to windows ``[B * nW, N, C]``.

        Padding is zero; without `zero_padding` it is any token of the map.
        """
        (h, w), (wh, ww), (b, *_, c) = self.size, self.window, x.shape
        if self.gather is None:
            x = x.view(b, h // wh, wh, w // ww, ww, c).transpose(2, 3)  # [B, nH, nW, wh, ww, C]
        else:
            x = x.reshape(b // self.images, self.images * h * w, c)  # [B / images, images*h*w, C]
            padding = self.padding if zero_padding else None
            x = _PermuteTokens.apply(x, self.gather, self.scatter, padding, None)  # [B / images, images*nW*N, C]
        return x.reshape(b * self.num_windows, self.tokens, c)  # [B*nW, N, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        """Windows ``[B * nW, N, C]`` to the map ``[B, h, w, C]``, padding dropped."""
        (h, w), (wh, ww), c = self.size, self.window, windows.shape[-1]
        b = windows.shape[0] // self.num_windows
        if self.gather is None:
            x = windows.view(b, h // wh, w // ww, wh, ww, c).transpose(2, 3)  # [B, nH, wh, nW, ww, C]
        else:
            x = windows.reshape(b // self.images, self.images * self.num_windows * self.tokens, c)
            x = _PermuteTokens.apply(x, self.scatter, self.gather, None, self.padding)  # [B / images, images*h*w, C]
        return x.reshape(b, h, w, c)  # [B, h, w, C]


class _PermuteTokens(Function):
    """Rows ``x[:, index]``, zeros in the padding slots. The gradient is the same with the inverse permutation.

    Every token has at most one slot, so that the gradient is a gather too; autograd's own is a slow, atomic sum. It is
    one pass over the data, where padding, rolling and cutting would be three.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, index: Tensor, inverse: Tensor, padding: Tensor | None, of_inverse: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(index, inverse, padding, of_inverse)
        y = x.index_select(1, index)
        if padding is None:
            return y
        # Of the last slots.
        y.narrow(1, y.shape[1] - padding.shape[0], padding.shape[0]).masked_fill_(padding, 0)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        index, inverse, padding, of_inverse = ctx.saved_tensors
        return _PermuteTokens.apply(grad, inverse, index, of_inverse, padding), None, None, None, None


@dataclass(frozen=True)
class TracedWindows:
    """`Windows` while a model is compiled or exported, when sizes are symbols.

    One gather along each axis: exporters know no other form for all sizes. All windows are special, and in order.

    Attributes:
        window: Window (h, w) in tokens.
        grid: Windows (nH, nW) along each axis.
        gather: Row, and column, of the map in every slot along an axis, ``[nH * wh]`` and ``[nW * ww]``.
        scatter: Slot of every row, and column, of the map, ``[h]`` and ``[w]``.
        padding: Whether a slot is padding, ``[nH * wh, nW * ww, 1]``.
        mask: Added to the logits of an image: 0 or `MASK_VALUE`, ``[nH * nW, 1, N, align(N)]``; None without shift.
    """

    window: tuple[int, int]
    grid: tuple[int, int]
    gather: tuple[Tensor, Tensor]
    scatter: tuple[Tensor, Tensor]
    padding: Tensor
    mask: Tensor | None
    images: int = 1
    num_plain: int = 0

    @property
    def tokens(self) -> int:
        """Slots per window, N."""
        return self.window[0] * self.window[1]

    def partition(self, x: Tensor, zero_padding: bool = True) -> Tensor:
        """See `Windows`."""
        (n_h, n_w), (wh, ww), (b, *_, c) = self.grid, self.window, x.shape
        padding = self.padding if zero_padding else None
        x = _PermuteAxes.apply(x, *self.gather, *self.scatter, padding, None)  # [B, nH*wh, nW*ww, C]
        x = x.view(b, n_h, wh, n_w, ww, c).transpose(2, 3)  # [B, nH, nW, wh, ww, C]
        return copied(x).view(b * n_h * n_w, wh * ww, c)  # [B*nH*nW, N, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        """See `Windows`."""
        (n_h, n_w), (wh, ww), c = self.grid, self.window, windows.shape[-1]
        b = windows.shape[0] // (n_h * n_w)
        x = windows.view(b, n_h, n_w, wh, ww, c).transpose(2, 3)  # [B, nH, wh, nW, ww, C]
        x = copied(x).view(b, n_h * wh, n_w * ww, c)  # [B, nH*wh, nW*ww, C]
        return _PermuteAxes.apply(x, *self.scatter, *self.gather, None, self.padding)  # [B, h, w, C]


class _PermuteAxes(Function):
    """As `_PermuteTokens`, for rows and columns of ``[B, H, W, C]``."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        rows: Tensor,
        columns: Tensor,
        inverse_rows: Tensor,
        inverse_columns: Tensor,
        padding: Tensor | None,
        of_inverse: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(rows, columns, inverse_rows, inverse_columns, padding, of_inverse)
        y = x.index_select(1, rows).index_select(2, columns)
        return y if padding is None else torch.where(padding, 0, y)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, inverse_rows, inverse_columns, padding, of_inverse = ctx.saved_tensors
        grad = _PermuteAxes.apply(grad, inverse_rows, inverse_columns, rows, columns, of_inverse, padding)
        return grad, *[None] * 6


def window_layout(x: Tensor, window: tuple[int, int], shift: tuple[int, int] = (0, 0)) -> Windows | TracedWindows:
    """The windows of a map ``[B, h, w, C]``: pad right and bottom, roll by ``-shift``, partition.

    The order is that of the authors' dense code: pad, then roll (Swin section 3.2; timm rolls first, which differs
    wherever the map is not a multiple of the window).

    Args:
        x: The map. The mask has the dtype in which attention computes for it.
        window: Window (h, w) in tokens.
        shift: Cyclic shift (h, w) in tokens.
    """
    batch, h, w, _ = x.shape
    return _windows(x, batch if any(shift) else 1, h, w, window, shift, _pads((h, w), window))


@dataclass(frozen=True)
class Resampling:
    """A map of one size as a single window of another, fixed size, and back.

    A linear map W over the tokens of the window becomes ``(S / S') R W R^T`` for S' tokens of the map, S of the window
    and the bicubic resize R: its outputs and its inputs are resized as grids are, and a mean stays a mean.

    Attributes:
        rows, columns: R, ``[h, wh]`` and ``[w, ww]``.
        rows_back, columns_back: Its transpose, times the old over the new length, ``[wh, h]`` and ``[ww, w]``.
    """

    rows: Tensor
    columns: Tensor
    rows_back: Tensor
    columns_back: Tensor

    def partition(self, x: Tensor) -> Tensor:
        """Map ``[B, h, w, C]`` to windows ``[B, N, C]``."""
        return resample(x, self.rows_back, self.columns_back).flatten(1, 2)  # [B, wh*ww, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        """Windows ``[B, N, C]`` to the map ``[B, h, w, C]``."""
        grid = self.rows.shape[1], self.columns.shape[1]
        return resample(copied(windows).unflatten(1, grid), self.rows, self.columns)  # [B, h, w, C]


def resample(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``[B, h, w, C]`` times a matrix for each axis, ``[H, h]`` and ``[W, w]``: ``[B, H, W, C]``."""
    b, h, w, c = x.shape
    new_h, new_w = rows.shape[0], columns.shape[0]
    # matmul would ask for the batch: a program of it would not take a batch of one.
    x = torch.bmm(rows.expand(b, -1, -1), x.view(b, h, w * c))  # [B, H, w*C]
    x = torch.bmm(columns.expand(b * new_h, -1, -1), x.view(b * new_h, w, c))  # [B*H, W, C]
    return x.view(b, new_h, new_w, c)  # [B, H, W, C]


def resampled_window_layout(x: Tensor, window: tuple[int, int]) -> Windows | TracedWindows | Resampling:
    """A map ``[B, h, w, C]`` as one window (h, w) of tokens, resized where the sizes differ."""
    size = x.shape[1], x.shape[2]
    if not torch.compiler.is_compiling() and size == window:
        return window_layout(x, window)
    return _resampling(x, *size, window)


@made_once
def _resampling(h: int, w: int, window: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Resampling:
    wide = torch.promote_types(dtype, torch.float32)
    rows, columns = (bicubic_weights(old, new, device, wide) for old, new in zip(window, (h, w)))
    back = rows.T * (window[0] / h), columns.T * (window[1] / w)
    return Resampling(*(matrix.to(dtype) for matrix in (rows, columns, *back)))


def pooled_window_layouts(maps: Sequence[Tensor], windows: Sequence[tuple[int, int]]) -> list[Windows | TracedWindows]:
    """The same windows of maps that were pooled with different strides, in the same order.

    One map may need padding where another does not: windows are special if they are in any of the maps.

    Args:
        maps: ``[B, h_i, w_i, C]``.
        windows: Window (h, w) of each map in tokens.
    """
    sizes = [tuple(x.shape[1:3]) for x in maps]
    pads = tuple(any(axis) for axis in zip(*(_pads(size, window) for size, window in zip(sizes, windows))))
    return [_windows(x, 1, *size, window, (0, 0), pads) for x, size, window in zip(maps, sizes, windows)]


def _pads(size: tuple[int, int], window: tuple[int, int]) -> tuple[bool, bool]:
    """Whether the last windows of each axis have padding. While a model is compiled nothing depends on it, and nothing
    asks."""
    if torch.compiler.is_compiling():
        return False, False
    return size[0] % window[0] > 0, size[1] % window[1] > 0


@made_once
def _windows(
    batch: int,
    h: int,
    w: int,
    window: tuple[int, int],
    shift: tuple[int, int],
    pads: tuple[bool, bool],
    device: torch.device,
    dtype: torch.dtype,
) -> Windows | TracedWindows:
    (wh, ww), shifts = window, any(shift)
    nh, nw = (h + wh - 1) // wh, (w + ww - 1) // ww
    axes = ((h, nh, wh, shift[0]), (w, nw, ww, shift[1]))
    if not torch.compiler.is_compiling() and not shifts and not any(pads):
        return Windows((h, w), window, None, None, 1, nh * nw, nh * nw, None, None)
    # Along each axis: the row or column in every slot, and the slot of every row or column.
    (rows, columns), (row_slots, column_slots) = zip(*(_axis(*axis, device) for axis in axes))
    labels = _labels(axes, device) if shifts else None  # [nH*nW, N]
    if torch.compiler.is_compiling():  # nothing here asks for the value of a size
        padding = ((rows >= h)[:, None] | (columns >= w))[..., None]  # [nH*wh, nW*ww, 1]
        gather = rows.clamp(max=h - 1), columns.clamp(max=w - 1)
        mask = None if labels is None else _mask(labels, dtype)  # [nH*nW, 1, N, align(N)]
        return TracedWindows(window, (nh, nw), gather, (row_slots, column_slots), padding, mask)

    def of_slots(by_row: Tensor, by_column: Tensor) -> Tensor:  # -> [nH * nW, N]
        return (by_row.view(nh, 1, wh, 1) + by_column.view(1, nw, 1, ww)).reshape(nh * nw, wh * ww)

    gather = of_slots(rows.clamp(max=h - 1) * w, columns.clamp(max=w - 1))  # [nH*nW, N]
    padding = of_slots((rows >= h).int(), (columns >= w).int()) > 0  # [nH*nW, N]
    number = (row_slots // wh * nw)[:, None] + column_slots // ww  # window of every token, [h, w]
    place = (row_slots % wh * ww)[:, None] + column_slots % ww  # and place in it, [h, w]
    # Windows from these on, along each axis, have padding or masked pairs.
    first_row, first_column = (
        min(max(n - by, 0) // side, count - (by > 0 or pad)) for (n, count, side, by), pad in zip(axes, pads)
    )
    grid = torch.arange(nh * nw, device=device).view(nh, nw)
    plain = grid[:first_row, :first_column].flatten()
    special = torch.cat([grid[:first_row, first_column:].flatten(), grid[first_row:].flatten()])
    images = batch if shifts else 1
    # Plain windows of all images, then special windows of all images.
    image = torch.arange(images, device=device)[:, None]  # [images, 1]
    tokens = [(gather[part].flatten() + image * (h * w)).flatten() for part in (plain, special)]
    slots = torch.empty_like(grid.flatten())  # first slot of every window in the first image, [nH*nW]
    step = torch.empty_like(slots)  # from an image to the next
    for part, start in ((plain, 0), (special, images * plain.shape[0])):
        slots[part] = (start + torch.arange(part.shape[0], device=device)) * (wh * ww)
        step[part] = part.shape[0] * (wh * ww)
    scatter = (slots[number] + place).flatten() + image * step[number].flatten()  # [images, h*w]
    has_padding = (h, w) != (nh * wh, nw * ww)
    return Windows(
        (h, w),
        window,
        gather=torch.cat(tokens).int(),
        scatter=scatter.flatten().int(),
        images=images,
        num_windows=nh * nw,
        num_plain=images * plain.shape[0],
        padding=padding[special].expand(images, -1, -1).reshape(-1, 1) if has_padding else None,
        mask=None if labels is None else _mask(labels[special], dtype),
    )


def _axis(size: int, count: int, window: int, shift: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Along an axis of a map of `size` in `count` windows: the row (or column) of the padded map in every slot of the
    rolled map, ``[count * window]``, and the slot of every row, ``[size]``."""
    length = count * window
    rows, slots = torch.arange(length, device=device), torch.arange(size, device=device)
    if shift == 0:
        return rows, slots
    rows, slots = rows + shift, slots - shift
    # Not the remainder by a symbol, which exporters do not know.
    return torch.where(rows >= length, rows - length, rows), torch.where(slots < 0, slots + length, slots)


def _labels(axes: Sequence[tuple[int, int, int, int]], device: torch.device) -> Tensor:
    """Number of the pair of bands of every slot, ``[nH nW, N]``.

    The rolled, padded map consists of three row bands and three column bands, cut at ``-window`` and ``-shift``.
    """
    bands = []
    for _, count, window, shift in axes:
        slots, length = torch.arange(count * window, device=device), count * window
        bands.append((slots >= length - window).int() + (slots >= length - shift).int())  # [count * window]
    (_, nh, wh, _), (_, nw, ww, _) = axes
    labels = bands[0].view(nh, 1, wh, 1) * 3 + bands[1].view(1, nw, 1, ww)  # [nH, nW, wh, ww]
    return labels.reshape(nh * nw, wh * ww)  # [nH*nW, N]


def _mask(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention mask of shifted windows: blocks pairs that are adjacent only because of the cyclic shift.

    Tokens see each other when they share both bands. Padding shares its band with the pixels next to it: padded keys
    stay visible, as in the authors' dense code with which every published detector was trained.

    Args:
        labels: See `_labels`, ``[n, N]``.
        dtype: Of the result.

    Returns:
        ``[n, 1, N, align(N)]``.
    """
    tokens = labels.shape[1]
    differ = (labels[:, None, :] != labels[:, :, None]).to(dtype) * MASK_VALUE  # [n, N, N]
    return F.pad(differ, (0, align(tokens) - tokens))[:, None]  # [n, 1, N, align(N)]


@dataclass(frozen=True)
class RelativePositions:
    """What the grids of queries (h, w) and keys (h', w') decide of a decomposed position bias.

    Attributes:
        index: Rows of the tables of both axes, joined, for every pair along the rows, then along the columns (these
            repeated for every head): ``[h h'' + w heads w']``, int32.
        rows: h'': h', and rows that align ``h'' w'`` and are not used.
        codes: One-hot codes of the row and the column of every key, times `code`, ``[h' w', folded_length - d]``.
        code: The power of two next to the square root of d.
    """

    index: Tensor
    rows: int
    codes: Tensor
    code: float


def relative_layout(q: Tensor, keys: tuple[int, int], aligns_rows: bool) -> RelativePositions:
    """The relative positions of queries ``[B, h, w, heads, d]`` and of keys in a grid (h', w')."""
    _, h, w, heads, dim = q.shape
    return _relative_positions(q, (h, w), keys, heads, dim, aligns_rows)


@made_once
def _relative_positions(
    queries: tuple[int, int],
    keys: tuple[int, int],
    num_heads: int,
    dim: int,
    aligns_rows: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> RelativePositions:
    (h, w), (h_keys, w_keys) = queries, keys
    length = folded_length(dim, keys) - dim
    step = ALIGNMENT // math.gcd(ALIGNMENT, w_keys) if aligns_rows else 1
    num_rows = (h_keys + step - 1) // step * step
    rows = relative_index_1d(h, h_keys, num_rows, device)  # [h, h'']
    columns = relative_index_1d(w, w_keys, w_keys, device) + 2 * longer(h, h_keys) - 1  # [w, w']
    columns = columns[:, None].expand(-1, num_heads, -1)  # [w, heads, w']
    index = torch.cat([rows.flatten(), columns.reshape(-1)]).int()  # [h*h'' + w*heads*w']
    number = torch.arange(length, device=device)
    row, column = torch.arange(h_keys, device=device), torch.arange(w_keys, device=device) + h_keys
    codes = (number == row[:, None, None]) | (number == column[:, None])  # [h', w', length]
    code = 2.0 ** round(math.log2(dim) / 2)
    return RelativePositions(index, num_rows, codes.flatten(0, 1).to(dtype) * code, code)


def folded_length(dim: int, keys: tuple[int, int]) -> int:
    """Channels of queries and keys with the codes of a grid of keys (h', w'): ``d + h' + w'``, aligned for d from
    `ALIGNMENT` on."""
    length = dim + sum(keys)
    # Not while a model is compiled: how many channels fill it up would be another size to compile for.
    return length if dim < ALIGNMENT or torch.compiler.is_compiling() else align(length)


def relative_index_1d(
    num_queries: int, num_keys: int, width: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Row of a decomposed table for every query and key along one axis (MViTv2 section 3.1).

    Queries and keys may differ in number: both are placed on the finer of the two grids. Query i and key j then read
    row ``i max(k/q, 1) - j max(q/k, 1) + (k - 1) max(q/k, 1)``, computed in float32 and rounded towards zero as by the
    authors, of a table of ``2 max(q, k) - 1``.

    Args:
        num_queries: Queries.
        num_keys: Keys.
        width: Columns of the result; those after the keys hold any row of the table. `num_keys` when None.
        device: Of the result.

    Returns:
        ``[num_queries, width]``, int64.
    """
    finer = longer(num_queries, num_keys)
    of_query, of_key = finer / num_queries, finer / num_keys
    i = torch.arange(num_queries, device=device)[:, None] * of_query  # [q, 1]
    j = torch.arange(num_keys if width is None else width, device=device) * of_key  # [width]
    return (i - j + (num_keys - 1) * of_key).long().clamp(min=0)  # [q, width]
