"""All heads for mmseg: importing this module registers them."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from vitdense.mm.registry import MODELS

if find_spec("mmdet"):  # for its losses and matching, as in mmseg's own Mask2Former
    from vitdense.mm.heads.mask_transformer import semantic  # noqa: F401


@MODELS.register_module()
class LinearHead(BaseDecodeHead):
    """Batch norm and a 1x1 convolution: how frozen trunks are compared (DINOv2, section 7.4; DINOv3, section 6.1).

    Several maps are resized to the first one and concatenated.

    Args:
        in_channels: Channels of the maps of `in_index`, one int or one for each.
        in_index: Maps to read.
        **kwargs: Arguments of mmseg's `BaseDecodeHead`, such as `num_classes`, `dropout_ratio` and `loss_decode`.
    """

    def __init__(self, in_channels: int | Sequence[int], in_index: int | Sequence[int] = -1, **kwargs: Any) -> None:
        transform = None if isinstance(in_channels, int) else "resize_concat"
        channels = in_channels if isinstance(in_channels, int) else sum(in_channels)
        super().__init__(in_channels, channels, in_index=in_index, input_transform=transform, **kwargs)
        self.bn = nn.SyncBatchNorm(channels)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Maps ``[B, C, H_i, W_i]`` to logits ``[B, classes, H, W]``, the size of the first map."""
        return self.cls_seg(self.bn(self._transform_inputs(inputs)))  # [B, classes, H, W]
