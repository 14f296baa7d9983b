"""A ResNet with local self-attention ("Stand-alone self-attention", Ramachandran et al., NeurIPS 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.layers.blocks import init_transformer
from vitdense.research.nat.local import LocalAttention
from vitdense.research.resnet.model import BlockSpec, ResNet
from vitdense.research.sasa.sizes import SASA as SIZES
from vitdense.research.sasa.sizes import SASAArch


class LocalConv(nn.Module):
    """Local self-attention in place of a 3x3 convolution ("Stand-alone self-attention" section 3.2).

    The product of the query with row and column offsets is added to the unscaled logits. Keys outside of the map are
    masked. If the convolution has a stride of 2, average pooling over 2x2 pixels follows.
    """

    def __init__(self, dim: int, arch: SASAArch, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.attn = LocalAttention(dim, arch.num_heads, arch.kernel, position="query", qkv_bias=False, scale=1.0)
        self.attn.apply(init_transformer)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C, ceil(H / stride), ceil(W / stride)]``."""
        x = self.attn(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # [B, C, H, W]
        if self.stride == 1:
            return x
        h, w = x.shape[2:]
        # Pads odd sizes by the last row and column. While compiling always, so that one program serves all sizes; in
        # eager mode, padding by nothing would copy the map.
        if torch.compiler.is_compiling() or h % 2 or w % 2:
            x = F.pad(x, (0, (w + 1) // 2 * 2 - w, 0, (h + 1) // 2 * 2 - h), mode="replicate")
        return F.avg_pool2d(x, 2)  # [B, C, h, w]


class SASA(ResNet):
    """A ResNet with local self-attention in place of 3x3 convolutions, of all stages or of some.

    Arguments: see `ResNet`; `arch` is ``'sasa26'``, ``'sasa38'``, ``'sasa50'`` or a dict of the fields of `SASAArch`.
    """

    family, archs = "sasa", SIZES

    def make_block(self, spec: BlockSpec) -> nn.Module:
        block = super().make_block(spec)
        if spec.stage in self.arch.local_stages:
            block.conv2 = LocalConv(spec.width, self.arch, spec.stride)
        return block
