"""Local self-attention: every position of a map attends to the k x k positions around it.

Queries are cut into tiles, keys and values into tiles with a halo: attention is then a few batched products. Pairs of a
tile that do not see each other are hidden by the bias, which also holds the positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from vitdense.layers.attention import attend
from vitdense.layers.bias import TableBias
from vitdense.layers.layout import align, copied, made_once, zero

BORDERS = ("mask", "zero", "clamp")
POSITIONS = ("table", "query", None)
TILES = (7, 8)  # sides of a tile of queries; while a model is compiled, the first


def attend_local(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: int,
    border: str = "mask",
    position: Tensor | tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of every position of a map to its neighbourhood of `kernel` x `kernel` positions.

    At the border of the map the neighbourhood is cut off (``'mask'``); or it has keys and values of zero outside, which
    take part in the softmax (``'zero'``); or it is moved into the map (``'clamp'``), and is all of a smaller map.

    Args:
        q: Queries, ``[B, H, W, heads, d]``.
        k: Keys, likewise. For ``'clamp'`` there may be more of them right and bottom, for maps smaller than the kernel.
        v: Values, as the keys.
        kernel: Side of the neighbourhood, odd.
        border: One of `BORDERS`.
        position: None; or a bias for every offset of a query from a key, ``[heads, T, T]`` with offset (0, 0) in the
            centre; or embeddings of the offsets of rows and of columns, ``[heads, T, d / 2]`` each: the bias is the
            product of the query with both, joined, times `scale`. T is odd, and at least `num_offsets`.
        scale: Factor on the logits; ``d ** -0.5`` when None.

    Returns:
        ``[B, H, W, heads d]``.

    Raises:
        ValueError: An even kernel, an unknown border, or too few offsets.
    """
    if has_torch_function((q, k, v)):  # `vitdense.report` counts the pairs of the definition, not those of tiles
        return handle_torch_function(attend_local, (q, k, v), q, k, v, kernel, border, position, scale)
    (_, h, w, heads, dim), least, length = q.shape, num_offsets(kernel, border), 1
    if position is None:
        position = zero(q).expand(heads, 1, 1)  # [heads, 1, 1]
    elif (length := position[0].shape[1]) < least or length % 2 == 0:
        raise ValueError(f"position: got {length} offsets, expected at least {least}, an odd number")
    scale = dim**-0.5 if scale is None else scale
    if border == "zero":
        k, v = (F.pad(x, (0, 0, 0, 0, *[kernel // 2] * 4)) for x in (k, v))  # [B, H+k-1, W+k-1, heads, d] each
    tiles = _tiles(q, (h, w), tuple(k.shape[1:3]), _side(h, w, kernel), kernel, border, length)
    if isinstance(position, tuple):
        terms = [  # [B, H, W, heads, T + 1] to [B, H, W, heads, n]
            F.pad(_per_head(half, table) * scale, (0, 1), value=-math.inf).gather(-1, x.expand(*q.shape[:-1], -1))
            for half, table, x in zip(q.chunk(2, dim=-1), position, tiles.offsets)
        ]
        of_row, of_column = (tiles.of_queries(x).flatten(0, 1) for x in terms)  # [G*B', heads', t*t, n], [..., m'']
        groups, biases = [slice(None)], [(of_column[..., None] + of_row[..., None, :]).flatten(-2)]
    else:
        groups, biases = tiles.groups, tiles.biases(position.to(q.dtype)).split(1)  # [1, heads', t*t, align(m*n)] each
    parts = tiles.of_queries(q), tiles.of_keys(k), tiles.of_keys(v)  # [G, B', heads', t*t, d], [..., m*n, d] twice
    shape = parts[0].shape[:3]
    images_are_heads = torch.compiler.is_compiling() and isinstance(position, tuple)
    if images_are_heads:  # [1, 1, B*heads', ...] each: a bias for every image would fix whether there is more than one
        parts, biases = [x.flatten(1, 2)[:, None] for x in parts], [biases[0].flatten(0, 1)[None]]
    outs = [attend(*(x[rows].flatten(0, 1) for x in parts), bias, scale) for rows, bias in zip(groups, biases)]
    y = outs[0] if len(outs) == 1 else torch.cat(outs)  # [G*B', heads', t*t, d]
    y = y.unflatten(1, shape[1:]) if images_are_heads else y.unflatten(0, shape[:2])  # [G, B', heads', t*t, d]
    return tiles.join(y)  # [B, H, W, heads*d]


def _per_head(x: Tensor, tables: Tensor) -> Tensor:
    """Products of ``[B, H, W, heads, d]`` with a table for each head, ``[heads, T, d]``: ``[B, H, W, heads, T]``."""
    y = torch.bmm(x.flatten(0, 2).transpose(0, 1), tables.to(x.dtype).mT)  # [heads, B*H*W, T]
    return y.transpose(0, 1).unflatten(0, x.shape[:3])  # [B, H, W, heads, T]


def num_offsets(kernel: int, border: str) -> int:
    """How many offsets a query has from its keys along an axis.

    Raises:
        ValueError: An even kernel or an unknown border.
    """
    if not isinstance(kernel, int) or kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel: got {kernel}, expected an odd number of positions, such as 7")
    if border not in BORDERS:
        raise ValueError(f"border: got {border!r}, expected one of {', '.join(BORDERS)}")
    return 2 * kernel - 1 if border == "clamp" else kernel


def crop(x: Tensor, h: int, w: int) -> Tensor:
    """The first rows and columns of a map ``[B, H, W, ...]``, ``[B, h, w, ...]``."""
    if torch.compiler.is_compiling():  # whether a part is contiguous would depend on the sizes, and layers ask
        rows, columns = (torch.arange(n, device=x.device) for n in (h, w))
        return x.index_select(1, rows).index_select(2, columns)  # [B, h, w, ...]
    return x[:, :h, :w]


def _side(h: int, w: int, kernel: int) -> int:
    """The side of a tile with which the fewest keys are copied."""
    if torch.compiler.is_compiling():
        return TILES[0]
    return min(TILES, key=lambda t: -(-h // t) * -(-w // t) * min(t + kernel - 1, h) * min(t + kernel - 1, w))


@dataclass(frozen=True)
class _Tiles:
    """The tiles of maps of one size: nH x nW of them with N queries or keys each, column by column.

    As tensors they are ``[G, B', heads', N, d]``. The tiles of a row of tiles are heads: G is nH, B' the batch and
    heads' is ``heads * nW``, so that biases of a row serve all images, and most rows. While a model is compiled, where
    nothing may depend on the number of rows, G is 1 and heads' is ``heads * nH * nW``.

    Attributes:
        size: Map (h, w).
        side: Of a tile of queries, t.
        keys: Row, and column, of every key of every tile along an axis, ``[nH, n]`` and ``[nW, m]``, int32.
        offsets: Entry of a table of T offsets for every row of the map and key of its tile, ``[h, 1, 1, n]``, and
            column, ``[w, 1, m'']``. Entry T is that of hidden pairs, and fills up the columns.
        index: Entry of a joint table for every pair in a tile, ``[kinds, kinds, t * t, align(m * n)]``, int32: for
            kinds of tiles along rows and columns, of which no two have the same offsets.
        columns: Kind of every tile along columns, ``[nW]``; None while a model is compiled: every tile is a kind.
        groups: Rows of tiles of every kind along rows.
    """

    size: tuple[int, int]
    side: int
    keys: tuple[Tensor, Tensor]
    offsets: tuple[Tensor, Tensor]
    index: Tensor
    columns: Tensor | None
    groups: tuple[slice, ...]

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along each axis, (nH, nW)."""
        return self.keys[0].shape[0], self.keys[1].shape[0]

    def of_keys(self, x: Tensor) -> Tensor:
        """A map ``[B, h, w, heads, d]`` of keys or values as tiles ``[G, B', heads', m * n, d]``."""
        rows, columns = self.keys
        x = x.index_select(1, rows.flatten()).unflatten(1, rows.shape)  # [B, nH, n, w, heads, d]
        traced = self.columns is None
        x = x.permute(0, 4, 1, 3, 2, 5) if traced else x.permute(1, 0, 4, 3, 2, 5)  # [nH, B, heads, w, n, d]
        x = x.index_select(3, columns.flatten()).unflatten(3, columns.shape)  # [nH, B, heads, nW, m, n, d]
        x = x.flatten(4, 5)  # [nH, B, heads, nW, m*n, d]
        return x.flatten(1, 3)[None] if traced else x.flatten(2, 3)  # [G, B', heads', m*n, d]

    def of_queries(self, x: Tensor) -> Tensor:
        """A map ``[B, h, w, heads, d]`` as tiles ``[G, B', heads', t * t, d]``, padded with zeros right and bottom."""
        (h, w), (nh, nw), t, traced = self.size, self.grid, self.side, self.columns is None
        if traced or h % t or w % t:
            x = F.pad(x, (0, 0, 0, 0, 0, nw * t - w, 0, nh * t - h))  # [B, nH*t, nW*t, heads, d]
        x = x.unflatten(2, (nw, t)).unflatten(1, (nh, t))  # [B, nH, t, nW, t, heads, d]
        x = x.permute(0, 5, 1, 3, 4, 2, 6) if traced else x.permute(1, 0, 5, 3, 4, 2, 6)  # [nH, B, heads, nW, t, t, d]
        x = copied(x).flatten(4, 5)  # [nH, B, heads, nW, t*t, d]
        return x.flatten(1, 3)[None] if traced else x.flatten(2, 3)  # [G, B', heads', t*t, d]

    def join(self, x: Tensor) -> Tensor:
        """Tiles ``[G, B', heads', t * t, d]`` of queries as a map ``[B, h, w, heads d]``."""
        (h, w), (nh, nw), t = self.size, self.grid, self.side
        if self.columns is None:
            x = x[0].unflatten(1, (-1, nh, nw)).permute(0, 2, 3, 1, 4, 5)  # [B, nH, nW, heads, t*t, d]
        else:
            x = x.unflatten(2, (-1, nw)).permute(1, 0, 3, 2, 4, 5)  # [B, nH, nW, heads, t*t, d]
        x = x.unflatten(4, (t, t)).permute(0, 1, 5, 2, 4, 3, 6)  # [B, nH, t, nW, t, heads, d]
        return crop(copied(x).view(x.shape[0], nh * t, nw * t, -1), h, w)  # [B, h, w, heads*d]

    def biases(self, table: Tensor) -> Tensor:
        """The biases of the groups, ``[groups, heads', t * t, align(m * n)]``, from a table ``[heads, T, T]``."""
        table = F.pad(table.flatten(1), (0, 1), value=-math.inf)  # [heads, T*T + 1]
        x = table.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)  # [heads, kinds, kinds, ...]
        if self.columns is None:
            return x.flatten(0, 2)[None]  # [1, heads*nH*nW, t*t, align(m*n)]
        return x.transpose(0, 1).index_select(2, self.columns).flatten(1, 2)  # [kinds, heads*nW, t*t, align(m*n)]


def _axis(
    size: int, keys: int, side: int, kernel: int, border: str, length: int, device: torch.device
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """The tiles along an axis of a map with `size` queries.

    Returns:
        The row, or column, of every key, ``[tiles, n]``; the entry of a table of offsets of every query and key,
        ``[tiles, side, n]``, the one after the table for a hidden pair; and the first of the tiles that are not at a
        border, which have the same entries, and the one after them. Every query sees a key: those after the map see
        what the last one does.
    """
    radius, tiles, span = kernel // 2, (size + side - 1) // side, side + kernel - 1
    before, inner = radius if border == "zero" else 0, (0, 0)  # keys before the map
    if not torch.compiler.is_compiling():  # there nothing may depend on sizes
        span = min(span, keys)
        start = min((radius - before + side - 1) // side, tiles)
        inner = start, max((size + before - radius) // side, start)
    query = torch.arange(tiles * side, device=device).clamp(max=size - 1).view(tiles, side)  # [tiles, side]
    window = query + before - radius  # its first key
    if border == "clamp":
        window = window.clamp(max=size - kernel).clamp(min=0)
    key = window[:, :1].clamp(max=keys - span).clamp(min=0) + torch.arange(span, device=device)  # [tiles, n]
    place = key[:, None] - window[..., None]  # of a key in the window of a query, [tiles, side, n]
    sees = (place >= 0) & (place < kernel) & (key < keys)[:, None]
    offset = (query + before)[..., None] - key[:, None] + length // 2
    offset = torch.where(sees, offset.clamp(0, length - 1), length)  # a table of one entry serves all offsets
    return key.clamp(max=keys - 1), offset, inner


@made_once
def _tiles(
    size: tuple[int, int],
    keys: tuple[int, int],
    side: int,
    kernel: int,
    border: str,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> _Tiles:
    keys, offsets, inner = zip(*(_axis(*n, side, kernel, border, length, device) for n in zip(size, keys)))
    y, x = (  # of every kind, [kinds, t, n] and [kinds, t, m]
        torch.cat([every[:start], every[start:stop][:1], every[stop:]]) for every, (start, stop) in zip(offsets, inner)
    )
    y, x = y[:, None, None, :, None, :], x[None, :, :, None, :, None]  # [kinds, 1, 1, t, 1, n], [1, kinds, t, 1, m, 1]
    index = torch.where((y == length) | (x == length), length**2, y * length + x)  # [kinds, kinds, t, t, m, n]
    index = index.flatten(4).flatten(2, 3)  # [kinds, kinds, t*t, m*n]
    index = F.pad(index, (0, align(index.shape[-1]) - index.shape[-1]), value=length**2)
    of_rows, of_columns = (x.flatten(0, 1)[:n] for x, n in zip(offsets, size))  # [h, n], [w, m]
    of_columns = F.pad(of_columns, (0, align(of_columns.shape[1]) - of_columns.shape[1]), value=length)
    kinds, groups = None, (slice(None),)
    if not torch.compiler.is_compiling():
        (start, stop), tile = inner[1], torch.arange(keys[1].shape[0], device=device)  # [nW]
        kinds = (tile - (tile - start).clamp(0, max(stop - start - 1, 0))).int()  # [nW]
        start, stop = inner[0]
        firsts = [*range(start), *range(start, stop)[:1], *range(stop, keys[0].shape[0])]
        groups = tuple(slice(i, j) for i, j in zip(firsts, [*firsts[1:], None]))
    offsets = of_rows[:, None, None], of_columns[:, None]  # [h, 1, 1, n], [w, 1, m'']
    return _Tiles(size, side, tuple(key.int() for key in keys), offsets, index.int(), kinds, groups)


class LocalAttention(nn.Module):
    """Multi-head self-attention of every position of a map to its neighbourhood, without the last projection.

    With ``'clamp'`` a map that is smaller than the kernel is padded with zeros right and bottom before queries, keys
    and values are made, as in NAT's code: the padding is visible.

    Args:
        dim: Channels.
        num_heads: Attention heads.
        kernel: Side of the neighbourhood, odd.
        border: ``'mask'``, ``'zero'`` or ``'clamp'``, see `attend_local`.
        position: ``'table'``, a bias per head and offset; ``'query'``, the product of the query with learned embeddings
            of the row and the column of the offset ("Stand-alone self-attention", section 3.1); or None.
        qkv_bias: Whether queries, keys and values have a bias.
        scale: Factor on the logits; None is one over the root of a head's channels.

    Raises:
        ValueError: An even kernel, an unknown border or position, or heads that do not divide the channels.
    """

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
        if position not in POSITIONS:
            raise ValueError(f"position: got {position!r}, expected one of {', '.join(map(repr, POSITIONS))}")
        if dim % (num_heads * (2 if position == "query" else 1)):
            raise ValueError(f"num_heads: got {num_heads} for {dim} channels, expected equal heads, of even channels")
        self.num_heads, self.kernel, self.border, self.position, self.scale = num_heads, kernel, border, position, scale
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.bias = TableBias((length // 2 + 1,) * 2, num_heads) if position == "table" else None
        for name in ("rel_pos_h", "rel_pos_w") if position == "query" else ():
            table = trunc_normal_(torch.empty(num_heads, length, dim // num_heads // 2), std=0.02)
            self.register_parameter(name, nn.Parameter(table))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to the same."""
        h, w = x.shape[1:3]
        if self.border == "clamp":
            x = _padded(x, self.kernel)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(3)  # [B, H, W, heads, d] each
        if self.border == "clamp":
            q = crop(q, h, w)  # [B, H, W, heads, d]
        if self.position == "query":
            position = self.rel_pos_h, self.rel_pos_w
        else:
            position = None if self.bias is None else self.bias.relative_position_bias_table.permute(2, 0, 1)
        return attend_local(q, k, v, self.kernel, self.border, position, self.scale)  # [B, H, W, C]


def _padded(x: Tensor, kernel: int) -> Tensor:
    """A map ``[B, H, W, C]``, padded right and bottom where it is smaller than the kernel."""
    (h, w), reach = x.shape[1:3], kernel - 1
    if torch.compiler.is_compiling():  # no less there, and nothing from the kernel on: exporters mistake a maximum
        right, bottom = (reach // n * reach for n in (w, h))
    else:
        right, bottom = (max(kernel - n, 0) for n in (w, h))
        if right == bottom == 0:
            return x
    return F.pad(x, (0, 0, 0, right, 0, bottom))  # [B, H + bottom, W + right, C]
