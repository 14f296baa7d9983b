"""Position biases: modules that return a tensor to add to attention logits."""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.init import trunc_normal_

from vitdense.layers.buffers import FormulaBuffers
from vitdense.layers.layout import align, longer, relative_index, without_autocast
from vitdense.layers.resize import resize_relative_position


def relative_position_index(window: tuple[int, int]) -> Tensor:
    """Row of the bias table for every pair of tokens in a window (h, w) (Swin section 3.2): [wh * ww, wh * ww], int64.

    Query ``i = (hi, wi)`` and key ``j = (hj, wj)``, row-major, read row
    ``(hi - hj + wh - 1) * (2 ww - 1) + (wi - wj + ww - 1)``.
    """
    wh, ww = window
    h, w = torch.arange(wh).repeat_interleave(ww), torch.arange(ww).repeat(wh)  # [wh*ww] each
    return (h[:, None] - h + wh - 1) * (2 * ww - 1) + (w[:, None] - w + ww - 1)  # [wh*ww, wh*ww]


class _WindowBias(FormulaBuffers):
    window: tuple[int, int]
    index: Tensor  # row of the table for every pair, [N * align(N)], int32; rows of keys are padded by the last one

    def make_buffers(self, device: torch.device | None = None) -> None:
        index = relative_position_index(self.window)  # [N, N]
        tokens = index.shape[0]
        index = torch.cat([index, index[:, -1:].expand(-1, align(tokens) - tokens)], dim=1)  # [N, align(N)]
        self.register_buffer("index", index.flatten().int().to(device), persistent=False)

    def of_offsets(self) -> Tensor:
        """The bias of every offset between two tokens, ``[heads, (2 wh - 1) (2 ww - 1)]``."""
        raise NotImplementedError

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias of every pair, ``[heads, N, align(N)]`` for N = wh * ww, in a dtype; the parameters' when None.

        Columns after N are padding.
        """
        table = self.of_offsets()  # [heads, (2wh-1)(2ww-1)]
        pairs = table.to(dtype or table.dtype).index_select(1, self.index)  # [heads, N*align(N)]
        return pairs.unflatten(1, (self.window[0] * self.window[1], -1))  # [heads, N, align(N)]


class TableBias(_WindowBias):
    """Learned relative position bias of a window of (h, w) tokens (Swin section 3.2, equation 4)."""

    def __init__(self, window: tuple[int, int], num_heads: int) -> None:
        super().__init__()
        self.window = window
        rows, columns = (2 * side - 1 for side in window)
        # Two axes, because a flat table would have the same shape for a 4x6 and a 6x4 window.
        self.relative_position_bias_table = nn.Parameter(torch.empty(rows, columns, num_heads))
        self.make_buffers()
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def of_offsets(self) -> Tensor:
        return self.relative_position_bias_table.flatten(0, 1).T  # [heads, (2wh-1)(2ww-1)]


def log_spaced_offsets(window: tuple[int, int], pretrained_window: tuple[int, int]) -> Tensor:
    """Every offset between two tokens of a window (h, w), log-spaced (Swin V2 section 3.3):
    ``[1, 2 h - 1, 2 w - 1, 2]``.

    Offsets are first scaled so that the pretraining window spans -8 to 8, which become ±log2(9)/3. If the pretraining
    window has one token along an axis, offsets are multiplied by 8.
    """
    axes = [
        8 * torch.arange(1 - side, side, dtype=torch.float64) / max(trained - 1, 1)  # [2*side-1]
        for side, trained in zip(window, pretrained_window)
    ]
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)[None]  # [1, 2h-1, 2w-1, 2]
    return (offsets.sign() * (1 + offsets.abs()).log2() / math.log2(8)).to(torch.get_default_dtype())


def window_of_offsets(table: Tensor) -> tuple[int, int]:
    """The pretraining window (h, w) in tokens of a table ``[1, 2 h - 1, 2 w - 1, 2]`` from `log_spaced_offsets`."""
    _, rows, columns, _ = table.shape
    farthest = (2 ** (math.log2(8) * table[0, -1, -1].double()) - 1).tolist()  # 8 (side - 1) / (pretraining side - 1)
    sides = ((rows + 1) // 2, (columns + 1) // 2)
    return tuple(round(1 + 8 * (side - 1) / far) if side > 1 else 1 for side, far in zip(sides, farthest))


class DecomposedBias(nn.Module):
    """Relative positions as a sum over the axes of products with the query (MViTv2 section 3.1, equation 5).

    The bias of query (y, x) and key (v, u) is ``q . rel_pos_h[y, v] + q . rel_pos_w[x, u]``. The two terms are returned
    separately, because their sum over all pairs is as large as the attention matrix. `size` is the larger (h, w) of the
    query and key grids in pretraining, in tokens; `dim` the channels of a head.
    """

    def __init__(self, size: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.empty(2 * size[0] - 1, dim))
        self.rel_pos_w = nn.Parameter(torch.empty(2 * size[1] - 1, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.rel_pos_h, self.rel_pos_w):
            trunc_normal_(table, std=0.02)

    def forward(
        self, q: Tensor, keys: tuple[int, int], num_rows: int | None = None, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The terms of both axes, ``[B, h, w, heads, h'']`` and ``[B, h, w, heads, w']``.

        Args:
            q: Queries without their scale, ``[B, h, w, heads, d]``.
            keys: Grid (h', w') of the keys in tokens.
            num_rows: h'', columns of the first term; values after the first h' are undefined. h' when None.
            factor: Factor on both terms.
        """
        b, h, w, heads, dim = q.shape
        num_rows = num_rows or keys[0]
        rows, columns = (
            self.of_pairs(q, table, index, 2 * longer(n, k) - 1, factor)
            for table, index, n, k in (
                (self.rel_pos_h, relative_index(q, h, keys[0], num_rows, 1), h, keys[0]),
                (self.rel_pos_w, relative_index(q, w, keys[1], keys[1], heads), w, keys[1]),
            )
        )  # [h*h'', d], [w*heads*w', d]
        # Batched products of views of the queries: for each row of the map all columns and heads; for each column and
        # head all rows of all maps.
        by_row = q.reshape(b, h, w * heads, dim)
        by_column = by_row.flatten(0, 1).transpose(0, 1)  # [w*heads, B*h, d]
        along_h = by_row @ rows.view(h, num_rows, dim).transpose(1, 2)  # [B, h, w*heads, h'']
        along_w = by_column @ columns.view(w * heads, keys[1], dim).transpose(1, 2)  # [w*heads, B*h, w']
        along_h = along_h.unflatten(2, (w, heads))  # [B, h, w, heads, h'']
        return along_h, along_w.transpose(0, 1).unflatten(1, (w, heads)).unflatten(0, (b, h))  # [B, h, w, heads, w']

    @staticmethod
    def of_pairs(q: Tensor, table: Tensor, index: Tensor, length: int, factor: float) -> Tensor:
        """The embeddings of an axis for every pair, ``[pairs, d]``, in the dtype of the queries."""
        table = resize_relative_position(table, length)  # [length, d]
        return (table if factor == 1 else table * factor).to(q.dtype).index_select(0, index)


class LogCpbBias(_WindowBias):
    """Continuous relative position bias: an MLP from log-spaced offsets to a logit (Swin V2 section 3.3).

    The weights do not depend on the window of (h, w) tokens, so weights of another window, `pretrained_window`, need no
    interpolation. The bias is computed in at least float32, because half precision can hardly tell offsets apart.
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

    def of_offsets(self) -> Tensor:
        """See `_WindowBias`; values are between 0 and 16, in float32 or wider."""
        offsets, own = self.relative_coords_table.flatten(0, 2), self.cpb_mlp[0].weight.dtype  # [T, 2]
        dtype = torch.promote_types(own, torch.float32)
        with without_autocast(offsets):
            if own == dtype:
                x = self.cpb_mlp(offsets.to(dtype))  # [T, heads] for T = (2wh-1)(2ww-1)
            else:  # a half-precision model computes it in float32
                wide = {name: weight.to(dtype) for name, weight in self.cpb_mlp.named_parameters()}
                x = functional_call(self.cpb_mlp, wide, (offsets.to(dtype),))  # [T, heads]
            # Sigmoid before the gather, because there are far fewer offsets than pairs.
            return 16 * x.T.sigmoid()  # [heads, T]
