"""Position biases: modules whose only job is a tensor to add to attention logits."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn


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


class TableBias(nn.Module):
    """Learned relative position bias of one window size (Swin section 3.2, equation 4).

    Args:
        window: Window size (h, w) in tokens.
        num_heads: Number of attention heads.
    """

    def __init__(self, window: tuple[int, int], num_heads: int) -> None:
        super().__init__()
        self.window = window
        rows = (2 * window[0] - 1) * (2 * window[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(rows, num_heads))
        # Derived from the window, hence never part of a checkpoint.
        self.register_buffer("index", relative_position_index(window), persistent=False)
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self) -> Tensor:
        """Returns ``[1, heads, wh * ww, wh * ww]``."""
        tokens = self.index.shape[0]
        bias = self.relative_position_bias_table[self.index.view(-1)]  # [tokens*tokens, heads]
        return bias.view(1, tokens, tokens, -1).permute(0, 3, 1, 2).contiguous()  # [1, heads, tokens, tokens]
