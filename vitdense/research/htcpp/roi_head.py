"""Hybrid Task Cascade (Chen et al., CVPR 2019) of mmdet, corrected."""

from collections.abc import Sequence

import torch.nn.functional as F
from mmdet.models.roi_heads import HybridTaskCascadeRoIHead
from torch import Tensor

from vitdense.mm.registry import MODELS


@MODELS.register_module()
class HTCRoIHead(HybridTaskCascadeRoIHead):
    """mmdet's HTC head, averaging masks over all stages in tests (bug fix; section 3.1).

    mmdet 3 runs every mask head in tests and keeps the masks of the last one only.
    """

    def _mask_forward(
        self,
        stage: int,
        x: Sequence[Tensor],
        rois: Tensor,
        semantic_feat: Tensor | None = None,
        training: bool = True,
    ) -> dict:
        """Mask logits ``[N, classes, 28, 28]`` of `rois` ``[N, 5]``: of a stage in training, a list in tests."""
        if training:
            return super()._mask_forward(stage, x, rois, semantic_feat, training)
        extractor = self.mask_roi_extractor[-1]
        features = extractor(x[: extractor.num_inputs], rois)  # [N, C, 14, 14]
        if self.with_semantic and "mask" in self.semantic_fusion:
            semantic = self.semantic_roi_extractor([semantic_feat], rois)
            features = features + F.adaptive_avg_pool2d(semantic, features.shape[2:])
        logits, previous = [], None
        for head in self.mask_head:
            mask, last = head(features, previous)
            logits.append(mask)  # [N, classes, 28, 28]
            previous = last if self.mask_info_flow else None  # [N, C, 14, 14]
        return {"mask_preds": logits}
