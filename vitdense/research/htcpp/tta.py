"""Test-time augmentation of detectors with masks."""

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.roi_heads import CascadeRoIHead, HybridTaskCascadeRoIHead, StandardRoIHead
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import SampleList
from mmdet.structures.bbox import bbox_flip
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor

from vitdense.errors import OptionError
from vitdense.mm.registry import MODELS

ROI_HEADS = (StandardRoIHead, CascadeRoIHead, HybridTaskCascadeRoIHead)
FLIPPED_AXES = {"horizontal": [-1], "vertical": [-2], "diagonal": [-2, -1]}


@MODELS.register_module()
class InstanceTTAModel(DetTTAModel):
    """Test-time augmentation of masks for Mask R-CNN, Cascade Mask R-CNN and HTC; mmdet's `DetTTAModel` refuses them.

    As in detectron2, detections of all views are merged by NMS. Then the masks of the merged boxes are predicted in
    every view, and their mean is compared with ``mask_thr_binary``. Probabilities have steps of 1/255, as mmdet pastes
    them into an image.

    Args:
        tta_cfg: ``nms`` to merge boxes, and ``max_per_img``, how many are kept.
        **kwargs: Arguments of mmengine's `BaseTTAModel`, such as ``module``, the detector or its config.

    Raises:
        ValueError: The detector has another RoI head.
    """

    def __init__(self, tta_cfg: dict, **kwargs: Any) -> None:
        super().__init__(tta_cfg=ConfigDict(tta_cfg), **kwargs)
        head = getattr(self.module, "roi_head", None)
        # Sub-classes of mmdet that predict masks in another way need more than maps and boxes.
        if getattr(type(head), "predict_mask", None) not in [kind.predict_mask for kind in ROI_HEADS]:
            names = ", ".join(kind.__name__ for kind in ROI_HEADS)
            raise OptionError(f"InstanceTTAModel: got {type(head).__name__} as the roi_head, expected one of {names}")
        self.mask_threshold = head.test_cfg.mask_thr_binary
        head.test_cfg = head.test_cfg.copy()
        head.test_cfg.mask_thr_binary = -1  # masks of 0 to 255

    @torch.no_grad()
    def test_step(self, data: dict) -> SampleList:
        """Merged detections of a batch, in the size of the file.

        Args:
            data: ``inputs`` and ``data_samples``, each a list of views of lists of images, as ``TestTimeAug`` and
                ``pseudo_collate`` make them.
        """
        views = [dict(zip(data, view)) for view in zip(*data.values())]
        batches = [self.module.data_preprocessor(view, False) for view in views]
        maps = [self.module.extract_feat(batch["inputs"]) for batch in batches]
        samples = [batch["data_samples"] for batch in batches]
        semantics = [self._semantic(x) for x in maps]
        for x, of_view, semantic in zip(maps, samples, semantics):
            for sample, boxes in zip(of_view, self._predict_boxes(x, of_view, semantic)):
                sample.pred_instances = boxes
        merged = [self._merge_single_sample(of_image) for of_image in zip(*samples)]
        total = [0] * len(merged)
        for x, of_view, semantic in zip(maps, samples, semantics):
            for i, masks in enumerate(self._predict_masks(x, of_view, semantic, merged)):
                total[i] = total[i] + masks.float()  # [N, H, W]
        for sample, masks in zip(merged, total):
            sample.pred_instances.masks = masks / (255 * len(views)) >= self.mask_threshold  # [N, H, W]
        return merged

    def _semantic(self, x: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        head = self.module.roi_head
        if not isinstance(head, HybridTaskCascadeRoIHead):
            return ()
        return (head.semantic_head(x)[1] if head.with_semantic else None,)

    def _predict_boxes(self, x: Sequence[Tensor], samples: SampleList, semantic: tuple) -> list[InstanceData]:
        head = self.module.roi_head
        proposals = self.module.rpn_head.predict(x, samples, rescale=False)
        metas = [sample.metainfo for sample in samples]
        options = {"semantic_feat": semantic[0]} if semantic else {}
        return head.predict_bbox(x, metas, proposals, head.test_cfg, rescale=True, **options)

    def _predict_masks(
        self, x: Sequence[Tensor], samples: SampleList, semantic: tuple, merged: SampleList
    ) -> list[Tensor]:
        """Masks of the merged boxes from one view, ``[N, H, W]`` of 0 to 255, in the file's size and not flipped."""
        head = self.module.roi_head
        metas = [sample.metainfo for sample in samples]
        boxes = [_to_view(sample.pred_instances, meta) for sample, meta in zip(merged, metas)]
        plain = [{**meta, "flip": False} for meta in metas]  # mmdet fails to flip back masks of cascades
        results = head.predict_mask(x, *semantic, plain, boxes, rescale=True)
        flips = [FLIPPED_AXES[meta["flip_direction"]] if meta["flip"] else [] for meta in metas]
        return [result.masks.flip(axes) for result, axes in zip(results, flips)]


def _to_view(instances: InstanceData, meta: dict) -> InstanceData:
    """Detections in pixels of the file to pixels of a resized, perhaps flipped view."""
    boxes = instances.bboxes
    if meta["flip"]:
        boxes = bbox_flip(boxes, meta["ori_shape"], meta["flip_direction"])
    boxes = boxes * boxes.new_tensor(meta["scale_factor"]).repeat(2)
    return InstanceData(bboxes=boxes, labels=instances.labels, scores=instances.scores)
