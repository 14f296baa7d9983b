"""EoMT and PMT as heads of mmseg."""

from typing import Any

from mmseg.models.decode_heads import Mask2FormerHead

from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead
from vitdense.mm.registry import MODELS


class _Semantic(Mask2FormerHead):
    """mmseg's interface: a mask for every class of the image as target, logits for every pixel as result."""

    def __init__(self, num_classes: int, ignore_index: int = 255, **options: Any) -> None:
        # mmseg's own would make a second classifier.
        super(Mask2FormerHead, self).__init__(num_things_classes=num_classes, num_stuff_classes=0, **options)
        self.out_channels, self.ignore_index, self.align_corners = num_classes, ignore_index, False


@MODELS.register_module()
class EoMTSegHead(_Semantic, EoMTHead):
    """`EoMTHead` for mmseg, with `num_classes` and `ignore_index`, the label of pixels that no mask has."""


@MODELS.register_module()
class PMTSegHead(_Semantic, PMTHead):
    """`PMTHead` for mmseg, with `num_classes` and `ignore_index`, the label of pixels that no mask has."""
