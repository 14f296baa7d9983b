"""Cascade R-CNN of detectron2 in mmdet: one mask head, scaled gradients into the feature maps."""

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.structures import SampleList
from mmdet.structures.bbox import bbox2roi
from torch import Tensor

from vitdense.mm.registry import MODELS


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Identity; the gradient is multiplied by `scale`."""
    y = x.view_as(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * scale)
    return y


@MODELS.register_module()
class Detectron2CascadeRoIHead(CascadeRoIHead):
    """mmdet's `CascadeRoIHead` as detectron2 trains and runs it, with one mask head and RoI extractor for all stages.

    - the mask head trains on the positive samples of the first stage, with its loss weight, and predicts once, in the
      final boxes;
    - the gradient of every stage into the feature maps is scaled by 1 / `num_stages`; use `stage_loss_weights` of 1;
    - ground-truth boxes among the proposals are refined like all others. In detectron2, later stages keep every refined
      box: use a ``PseudoSampler`` for them;
    - a score is the mean of the stages' probabilities, not the softmax of their mean logits.
    """

    init_mask_head = StandardRoIHead.init_mask_head
    _mask_forward = StandardRoIHead._mask_forward
    predict_mask = StandardRoIHead.predict_mask

    def _bbox_forward(self, stage: int, x: Sequence[Tensor], rois: Tensor, probabilities: bool = False) -> dict:
        maps = [scale_gradient(level, 1 / self.num_stages) for level in x]
        results = super()._bbox_forward(stage, maps, rois)
        if probabilities:
            results["cls_score"] = results["cls_score"].softmax(-1)  # [N, classes + 1]
        return results

    def _refine_roi(self, *args: Any, **kwargs: Any) -> tuple:
        # mmdet averages the scores of the stages. It applies a softmax afterwards, which inverts the logarithm.
        rois, scores, deltas = super()._refine_roi(*args, probabilities=True, **kwargs)
        return rois, [score.log() for score in scores], deltas

    def bbox_loss(self, stage: int, x: Sequence[Tensor], sampling_results: list) -> dict:
        results = super().bbox_loss(stage, x, sampling_results)
        for sampled in sampling_results:  # next, `refine_bboxes` drops the boxes marked here
            sampled.pos_is_gt = torch.zeros_like(sampled.pos_is_gt)
        return results

    def mask_loss(self, stage: int, x: Sequence[Tensor], sampling_results: list, batch_gt_instances: list) -> dict:
        if stage > 0:
            return {"loss_mask": {}}
        results = self._mask_forward(x, bbox2roi([sampled.pos_priors for sampled in sampling_results]))
        return self.mask_head.loss_and_target(
            results["mask_preds"], sampling_results, batch_gt_instances, self.train_cfg[stage]
        )

    def forward(self, x: Sequence[Tensor], rpn_results_list: list, batch_data_samples: SampleList) -> tuple:
        """Raw outputs: per image, class logits and box deltas of the last stage; mask logits of all its RoIs."""
        proposals = [result.bboxes for result in rpn_results_list]
        metas = [sample.metainfo for sample in batch_data_samples]
        rois, *results = self._refine_roi(x, bbox2roi(proposals), metas, tuple(map(len, proposals)))
        if self.with_mask:
            results.append(self._mask_forward(x, torch.cat(rois))["mask_preds"])
        return tuple(results)
