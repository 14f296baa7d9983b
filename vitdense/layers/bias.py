"""Position biases: modules that return a tensor to add to attention logits."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

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


def gather_bias(table: Tensor, index: Tensor) -> Tensor:
    """The bias of every pair of tokens in a window.

    Args:
        table: ``[(2 wh - 1) (2 ww - 1), heads]``.
        index: From `relative_position_index`, ``[N, N]``.

    Returns:
        ``[1, heads, N, N]``.
    """
    tokens = index.shape[0]
    bias = table[index.view(-1)]  # [N*N, heads]
    return bias.view(1, tokens, tokens, -1).permute(0, 3, 1, 2).contiguous()  # [1, heads, N, N]


class _WindowBias(nn.Module):
    """A bias of all pairs of tokens in a window. Its buffers follow from the constructor's arguments: they are in no
    checkpoint, and are made again when a module that was built on the meta device gets memory (`to_empty`)."""

    index: Tensor

    def make_buffers(self, device: torch.device | None = None) -> None:
        """Register the buffers, filled."""
        raise NotImplementedError

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

    def make_buffers(self, device: torch.device | None = None) -> None:
        self.register_buffer("index", relative_position_index(self.window).to(device), persistent=False)

    def forward(self) -> Tensor:
        """Returns ``[1, heads, wh * ww, wh * ww]``."""
        table = self.relative_position_bias_table.flatten(0, 1)  # [(2wh-1)(2ww-1), heads]
        return gather_bias(table, self.index)  # [1, heads, wh*ww, wh*ww]


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


def relative_index_1d(num_queries: int, num_keys: int) -> Tensor:
    """Row of a decomposed table for every query and key along one axis (MViTv2 section 3.1).

    Queries and keys may differ in number: both are placed on the finer of the two grids. Query i and key j then read
    row ``i max(k/q, 1) - j max(q/k, 1) + (k - 1) max(q/k, 1)``, computed in float32 and rounded towards zero as by the
    authors, of a table of ``2 max(q, k) - 1``.

    Returns:
        ``[num_queries, num_keys]``, int64.
    """
    of_query, of_key = max(num_keys / num_queries, 1.0), max(num_queries / num_keys, 1.0)
    i, j = torch.arange(num_queries)[:, None] * of_query, torch.arange(num_keys) * of_key  # [q, 1], [k]
    return (i - j + (num_keys - 1) * of_key).long()  # [q, k]


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

    def forward(self, q: Tensor, keys: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The terms of both axes.

        Args:
            q: Queries without their scale, ``[B, heads, h, w, d]``.
            keys: Grid (h', w') of the keys in tokens.

        Returns:
            ``[B, heads, h, w, h']`` and ``[B, heads, h, w, w']``.
        """
        rows = self.relative_embeddings(self.rel_pos_h, q.shape[2], keys[0]).to(q.dtype)  # [h, h', d]
        columns = self.relative_embeddings(self.rel_pos_w, q.shape[3], keys[1]).to(q.dtype)  # [w, w', d]
        return torch.einsum("bnhwd,hkd->bnhwk", q, rows), torch.einsum("bnhwd,wkd->bnhwk", q, columns)

    @staticmethod
    def relative_embeddings(table: Tensor, num_queries: int, num_keys: int) -> Tensor:
        """Rows of a table for every pair along an axis, ``[q, k, d]``; a table of another length is resized."""
        table = resize_relative_position(table, 2 * max(num_queries, num_keys) - 1)
        return table[relative_index_1d(num_queries, num_keys).to(table.device)]  # [q, k, d]


def _without_autocast(device: torch.device) -> AbstractContextManager:
    """Autocast switched off; the meta device has none."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


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
        self.register_buffer("index", relative_position_index(self.window).to(device), persistent=False)
        offsets = log_spaced_offsets(self.window, self.pretrained_window)
        self.register_buffer("relative_coords_table", offsets.to(device), persistent=False)

    def forward(self) -> Tensor:
        """Returns ``[1, heads, wh * ww, wh * ww]``, within 0 and 16, in float32 or wider."""
        hidden, _, out = self.cpb_mlp
        x = self.relative_coords_table.flatten(0, 2)  # [(2wh-1)(2ww-1), 2]
        dtype = torch.promote_types(hidden.weight.dtype, torch.float32)
        with _without_autocast(x.device):
            # The layers' weights, not the layers: those would compute in half precision in a half-precision model.
            x = F.linear(x.to(dtype), hidden.weight.to(dtype), hidden.bias.to(dtype)).relu()  # [(2wh-1)(2ww-1), 512]
            x = F.linear(x, out.weight.to(dtype))  # [(2wh-1)(2ww-1), heads]
            # Sigmoid before the gather: there are far fewer offsets than pairs.
            return gather_bias(16 * x.sigmoid(), self.index)  # [1, heads, wh*ww, wh*ww]
