"""Position biases: modules that return a tensor to add to attention logits."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitdense.layers.layout import RelativePositions, align, longer, without_autocast
from vitdense.layers.resize import resize_relative_position


def relative_position_index(window: tuple[int, int]) -> Tensor:
    """Row of the bias table for every pair of tokens in a window (Swin section 3.2).

    Query ``i = (hi, wi)`` and key ``j = (hj, wj)``, row-major, read row
    ``(hi - hj + wh - 1) * (2 ww - 1) + (wi - wj + ww - 1)``.

    Args:
        window: Window size (h, w) in tokens.

    Returns:
        ``[wh * ww, wh * ww]``, int64.
    """
    wh, ww = window
    h, w = torch.arange(wh).repeat_interleave(ww), torch.arange(ww).repeat(wh)  # [wh*ww] each
    return (h[:, None] - h + wh - 1) * (2 * ww - 1) + (w[:, None] - w + ww - 1)  # [wh*ww, wh*ww]


def gather_bias(table: Tensor, index: Tensor, tokens: int) -> Tensor:
    """The bias of every pair of tokens in a window.

    Args:
        table: ``[..., heads, (2 wh - 1) (2 ww - 1)]``.
        index: Of the pairs, ``[N * align(N)]``; see `_WindowBias`.
        tokens: N.

    Returns:
        ``[..., heads, N, align(N)]``; the last columns fill the rows up.
    """
    return table.index_select(-1, index).unflatten(-1, (tokens, -1))  # [..., heads, N, align(N)]


class _WindowBias(nn.Module):
    """A bias of all pairs of tokens in a window. Its buffers follow from the constructor's arguments: they are in no
    checkpoint, and are made again when a module that was built on the meta device gets memory (`to_empty`).

    Attributes:
        index: Row of the table of every pair, ``[N * align(N)]``, int32: rows of keys are filled up with the last one.
    """

    window: tuple[int, int]
    index: Tensor

    def make_buffers(self, device: torch.device | None = None) -> None:
        """Register the buffers, filled."""
        index = relative_position_index(self.window)  # [N, N]
        tokens = index.shape[0]
        index = torch.cat([index, index[:, -1:].expand(-1, align(tokens) - tokens)], dim=1)  # [N, align(N)]
        self.register_buffer("index", index.flatten().int().to(device), persistent=False)

    @staticmethod
    def tables(biases: Sequence["_WindowBias"]) -> Tensor:
        """The bias of every offset between two tokens, ``[n, heads, (2 wh - 1) (2 ww - 1)]``, of n biases of one window
        and number of heads."""
        raise NotImplementedError

    @classmethod
    def of_blocks(cls, biases: Sequence["_WindowBias"], dtype: torch.dtype) -> Tensor:
        """The biases of several blocks, made together: one by one, they are most of the kernels of a small map.

        Args:
            biases: Of the same window and number of heads.
            dtype: Of the result. The bias of an offset is cast before it is repeated for every pair.

        Returns:
            ``[n, heads, N, align(N)]`` for N = wh * ww; the last columns fill the rows up.
        """
        first = biases[0]
        return gather_bias(cls.tables(biases).to(dtype), first.index, first.window[0] * first.window[1])

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias of one block, ``[1, heads, N, N]``; in its own dtype when None."""
        bias = self.of_blocks([self], dtype or self.tables([self]).dtype)  # [1, heads, N, align(N)]
        return bias[..., : bias.shape[-2]]  # [1, heads, N, N]

    def _apply(self, fn: Callable, recurse: bool = True) -> "_WindowBias":
        was_meta = self.index.is_meta
        super()._apply(fn, recurse)
        if was_meta and not self.index.is_meta:
            self.make_buffers(self.index.device)
        return self


class TableBias(_WindowBias):
    """Learned relative position bias of one window size (Swin section 3.2, equation 4).

    Args:
        window: Window size (h, w) in tokens.
        num_heads: Number of attention heads.
    """

    def __init__(self, window: tuple[int, int], num_heads: int) -> None:
        super().__init__()
        self.window = window
        rows, columns = (2 * side - 1 for side in window)
        # With both axes: a flat table is the same for a 4x6 and a 6x4 window.
        self.relative_position_bias_table = nn.Parameter(torch.empty(rows, columns, num_heads))
        self.make_buffers()
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    @staticmethod
    def tables(biases: Sequence["TableBias"]) -> Tensor:
        tables = [bias.relative_position_bias_table.flatten(0, 1).T for bias in biases]
        return torch.stack(tables)  # [n, heads, (2wh-1)(2ww-1)]


def log_spaced_offsets(window: tuple[int, int], pretrained_window: tuple[int, int]) -> Tensor:
    """Every offset between two tokens of a window, log-spaced (Swin V2 section 3.3).

    Offsets are first scaled so that the pretraining window spans -8 to 8. Along a pretraining window of one token there
    is no span: offsets are multiplied by 8 alone.

    Args:
        window: Window size (h, w) in tokens.
        pretrained_window: Window size (h, w) in tokens whose offsets the MLP was trained on.

    Returns:
        ``[1, 2 h - 1, 2 w - 1, 2]``, within ±log2(9)/3 for the pretraining window.
    """
    axes = [
        8 * torch.arange(1 - side, side, dtype=torch.float64) / max(trained - 1, 1)  # [2*side-1]
        for side, trained in zip(window, pretrained_window)
    ]
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)[None]  # [1, 2h-1, 2w-1, 2]
    return (offsets.sign() * (1 + offsets.abs()).log2() / math.log2(8)).to(torch.get_default_dtype())


def window_of_offsets(table: Tensor) -> tuple[int, int]:
    """The pretraining window (h, w) in tokens of a table that `log_spaced_offsets` made; 1 where it has one token.

    Args:
        table: ``[1, 2 h - 1, 2 w - 1, 2]``.
    """
    _, rows, columns, _ = table.shape
    farthest = (2 ** (math.log2(8) * table[0, -1, -1].double()) - 1).tolist()  # 8 (side - 1) / (pretraining side - 1)
    sides = ((rows + 1) // 2, (columns + 1) // 2)
    return tuple(round(1 + 8 * (side - 1) / far) if side > 1 else 1 for side, far in zip(sides, farthest))


class DecomposedBias(nn.Module):
    """Relative positions as a sum over the axes of products with the query (MViTv2 section 3.1, equation 5).

    The bias of query (y, x) and key (v, u) is ``q . rel_pos_h[y, v] + q . rel_pos_w[x, u]``. The two terms are returned
    apart: their sum over all pairs is as large as the attention matrix.

    Args:
        size: Sides (h, w) of the larger of the query and key grids in pretraining, in tokens.
        dim: Channels of a head.
    """

    def __init__(self, size: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.empty(2 * size[0] - 1, dim))
        self.rel_pos_w = nn.Parameter(torch.empty(2 * size[1] - 1, dim))
        for table in (self.rel_pos_h, self.rel_pos_w):
            trunc_normal_(table, std=0.02)

    def forward(
        self, q: Tensor, keys: tuple[int, int], layout: RelativePositions, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The terms of both axes.

        Args:
            q: Queries without their scale, ``[B, h, w, heads, d]``.
            keys: Grid (h', w') of the keys in tokens.
            layout: Of queries and keys.
            factor: On both terms.

        Returns:
            ``[B, h, w, heads, h'']``, see `RelativePositions`, and ``[B, h, w, heads, w']``.
        """
        b, h, w, heads, dim = q.shape
        table = torch.cat(
            [
                resize_relative_position(table, 2 * longer(n, k) - 1)  # [2*max(n, k) - 1, d]
                for table, n, k in zip((self.rel_pos_h, self.rel_pos_w), (h, w), keys)
            ]
        )
        if factor != 1:
            table = table * factor
        pairs = table.to(q.dtype).index_select(0, layout.index)  # [h*h'' + w*heads*w', d]
        rows, columns = pairs.split([h * layout.rows, w * heads * keys[1]])
        # Batched products of views of the queries: for a row of the map all its columns and heads, for a column and a
        # head all rows of all maps.
        by_row = q.reshape(b, h, w * heads, dim)
        by_column = by_row.flatten(0, 1).transpose(0, 1)  # [w*heads, B*h, d]
        along_h = by_row @ rows.view(h, layout.rows, dim).transpose(1, 2)  # [B, h, w*heads, h'']
        along_w = by_column @ columns.view(w * heads, keys[1], dim).transpose(1, 2)  # [w*heads, B*h, w']
        along_h = along_h.unflatten(2, (w, heads))  # [B, h, w, heads, h'']
        return along_h, along_w.transpose(0, 1).unflatten(1, (w, heads)).unflatten(0, (b, h))  # [B, h, w, heads, w']


class LogCpbBias(_WindowBias):
    """Continuous relative position bias: an MLP from log-spaced offsets to a logit (Swin V2 section 3.3).

    Its weights do not depend on the window, so that weights of one window serve another without interpolation. It is
    computed in float32 at least: half precision distinguishes neighbouring offsets badly.

    Args:
        window: Window size (h, w) in tokens.
        num_heads: Number of attention heads.
        pretrained_window: Window size (h, w) in tokens that the weights were trained with; `window` when None.
    """

    def __init__(
        self, window: tuple[int, int], num_heads: int, pretrained_window: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.window, self.pretrained_window = window, pretrained_window or window
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, num_heads, bias=False))
        self.make_buffers()

    def make_buffers(self, device: torch.device | None = None) -> None:
        super().make_buffers(device)
        offsets = log_spaced_offsets(self.window, self.pretrained_window)
        self.register_buffer("relative_coords_table", offsets.to(device), persistent=False)

    @staticmethod
    def tables(biases: Sequence["LogCpbBias"]) -> Tensor:
        """Within 0 and 16, in float32 or wider; see `_WindowBias`."""
        offsets = biases[0].relative_coords_table.flatten(0, 2)  # [T, 2] for T = (2wh-1)(2ww-1)
        hidden, outs = zip(*((bias.cpb_mlp[0], bias.cpb_mlp[2]) for bias in biases))
        dtype = torch.promote_types(hidden[0].weight.dtype, torch.float32)
        with without_autocast(offsets):
            # The layers' weights, not the layers: those would compute one by one, and in half precision in a
            # half-precision model.
            weight = torch.cat([layer.weight for layer in hidden]).to(dtype)  # [n*512, 2]
            x = F.linear(offsets.to(dtype), weight, torch.cat([layer.bias for layer in hidden]).to(dtype))  # [T, n*512]
            x = x.relu().unflatten(1, (len(biases), -1)).permute(1, 2, 0)  # [n, 512, T]
            x = torch.stack([layer.weight for layer in outs]).to(dtype) @ x  # [n, heads, T]
            # Sigmoid before the gather: there are far fewer offsets than pairs.
            return 16 * x.sigmoid()  # [n, heads, T]
