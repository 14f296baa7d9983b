"""Masks as run-length codes: the masks of an image are never in memory all at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmdet.models.roi_heads.mask_heads import FCNMaskHead, HTCMaskHead
from mmdet.models.seg_heads import MaskFormerFusionHead
from mmdet.structures import SampleList
from mmengine.structures import InstanceData
from torch import Tensor

from vitdense.mm.registry import MODELS
from vitdense.results.result import as_text, codes_of
from vitdense.runtime import Output


class Codes(list):
    """Masks of an image of `size` (H, W): a list of COCO's RLE, ``{"size": [H, W], "counts": bytes}``, or None.

    `numpy.asarray`, as mm's visualizers call it, makes an array ``[N, H, W]``.
    """

    def __init__(self, codes: Iterable[dict | None], size: Sequence[int]) -> None:
        super().__init__(codes)
        self.size = tuple(size)

    def __getitem__(self, index: int | slice) -> Any:
        found = super().__getitem__(index)
        return Codes(found, self.size) if isinstance(index, slice) else found

    def __add__(self, other: list) -> "Codes":  # by mmengine's InstanceData, which adds what it selects
        return Codes([*self, *other], self.size)

    def __array__(self, dtype: Any = bool, copy: bool | None = None) -> np.ndarray:
        from pycocotools import mask as rle

        masks = np.zeros((len(self), *self.size), dtype or bool)
        for mask, code in zip(masks, self):
            if code is not None:
                mask[:] = rle.decode(code)
        return masks

    def astype(self, dtype: Any) -> np.ndarray:
        return self.__array__(dtype)


class _RLEMasks:
    """A mask head of mmdet whose results have ``masks`` as `Codes`.

    Detections below the score ``mask_score_thr`` in the image's `metainfo` (default 0) get None. mmdet pastes all masks
    into ``[N, H, W]``: 10 GB for 100 masks of a photo of 100 million pixels.
    """

    def predict_by_feat(
        self,
        mask_preds: Sequence[Tensor],
        results_list: list[InstanceData],
        batch_img_metas: list[dict],
        rcnn_test_cfg: Any,
        rescale: bool = False,
        activate_map: bool = False,
    ) -> list[InstanceData]:
        """Results of every image from ``mask_preds`` ``[N, classes, 28, 28]`` each; otherwise as in mmdet."""
        options = (rcnn_test_cfg, rescale, activate_map)
        if rcnn_test_cfg.mask_thr_binary < 0:  # for test-time augmentation: values, not masks
            return super().predict_by_feat(mask_preds, results_list, batch_img_metas, *options)
        for masks, results, meta in zip(mask_preds, results_list, batch_img_metas):
            counts = results.scores >= meta.get("mask_score_thr", 0)
            found: list[dict | None] = [None] * len(results)
            for i in counts.nonzero()[:, 0].tolist():
                # Slices: mmdet scales the boxes in place.
                (one,) = super().predict_by_feat([masks[i : i + 1]], [results[i : i + 1]], [meta], *options)
                found[i] = _encode(one.masks[0])
            if rescale:
                results.bboxes[~counts] /= results.bboxes.new_tensor(meta["scale_factor"]).repeat(2)
            results.masks = Codes(found, meta["ori_shape" if rescale else "img_shape"][:2])
        return results_list


def _encode(mask: Tensor) -> dict:
    from pycocotools import mask as rle

    columns = cv2.transpose(mask.cpu().numpy().view(np.uint8))  # [W, H], ten times as fast as NumPy
    return rle.encode(columns.T)


def fields_of(found: InstanceData) -> dict[str, Any]:
    """Detections of mmdet as fields of a `Result`; the mask is None if the score is too low for one."""
    found = found.cpu()
    fields = {"boxes": found.bboxes.numpy(), "scores": found.scores.numpy(), "labels": found.labels.numpy()}
    fields |= {name: found[name].numpy() for name in ("keypoints", "corners") if name in found}
    if "masks" not in found:
        return fields
    codes = (mask if mask is None or isinstance(mask, dict) else _encode(torch.as_tensor(mask)) for mask in found.masks)
    return fields | {"rle": [code and as_text(code) for code in codes]}


def instances_of(found: Output, size: Sequence[int]) -> InstanceData:
    """Objects in an image of `size` (H, W) as detections of mmdet, with masks as `Codes`."""
    arrays = {"bboxes": found.boxes, "scores": found.scores, "labels": found.labels}
    arrays |= {} if found.corners is None else {"corners": found.corners}
    instances = InstanceData(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    if (codes := codes_of(found)) is not None:
        instances.masks = Codes(codes, size)
    return instances


@MODELS.register_module()
class RLEMaskHead(_RLEMasks, FCNMaskHead):
    """mmdet's `FCNMaskHead` with masks as RLE."""


@MODELS.register_module()
class RLEHTCMaskHead(_RLEMasks, HTCMaskHead):
    """mmdet's `HTCMaskHead` with masks as RLE."""


@MODELS.register_module()
class RLEMaskFormerFusionHead(MaskFormerFusionHead):
    """mmdet's `MaskFormerFusionHead` with instance masks as RLE; panoptic results are unchanged.

    mmdet resizes the masks of all queries to the file's size in float32, and copies them: 7 GB for 20 masks of an image
    of 16 million pixels.
    """

    def predict(
        self,
        mask_cls_results: Tensor,
        mask_pred_results: Tensor,
        batch_data_samples: SampleList,
        rescale: bool = False,
        **kwargs: Any,
    ) -> list[dict]:
        """Results from logits of classes ``[B, Q, classes + 1]`` and masks ``[B, Q, H, W]``; otherwise as in mmdet."""
        if self.test_cfg.get("panoptic_on", True):
            return super().predict(mask_cls_results, mask_pred_results, batch_data_samples, rescale, **kwargs)
        results = []
        for classes, masks, sample in zip(mask_cls_results, mask_pred_results, batch_data_samples):
            height, width = sample.img_shape[:2]
            size = sample.ori_shape[:2] if rescale else (height, width)
            results.append({"ins_results": self._instances(classes, masks[:, :height, :width], size)})
        return results if self.test_cfg.get("instance_on", False) else [{} for _ in results]

    def _instances(self, classes: Tensor, masks: Tensor, size: Sequence[int]) -> InstanceData:
        """mmdet's `instance_postprocess`, one mask at a time; pairs of the same query share a mask."""
        scores = classes.softmax(-1)[:, :-1].flatten()  # [Q * classes]
        number = min(self.test_cfg.get("max_per_image", 100), len(scores))
        scores, index = scores.topk(number, sorted=False)  # [N]
        labels = index % self.num_classes
        of_thing = labels < self.num_things_classes
        scores, labels, queries = scores[of_thing], labels[of_thing], (index // self.num_classes)[of_thing]
        found = {query: _instance(masks[query], size) for query in set(queries.tolist())}
        quality, boxes, codes = zip(*(found[query] for query in queries.tolist())) if len(queries) else ((), (), ())
        return InstanceData(
            bboxes=scores.new_tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            labels=labels,
            scores=scores * scores.new_tensor(quality),
            masks=Codes(codes, size),
        )


def _instance(logits: Tensor, size: Sequence[int]) -> tuple[float, list[int], dict]:
    """Mean probability inside, box and RLE of a query's mask logits ``[H, W]``, in an image of `size`."""
    if logits.shape != tuple(size):
        logits = F.interpolate(logits[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]  # [H', W']
    mask = logits > 0
    quality = (logits.sigmoid() * mask).sum() / (mask.sum() + 1e-6)
    y, x = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
    box = [int(x[0]), int(y[0]), int(x[-1]) + 1, int(y[-1]) + 1] if len(x) else [0, 0, 0, 0]
    return float(quality), box, _encode(mask)
