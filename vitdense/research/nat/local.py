"""Local self-attention: every position of a map attends to the k x k positions around it.

Queries are cut into tiles, keys and values into tiles with a halo, so that attention is a few batched products. Pairs
outside the neighbourhood get a bias of -inf; the same bias has the positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense.errors import OptionError, check_choice
from vitdense.flops import is_counted
from vitdense.layers.attention import attend
from vitdense.layers.bias import TableBias
from vitdense.layers.layout import align, cached_by_size, copied, longer, zero
from vitdense.layers.resize import crop

BORDERS = ("mask", "zero", "clamp")
POSITIONS = ("table", "query", None)
TILES = (7, 8)  # sides of a tile of queries; while a model is compiled, the first


def attend_local(
    q: Tensor,
    kv: Tensor,
    kernel: int,
    border: str = "mask",
    position: Tensor | tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
    tiles: "Tiles | None" = None,
) -> Tensor:
    """Attention of every position of a map to its neighbourhood of `kernel` x `kernel` positions.

    At the border of the map, ``'mask'`` cuts the neighbourhood off. ``'zero'`` pads keys and values with zeros, which
    take part in the softmax. ``'clamp'`` moves the neighbourhood into the map; a smaller map is its own neighbourhood.

    Args:
        q: Queries, ``[B, H, W, heads, d]``.
        kv: Keys and values, ``[B, H, W, 2, heads, d]``. For ``'clamp'`` and a map smaller than the kernel they may be
            padded right and bottom.
        kernel: Side of the neighbourhood, odd.
        border: One of `BORDERS`.
        position: None; or a bias for every offset query - key, ``[heads, T, T]`` with offset (0, 0) in the centre; or
            embeddings of row and column offsets, ``[heads, T, d / 2]`` each, whose concatenation is multiplied with the
            query and `scale`. T is odd, and at least `num_offsets`.
        scale: Factor on the logits; ``d ** -0.5`` when None.
        tiles: The result of `tile_layout` for these sizes; made here when None.

    Returns:
        ``[B, H, W, heads d]``.
    """
    (batch, h, w, heads, dim), least = q.shape, num_offsets(kernel, border)
    if position is None:
        position = zero(q).expand(heads, least, least)  # [heads, T, T]
    if (length := position[0].shape[1]) < least or length % 2 == 0:
        raise OptionError(f"position: got {length} offsets, expected at least {least}, an odd number")
    if is_counted(q):
        return _published(q, kernel, isinstance(position, tuple))
    scale = dim**-0.5 if scale is None else scale
    tiles = tiles or tile_layout(q, (h, w), tuple(kv.shape[1:3]), kernel, border, length, isinstance(position, Tensor))
    if border == "zero":
        kv = F.pad(kv, (0, 0, 0, 0, 0, 0, *[kernel // 2] * 4))  # [B, H+k-1, W+k-1, 2, heads, d]
    if isinstance(position, tuple):
        terms = [  # [B, H, W, heads, T + 1] to [B, H, W, heads, n or m'']
            F.pad(_per_head(half, table) * scale, (0, 1), value=-math.inf).gather(-1, x.expand(*q.shape[:-1], -1))
            for half, table, x in zip(q.chunk(2, dim=-1), position, tiles.offsets)
        ]
        of_row, of_column = (tiles.of_queries(x).flatten(0, 1) for x in terms)  # [G*B', heads', t*t, n], [..., m'']
        biases = [(of_column[..., None] + of_row[..., None, :]).flatten(-2)]  # [G*B', heads', t*t, m''*n]
    else:
        biases = tiles.biases(position.to(q.dtype)).split(1)  # [1, heads', t*t, align(m*n)] each
    parts = tiles.of_queries(q), *tiles.of_keys(kv)  # [G, B', heads', t*t, d], [..., m*n, d] twice
    if torch.compiler.is_compiling() and isinstance(position, tuple):
        # While compiling, a bias per image makes torch ask whether G*B' is 1. In eager mode a GPU's grid limits heads.
        parts, biases = [x.flatten(0, 2)[None, None] for x in parts], [biases[0].flatten(0, 1)[None]]
    outs = [attend(*(x[rows].flatten(0, 1) for x in parts), bias, scale) for rows, bias in zip(tiles.groups, biases)]
    y = outs[0] if len(outs) == 1 else torch.cat(outs)  # [G*B', heads', t*t, d]
    return tiles.join(y, batch, heads)  # [B, H, W, heads*d]


def _published(q: Tensor, kernel: int, has_embeddings: bool) -> Tensor:
    """The products that papers count, ``[B, H, W, heads d]``: every query with ``kernel ** 2`` keys and values, and
    with as many embeddings if there are any."""
    b, h, w, heads, dim = q.shape
    length = 2 * dim if has_embeddings else dim
    q, k = q.new_empty(b, heads, h * w, length), q.new_empty(b, heads, kernel**2, length)
    y = q @ k.mT @ k[..., :dim]  # [B, heads, H*W, d]
    return y.transpose(1, 2).reshape(b, h, w, heads * dim)  # [B, H, W, heads*d]


def _per_head(x: Tensor, tables: Tensor) -> Tensor:
    """``[B, H, W, heads, d]`` times a table per head, ``[heads, T, d]``: ``[B, H, W, heads, T]``."""
    y = torch.bmm(x.flatten(0, 2).transpose(0, 1), tables.to(x.dtype).mT)  # [heads, B*H*W, T]
    return y.transpose(0, 1).unflatten(0, x.shape[:3])  # [B, H, W, heads, T]


def num_offsets(kernel: int, border: str) -> int:
    """Number of offsets query - key along an axis; raises for an even kernel or an unknown border."""
    if not isinstance(kernel, int) or kernel < 1 or kernel % 2 == 0:
        raise OptionError(f"kernel: got {kernel}, expected an odd number of positions, such as 7")
    check_choice("border", border, BORDERS)
    return 2 * kernel - 1 if border == "clamp" else kernel


@dataclass(frozen=True)
class Tiles:
    """The tiles of maps of one size: nH x nW tiles with N queries or keys each, column by column.

    As tensors they are ``[G, B', heads', N, d]``. The tiles of a row become heads: G is nH, B' the batch and heads' is
    ``heads * nW``, so that biases of a row serve all images and most rows. With a table of biases while compiling,
    nothing may depend on the number of rows: G is 1 and heads' is ``heads * nH * nW``. In eager mode this form would
    cost NAT-T at 800x1280 29 % more bytes.
    """

    size: tuple[int, int]  # map (h, w)
    side: int  # of a tile of queries, t
    grid: tuple[int, int]  # tiles along each axis, (nH, nW)
    spans: tuple[int, int]  # keys of a tile along each axis, (n, m)
    keys: tuple[Tensor, Tensor]  # row and column of every key of every tile, [nH * n] and [nW * m], int32
    # With embeddings: index into T offsets for every row of the map and key of its tile, [h, 1, 1, n], and likewise for
    # columns, [w, 1, m''] where m'' is m aligned. Index T is for hidden pairs.
    offsets: tuple[Tensor, Tensor] | None
    # With a table of biases: index for every pair in a tile, [kinds, kinds, t * t, align(m * n)], int32, for each kind
    # of tile along rows and columns. Kinds differ in their offsets.
    index: Tensor | None
    columns: Tensor | None  # kind of every tile along columns, [nW]; None if every tile is a kind
    groups: Sequence[slice]  # for every kind along rows: its rows of tiles
    pads: bool  # whether tiles are padded; always while compiling, so that one program serves all sizes
    whole: bool  # whether G is 1

    def of_keys(self, x: Tensor) -> list[Tensor]:
        """Keys and values ``[B, h, w, 2, heads, d]`` as tiles, ``[G, B', heads', m * n, d]`` each."""
        (rows, columns), (n, m), (b, *_, heads, d) = self.keys, self.spans, x.shape
        x = x.index_select(1, rows).unflatten(1, (self.grid[0], n))  # [B, nH, n, w, 2, heads, d]
        x = x.permute(4, 0, 5, 1, 3, 2, 6) if self.whole else x.permute(4, 1, 0, 5, 3, 2, 6)  # [2, nH, B, heads, ...]
        # [nH, B, heads, nW*m, n, d] each, to [G, B', heads', m*n, d]
        return [part.index_select(3, columns).view(*self._lead(b, heads), m * n, d) for part in x.unbind()]

    def of_queries(self, x: Tensor) -> Tensor:
        """A map ``[B, h, w, heads, d]`` as tiles ``[G, B', heads', t * t, d]``, padded with zeros right and bottom."""
        (h, w), (nh, nw), t, (b, _, _, heads, d) = self.size, self.grid, self.side, x.shape
        if self.pads:
            x = F.pad(x, (0, 0, 0, 0, 0, nw * t - w, 0, nh * t - h))  # [B, nH*t, nW*t, heads, d]
        x = x.view(b, nh, t, nw, t, heads, d)
        x = x.permute(0, 5, 1, 3, 4, 2, 6) if self.whole else x.permute(1, 0, 5, 3, 4, 2, 6)  # [nH, B, heads, nW, ...]
        return copied(x).view(*self._lead(b, heads), t * t, d)  # [G, B', heads', t*t, d]

    def join(self, x: Tensor, batch: int, heads: int) -> Tensor:
        """Tiles of queries ``[G * B', heads', t * t, d]`` to the map ``[B, h, w, heads d]``."""
        (nh, nw), t, d = self.grid, self.side, x.shape[-1]
        if self.whole:
            x = x.view(batch, heads, nh, nw, t, t, d).permute(0, 2, 5, 3, 4, 1, 6)  # [B, nH, t, nW, t, heads, d]
        else:
            x = x.view(nh, batch, heads, nw, t, t, d).permute(1, 0, 5, 3, 4, 2, 6)  # [B, nH, t, nW, t, heads, d]
        x = copied(x).view(batch, nh * t, nw * t, heads * d)  # [B, nH*t, nW*t, heads*d]
        return copied(crop(x, self.size, dim=1))  # [B, h, w, heads*d]

    def _lead(self, batch: int, heads: int) -> tuple[int, int, int]:
        nh, nw = self.grid
        return (1, batch, heads * nh * nw) if self.whole else (nh, batch, heads * nw)

    def biases(self, table: Tensor) -> Tensor:
        """The biases of the groups, ``[groups, heads', t * t, align(m * n)]``, from a table ``[heads, T, T]``."""
        table = F.pad(table, (0, 1, 0, 1), value=-math.inf).flatten(1)  # [heads, (T + 1)**2]
        x = table.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)  # [heads, kinds, kinds, ...]
        if self.whole:
            return x.flatten(0, 2)[None]  # [1, heads*nH*nW, t*t, align(m*n)]
        return x.transpose(0, 1).index_select(2, self.columns).flatten(1, 2)  # [kinds, heads*nW, t*t, align(m*n)]


def tile_layout(
    x: Tensor,
    size: tuple[int, int],
    keys: tuple[int, int],
    kernel: int,
    border: str,
    length: int,
    joint: bool,
) -> Tiles:
    """The tiles of a map for `attend_local`, with `size` (h, w) of the queries and `keys` (h, w) of the keys.

    `length` is T, and `joint` tells a table from embeddings, see `position` there. `x` gives the device and dtype.
    """
    if border == "zero":
        keys = tuple(n + kernel // 2 * 2 for n in keys)
    if traced := torch.compiler.is_compiling():
        side, spans = TILES[0], [TILES[0] + kernel - 1] * 2
    else:  # the spans above would cost NAT-T 2 % more bytes at 224x224
        side = _side(*size, kernel)
        spans = tuple(min(side + kernel - 1, n) for n in keys)
    rows, columns = (
        _tiles_of_axis(x, size[i], keys[i], side, spans[i], kernel, border, length, joint, bool(i)) for i in range(2)
    )
    grid = tuple((n + side - 1) // side for n in size)
    keys, offsets = (rows.keys, columns.keys), (rows.offsets, columns.offsets)
    pads = traced or any(n % side for n in size)
    if not joint:
        offsets = offsets[0][:, None, None], offsets[1][:, None]  # [h, 1, 1, n], [w, 1, m'']
        return Tiles(size, side, grid, spans, keys, offsets, None, None, [slice(None)], pads, False)
    of_rows, of_columns = offsets  # [kinds, t, n], [kinds, t, m]
    n, m = spans
    index = of_rows.view(-1, 1, 1, side, 1, n) + of_columns.view(-1, side, 1, m, 1)  # [kinds, kinds, t, t, m, n]
    index, pairs = index.flatten(4).flatten(2, 3), m * n  # [kinds, kinds, t*t, m*n]
    index = F.pad(index, (0, align(pairs) - pairs), value=length)  # [kinds, kinds, t*t, align(m*n)]
    groups = [slice(None)] if traced else rows.groups
    return Tiles(size, side, grid, spans, keys, None, index, columns.kinds, groups, pads, traced)


def _side(h: int, w: int, kernel: int) -> int:
    return min(TILES, key=lambda t: -(-h // t) * -(-w // t) * min(t + kernel - 1, h) * min(t + kernel - 1, w))


@dataclass(frozen=True)
class _Axis:
    """The tiles along one axis of a map, see `Tiles`."""

    keys: Tensor  # row or column of every key of every tile, [tiles * n], int32
    # Index into a table for queries and keys of a tile: for every query of the map, [size, n], int64; or for every kind
    # of tile, [kinds, t, n], int32.
    offsets: Tensor
    kinds: Tensor | None  # for columns: kind of every tile, [tiles]; None if each is its own kind
    groups: Sequence[slice]  # for rows: tiles of every kind


@cached_by_size
def _tiles_of_axis(
    size: int,
    keys: int,
    side: int,
    span: int,
    kernel: int,
    border: str,
    length: int,
    joint: bool,
    is_last: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> _Axis:
    """The tiles along an axis with `size` queries; every tile sees `span` keys.

    Padded queries copy the window of the last query, so that no softmax row is empty.
    """
    radius, tiles = kernel // 2, (size + side - 1) // side
    before = radius if border == "zero" else 0  # keys before the map
    numbers = partial(torch.arange, device=device, dtype=torch.int32)
    query = numbers(tiles * side).clamp(max=size - 1).view(tiles, side)  # [tiles, side]
    window = query + (before - radius)  # its first key
    if border == "clamp":
        window = window.clamp(max=size - kernel).clamp(min=0)
    key = window.narrow(1, 0, 1).clamp(max=keys - span).clamp(min=0) + numbers(span)  # [tiles, n]
    place = key.unsqueeze(1) - window.unsqueeze(2)  # of a key in the window of a query, [tiles, side, n]
    sees = (place.clamp(0, kernel - 1) == place) & (key < keys).unsqueeze(1)
    offset = (query + (before + length // 2)).unsqueeze(2) - key.unsqueeze(1)
    offset = torch.where(sees, offset, length)  # [tiles, side, n]
    key = key.clamp(max=keys - 1).flatten()  # [tiles*n]
    if not joint:
        if is_last:
            offset = F.pad(offset, (0, align(span) - span), value=length)  # [tiles, side, m'']
        return _Axis(key, offset.flatten(0, 1)[:size].long(), None, [])
    offset = offset if is_last else offset * (length + 1)  # the table's rows have T + 1 entries
    if torch.compiler.is_compiling():  # the number of tiles is unknown: every tile is a kind
        return _Axis(key, offset, None, [])
    # Inner tiles all have the same offsets: the first of them, and the first after them.
    start = min((radius - before + side - 1) // side, tiles)
    stop = max((size + before - radius) // side, start)
    firsts = [*range(start), *range(start, stop)[:1], *range(stop, tiles)]
    offset = torch.cat([offset[:start], offset[start:stop][:1], offset[stop:]])  # [kinds, side, n]
    if not is_last:
        return _Axis(key, offset, None, [slice(i, j) for i, j in zip(firsts, [*firsts[1:], None])])
    kinds = numbers(tiles)
    return _Axis(key, offset, kinds - (kinds - start).clamp(0, max(stop - start - 1, 0)), [])


class LocalAttention(nn.Module):
    """Multi-head self-attention of every position of a map to its neighbourhood, without the last projection.

    With ``'clamp'`` a map smaller than the kernel is padded with zeros right and bottom before queries, keys and values
    are computed, as in NAT's code: attention sees the padding.

    Args:
        dim: Channels.
        num_heads: Attention heads.
        kernel: Side of the neighbourhood, odd.
        border: ``'mask'``, ``'zero'`` or ``'clamp'``, see `attend_local`.
        position: ``'table'``, a bias per head and offset; ``'query'``, the product of the query with learned embeddings
            of the row and the column of the offset ("Stand-alone self-attention", section 3.1); or None.
        qkv_bias: Whether queries, keys and values have a bias.
        scale: Factor on the logits; ``d ** -0.5`` when None.
    """

    attends_over = "BHWC"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel: int,
        border: str = "mask",
        position: str | None = "table",
        qkv_bias: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        length = num_offsets(kernel, border)
        check_choice("position", position, POSITIONS)
        if dim % (num_heads * (2 if position == "query" else 1)):
            raise OptionError(f"num_heads: got {num_heads} for {dim} channels, expected equal heads, of even channels")
        self.num_heads, self.kernel, self.border, self.position, self.scale = num_heads, kernel, border, position, scale
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.bias = TableBias((length // 2 + 1,) * 2, num_heads) if position == "table" else None
        for name in ("rel_pos_h", "rel_pos_w") if position == "query" else ():
            table = trunc_normal_(torch.empty(num_heads, length, dim // num_heads // 2), std=0.02)
            self.register_parameter(name, nn.Parameter(table))

    def layout(self, x: Tensor) -> Tiles:
        """The tiles of a map ``[B, H, W, C]``, which layers with the same options can share."""
        size = x.shape[1], x.shape[2]
        table = self.rel_pos_h[0] if self.position == "query" else self.bias and self.bias.relative_position_bias_table
        length = num_offsets(self.kernel, self.border) if table is None else table.shape[0]
        return tile_layout(x, size, self._keys(size), self.kernel, self.border, length, self.position != "query")

    def forward(self, x: Tensor, tiles: Tiles | None = None) -> Tensor:
        """``[B, H, W, C]`` to the same; `tiles` are from `layout`, made here when None."""
        (h, w), tiles = x.shape[1:3], tiles or self.layout(x)
        rows, columns = self._keys((h, w))
        padded = self.border == "clamp" and (torch.compiler.is_compiling() or (rows, columns) != (h, w))
        if padded:
            x = F.pad(x, (0, 0, 0, columns - w, 0, rows - h))  # [B, H', W', C]
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, x.shape[-1] // self.num_heads))  # [B, H', W', 3, heads, d]
        q, kv = qkv.split((1, 2), dim=3)
        q = q.squeeze(3)  # [B, H', W', heads, d]
        q = crop(q, (h, w), dim=1) if padded else q  # [B, H, W, heads, d]
        position = self.bias and self.bias.relative_position_bias_table.permute(2, 0, 1)  # [heads, T, T]
        if self.position == "query":
            position = self.rel_pos_h, self.rel_pos_w
        return attend_local(q, kv, self.kernel, self.border, position, self.scale, tiles)  # [B, H, W, C]

    def _keys(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the keys of a map (h, w): as many as the map has, or more for ``'clamp'``."""
        return tuple(longer(n, self.kernel) for n in size) if self.border == "clamp" else size
