"""COCO metrics that work without predictions and on subsets of a data set."""

import io
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import Any

from mmdet.evaluation import metrics as mmdet_metrics
from mmengine.logging import MMLogger

from vitdense.mm.registry import METRICS

BOX_ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
# mmdet has it from onedl-mmdetection 3.5 on; upstream mmdet has CocoMetric only.
FASTER = getattr(mmdet_metrics, "FasterCocoMetric", None) if find_spec("faster_coco_eval") else None


class _CocoMixin:
    """The changes to mmdet's metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with redirect_stdout(io.StringIO()):  # the data set of the same file has printed these lines
            super().__init__(*args, **kwargs)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics over the evaluated images; all zero, with a warning, if nothing was predicted.

        mmdet then returns no keys, which stops a training with `save_best`. It also evaluates on all images of the
        annotation file, so that the score of a subset (``dataset.indices=16``) would be too low.
        """
        self.img_ids = [gt["img_id"] for gt, _ in results]
        average_precision = not self.format_only and set(self.metrics) <= {"bbox", "segm"}
        if not average_precision or any(len(pred["bboxes"]) for _, pred in results):
            with redirect_stdout(io.StringIO()):  # pycocotools prints its steps; the log is another stream
                return super().compute_metrics(results)
        MMLogger.get_current_instance().warning(
            f"no box was predicted on any of {len(results)} images, so AP is 0: the model may be untrained, the "
            f"learning rate too high, or test_cfg.rcnn.score_thr too strict"
        )
        return {f"{metric}_{item}": 0.0 for metric in self.metrics for item in (self.metric_items or BOX_ITEMS)}


@METRICS.register_module()
class CocoMetric(_CocoMixin, mmdet_metrics.CocoMetric):
    """COCO box and mask AP by pycocotools, with mmdet's arguments: the reference, slower."""


@METRICS.register_module()
class FasterCocoMetric(_CocoMixin, FASTER or mmdet_metrics.CocoMetric):
    """COCO box and mask AP by faster-coco-eval, with mmdet's arguments; falls back to pycocotools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if FASTER is None:
            MMLogger.get_current_instance().info(
                "COCO AP is computed by pycocotools: the same numbers, slower. faster-coco-eval is not installed, or "
                "mmdet has no FasterCocoMetric"
            )
