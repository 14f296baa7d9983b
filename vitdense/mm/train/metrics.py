"""COCO metrics that work without predictions and on subsets of a data set; panoptic quality."""

import copy
import io
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCOeval, COCOevalMP
from mmdet.evaluation import metrics as mmdet_metrics
from mmdet.structures import INSTANCE_OFFSET
from mmengine import fileio
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from vitdense.mm.data.coco import parse, without_doubles
from vitdense.mm.data.detection import Truth
from vitdense.mm.data.panoptic import read_ids
from vitdense.mm.registry import METRICS

BOX_ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
ITEMS = (*BOX_ITEMS, *("AR@100", "AR@300", "AR@1000", "AR_s@1000", "AR_m@1000", "AR_l@1000"))  # as COCO computes them
# mmdet has it from onedl-mmdetection 3.5 on; upstream mmdet has CocoMetric only.
_FASTER = getattr(mmdet_metrics, "FasterCocoMetric", mmdet_metrics.CocoMetric)


class _CocoMixin:
    """The changes to mmdet's metrics: the truth is a `Truth`.

    Args:
        drop_doubles: See `CocoDataset`.

    Attributes:
        evaluations: None; or a list, to which the COCO evaluations of boxes and masks are added. They are large.
    """

    def __init__(self, ann_file: str | None = None, *args: Any, drop_doubles: bool = False, **kwargs: Any) -> None:
        super().__init__(None, *args, **kwargs)
        if ann_file is not None:
            with fileio.get_local_path(ann_file, backend_args=self.backend_args) as local:
                content = parse(Path(local))
            self._coco_api = Truth(without_doubles(content) if drop_doubles else content)
        self.converts, self.evaluations = ann_file is None, None

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics over the evaluated images; all zero, with a warning, if nothing was predicted.

        mmdet then returns no keys, which stops a training with `save_best`. It also evaluates on all images of the
        annotation file, so that the score of a subset (``dataset.indices=16``) would be too low.
        """
        truths, found = zip(*results)
        if self.converts:  # from what the pipeline packs
            with TemporaryDirectory() as folder:
                self._coco_api = Truth(parse(Path(self.gt_to_coco_json(truths, f"{folder}/all"))))
        self._coco_api.number(self.dataset_meta["classes"])
        self.cat_ids = list(range(1, len(self._coco_api.classes) + 1))
        self.img_ids = self._coco_api.number_images([truth["img_id"] for truth in truths])
        average_precision = not self.format_only and set(self.metrics) <= {"bbox", "segm"}
        if average_precision and not any(len(one["bboxes"]) for one in found):
            MMLogger.get_current_instance().warning(
                f"no box was predicted on any of {len(results)} images, so AP is 0: the model may be untrained, the "
                f"learning rate too high, or test_cfg.rcnn.score_thr too strict"
            )
            return {f"{kind}_{item}": 0.0 for kind in self.metrics for item in (self.metric_items or BOX_ITEMS)}
        values: dict[str, float] = {}
        with redirect_stdout(io.StringIO()), TemporaryDirectory() as folder:  # pycocotools prints its steps
            if not average_precision:
                return super().compute_metrics(results)
            files = self.results2json(found, self.outfile_prefix or f"{folder}/all")
            for kind in self.metrics:
                evaluation = self._evaluate(kind, files[kind])
                if self.evaluations is not None:
                    self.evaluations.append(evaluation)
                if self.classwise:
                    values |= {f"{row['class']}_precision": round(row["mAP"], 3) for row in ap_table(evaluation)[:-1]}
                stats = dict(zip(ITEMS, evaluation.stats))
                values |= {f"{kind}_{item}": round(float(stats[item]), 3) for item in self.metric_items or BOX_ITEMS}
        return values

    def _evaluate(self, kind: str, file: str) -> Any:
        found = json.loads(Path(file).read_bytes())
        for one in found if kind == "segm" else ():
            del one["bbox"]  # by whose area COCO would take a mask for small or large
        evaluation = self.evaluator()(self._coco_api, self._coco_api.loadRes(found), kind)
        params = evaluation.params
        params.catIds, params.imgIds = self.cat_ids, self.img_ids
        params.maxDets, params.iouThrs = list(self.proposal_nums), self.iou_thrs
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        return evaluation

    def evaluator(self) -> type:
        """The class of the evaluation: pycocotools'."""
        return COCOevalMP if self.use_mp_eval else COCOeval

    def results2json(self, results: Sequence[dict], outfile_prefix: str) -> dict[str, str]:
        """As mmdet's: files have the category ids of the data, the evaluation their numbers."""
        numbers, self.cat_ids = self.cat_ids, self._coco_api.ids
        try:
            return super().results2json(results, outfile_prefix)
        finally:
            self.cat_ids = numbers


def ap_table(evaluation: Any) -> list[dict]:
    """AP, 0 to 1, of each class, at IoU thresholds and by size; then their mean.

    NaN where there is no object. The column ``objects`` counts those of the annotation file, without crowds.

    Args:
        evaluation: An accumulated `COCOeval` of pycocotools or faster-coco-eval.
    """
    whole, ids = evaluation.eval, evaluation.params.catIds
    selections = [[k] for k in range(len(ids))] + [range(len(ids))]
    names = [*(category["name"] for category in evaluation.cocoGt.loadCats(ids)), "mean"]
    annotations = evaluation.cocoGt.loadAnns(evaluation.cocoGt.getAnnIds(imgIds=evaluation.params.imgIds))
    objects = Counter(annotation["category_id"] for annotation in annotations if not annotation.get("iscrowd"))
    rows = []
    for name, chosen in zip(names, selections):
        part = copy.copy(evaluation)
        part.eval = {**whole, "precision": whole["precision"][:, :, chosen]}  # [thresholds, recalls, classes, ...]
        with redirect_stdout(io.StringIO()):
            part.summarize()
        values = {item: value if value > -1 else np.nan for item, value in zip(BOX_ITEMS, part.stats)}
        rows.append({"class": name, **values, "objects": sum(objects[ids[k]] for k in chosen)})
    return rows


@METRICS.register_module()
class CocoMetric(_CocoMixin, mmdet_metrics.CocoMetric):
    """COCO box and mask AP by pycocotools, with mmdet's arguments: the reference, slower."""


@METRICS.register_module()
class FasterCocoMetric(_CocoMixin, _FASTER):
    """COCO box and mask AP by faster-coco-eval, with mmdet's arguments; without it by pycocotools."""

    def evaluator(self) -> type:
        """faster-coco-eval's class, if it is installed."""
        if find_spec("faster_coco_eval"):
            from faster_coco_eval import COCOeval_faster

            return COCOeval_faster
        logger = MMLogger.get_current_instance()
        logger.info("faster-coco-eval is not installed: pycocotools computes COCO AP, the same numbers, slower")
        return super().evaluator()


def count_segments(
    truth: np.ndarray, segments: Sequence[dict], found: np.ndarray, found_labels: dict[int, int], num_classes: int
) -> np.ndarray:
    """What panoptic quality counts in an image (Kirillov et al., CVPR 2019, section 4; COCO's rules of crowds).

    A segment of the truth and one that was found match if they have one class and an IoU over 0.5. Pixels without a
    segment do not count; a found segment that does not match does not either, if over half of it are such pixels or
    those of a crowd of its class.

    Args:
        truth: Ids, integers [H, W].
        segments: Of the truth: ``id``, ``category`` (label) and ``is_crowd``; other ids are no segments.
        found: Ids, integers [H, W].
        found_labels: Label of every found segment; other ids are none.
        num_classes: Number of labels.

    Returns:
        ``[num_classes, 4]``: sum of IoUs, matches, found segments and segments of the truth without a match.
    """
    known = {segment["id"]: segment for segment in segments}
    (ids, rows), (codes, columns) = (np.unique(x, return_inverse=True) for x in (truth, found))
    shared = np.bincount(rows.ravel() * len(codes) + columns.ravel(), minlength=len(ids) * len(codes))
    shared = shared.reshape(len(ids), len(codes))  # pixels of every pair
    labels = np.array([known[key]["category"] if key in known else -1 for key in ids.tolist()])
    is_crowd = np.array([key in known and known[key]["is_crowd"] for key in ids.tolist()])[:, None]
    found_labels = np.array([found_labels.get(code, -2) for code in codes.tolist()])
    same, void, area = labels[:, None] == found_labels, shared[labels < 0].sum(0), shared.sum(0)
    iou = same * ~is_crowd * shared / np.maximum(shared.sum(1, keepdims=True) + area - shared - void, 1)
    t, f = (iou > 0.5).nonzero()
    ignored = void + (same * is_crowd * shared).sum(0)
    extra = (found_labels >= 0) & (ignored <= 0.5 * area)
    extra[f] = False
    matched = set(ids[t].tolist())
    missed = [one["category"] for key, one in known.items() if key not in matched and not one["is_crowd"]]
    counts = np.zeros((num_classes, 4))
    np.add.at(counts[:, 0], labels[t], iou[t, f])
    for column, of_class in ((1, labels[t]), (2, found_labels[extra]), (3, np.array(missed, int))):
        np.add.at(counts[:, column], of_class, 1)
    return counts


@METRICS.register_module()
class PanopticMetric(BaseMetric):
    """Panoptic quality of all classes, of things and of stuff, in percent: PQ, SQ and RQ. panopticapi is not needed.

    The pipeline packs ``seg_map_path`` and ``segments_info`` as `meta_keys`.
    """

    default_prefix = "coco_panoptic"

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count an image of a batch."""
        classes, things = self.dataset_meta["classes"], set(self.dataset_meta["thing_classes"])
        for sample in data_samples:
            codes = sample["pred_panoptic_seg"]["sem_seg"][0].cpu().numpy()
            labels = {int(code): int(code) % INSTANCE_OFFSET for code in np.unique(codes)}
            labels = {code: label for code, label in labels.items() if label < len(classes)}
            truth = read_ids(Path(sample["seg_map_path"]))
            segments = [
                {**one, "is_crowd": classes[one["category"]] in things and not one["is_thing"]}
                for one in sample["segments_info"]
            ]
            self.results.append(count_segments(truth, segments, codes, labels, len(classes)))

    def compute_metrics(self, results: list[np.ndarray]) -> dict[str, float]:
        """Means over classes that are in the truth or were found."""
        iou, matches, extra, missed = np.sum(results, axis=0).T  # [classes] each
        of_things = np.isin(self.dataset_meta["classes"], list(self.dataset_meta["thing_classes"]))
        size = matches + extra / 2 + missed / 2
        values = {
            "PQ": iou / np.maximum(size, 0.5),
            "SQ": iou / np.maximum(matches, 1),
            "RQ": matches / np.maximum(size, 0.5),
        }
        return {
            name + end: float(100 * value[part & (size > 0)].mean()) if (part & (size > 0)).any() else 0.0
            for end, part in (("", np.ones_like(of_things)), ("_th", of_things), ("_st", ~of_things))
            for name, value in values.items()
        }
