"""COCO metrics that work without predictions and on subsets of a data set; panoptic quality."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mmdet.evaluation import metrics as mmdet_metrics
from mmdet.structures import INSTANCE_OFFSET
from mmengine import fileio
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from vitdense.mm.data.coco import parse, without_doubles
from vitdense.mm.data.detection import Truth
from vitdense.mm.data.panoptic import read_ids
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import METRICS
from vitdense.mm.train.coco_engines import BOX_ITEMS, KEYPOINT_ITEMS, Evaluation, Found, chosen_engine, evaluate

# mmdet has it from onedl-mmdetection 3.5 on; upstream mmdet has CocoMetric only.
_FASTER = getattr(mmdet_metrics, "FasterCocoMetric", mmdet_metrics.CocoMetric)


class _CocoMixin:
    """The changes to mmdet's metrics: the truth is a `Truth`, and `evaluate` computes.

    mmdet's `use_mp_eval` has no effect.

    Args:
        drop_doubles: See `CocoDataset`.
        engine: ``hotcoco``, ``faster_coco_eval`` or ``pycocotools``; by default the first of these that is installed.

    Attributes:
        ap_limit: How many objects of an image count for ``mAP``, None for the last of `proposal_nums`, as for the
            other values of precision.
        evaluations: None; or a list, to which the evaluations of boxes and masks are added. They are large.

    Raises:
        ConfigError: The engine is not installed.
    """

    ap_limit: int | None = None

    def __init__(
        self,
        ann_file: str | None = None,
        *args: Any,
        drop_doubles: bool = False,
        engine: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(None, *args, **kwargs)
        if ann_file is not None:
            with fileio.get_local_path(ann_file, backend_args=self.backend_args) as local:
                content = parse(Path(local))
            self._coco_api = Truth(without_doubles(content) if drop_doubles else content)
        self.converts, self.engine, self.evaluations = ann_file is None, chosen_engine(engine), None

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
        if self.format_only or not set(self.metrics) <= {"bbox", "segm"}:
            self._coco_api.indexed()
            with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
                return super().compute_metrics(results)
        if not any(len(one["bboxes"]) for one in found):
            MMLogger.get_current_instance().warning(
                f"no box was predicted on any of {len(results)} images, so AP is 0: the model may be untrained, the "
                f"learning rate too high, or test_cfg.rcnn.score_thr too strict"
            )
            return {f"{kind}_{item}": 0.0 for kind in self.metrics for item in (self.metric_items or BOX_ITEMS)}
        if self.outfile_prefix:
            self.results2json(found, self.outfile_prefix)
        values: dict[str, float] = {}
        for kind in self.metrics:
            evaluation = self._evaluate(kind, found)
            if self.evaluations is not None:
                self.evaluations.append(evaluation)
            if self.classwise:
                rows = ap_table(evaluation, self.ap_limit)[:-1]
                values |= {f"{row['class']}_precision": round(row["mAP"], 3) for row in rows}
            figures = evaluation.figures(ap_limit=self.ap_limit)
            values |= {f"{kind}_{item}": round(figures[item], 3) for item in self.metric_items or BOX_ITEMS}
        return values

    def _evaluate(self, kind: str, found: Sequence[Mapping], **options: Any) -> Evaluation:
        if kind == "segm" and not all("masks" in one for one in found):
            raise ConfigError(
                "metric of val_evaluator or test_evaluator: got 'segm' of a model without masks, expected 'bbox'"
            )
        scores = [one.get("mask_scores", one["scores"]) if kind == "segm" else one["scores"] for one in found]
        corners = np.concatenate([one["bboxes"] for one in found]).astype(np.float64)  # [N, 4]
        columns = [
            np.repeat(self.img_ids, [len(one["bboxes"]) for one in found])[:, None],
            corners[:, :2],
            corners[:, 2:] - corners[:, :2],
            np.concatenate(scores)[:, None],
            np.concatenate([one["labels"] for one in found])[:, None] + 1,  # categories are numbered from 1
        ]
        masks = [mask for one in found for mask in one["masks"]] if kind == "segm" else None
        points = np.concatenate([one["keypoints"] for one in found]) if kind == "keypoints" else None  # [N, K, 3]
        return evaluate(
            self._coco_api,
            Found(np.concatenate(columns, 1), masks, None if points is None else points.reshape(len(points), -1)),
            kind,
            images=self.img_ids,
            **{"thresholds": self.iou_thrs, "limits": self.proposal_nums, "engine": self.engine, **options},
        )

    def results2json(self, results: Sequence[dict], outfile_prefix: str) -> dict[str, str]:
        """As mmdet's: files have the category ids of the data, the evaluation their numbers."""
        numbers, self.cat_ids = self.cat_ids, self._coco_api.ids
        try:
            return super().results2json(results, outfile_prefix)
        finally:
            self.cat_ids = numbers


def ap_table(evaluation: Evaluation, ap_limit: int | None = None) -> list[dict]:
    """AP, 0 to 1, of each class, at IoU thresholds and by size; then their mean.

    NaN where there is no object. The column ``objects`` counts those of the annotation file, without crowds.

    Args:
        evaluation: Of boxes or masks.
        ap_limit: See `Evaluation.figures`.
    """
    names, images = evaluation.truth.classes, {*evaluation.images}
    objects = Counter(
        one["category_id"]
        for one in evaluation.truth.dataset["annotations"]
        if one["image_id"] in images and not one["iscrowd"]
    )
    rows = []
    for name, chosen in [*((name, [k]) for k, name in enumerate(names)), ("mean", range(len(names)))]:
        figures = evaluation.figures(chosen, ap_limit)
        values = {item: figures[item] if figures[item] > -1 else np.nan for item in BOX_ITEMS}
        rows.append({"class": name, **values, "objects": sum(objects[k + 1] for k in chosen)})
    return rows


@METRICS.register_module()
class CocoMetric(_CocoMixin, mmdet_metrics.CocoMetric):
    """COCO box and mask AP, with mmdet's arguments: for ``mAP`` 100 objects of an image count."""

    ap_limit = 100


@METRICS.register_module()
class FasterCocoMetric(_CocoMixin, _FASTER):
    """COCO box and mask AP, with mmdet's arguments: as many objects of an image count as `proposal_nums` ends with."""


@METRICS.register_module()
class KeypointMetric(FasterCocoMetric):
    """`FasterCocoMetric` of boxes, and the AP of keypoints by OKS, of 20 objects of an image.

    Sigmas are those of the data's `metainfo`, see `Kinds`.

    Raises:
        ConfigError: Results have no keypoints; there are no sigmas, or for another number of keypoints; or no
            `ann_file`.
    """

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """As mmdet's."""
        super().process(data_batch, data_samples)
        for (_, found), sample in zip(self.results[-len(data_samples) :], data_samples):
            if "keypoints" not in sample["pred_instances"]:
                raise ConfigError("metric of keypoints: got results without; --tta has none, nor has another model")
            found["keypoints"] = sample["pred_instances"]["keypoints"].cpu().numpy()

    def compute_metrics(self, results: list) -> dict[str, float]:
        """``keypoints_mAP`` and the others of `KEYPOINT_ITEMS`, and those of boxes."""
        if self.format_only or self.converts:
            raise ConfigError(
                "metric of keypoints: got format_only=True, or no ann_file; expected an annotation file of COCO's "
                "keypoints. `vitdense predict` writes results of images without one"
            )
        values, sigmas = super().compute_metrics(results), self.dataset_meta.get("sigmas", ())
        found = [one for _, one in results]
        if len(sigmas) != found[0]["keypoints"].shape[1]:
            raise ConfigError(
                f"metric of keypoints: got {len(sigmas)} sigmas for {found[0]['keypoints'].shape[1]} keypoints; give "
                f"as many, 'sigmas' of the category in the annotation file, or metainfo=dict(sigmas=[...]) of the data"
            )
        figures = dict.fromkeys(KEYPOINT_ITEMS, 0.0)
        if any(len(one["bboxes"]) for one in found):
            figures = self._evaluate("keypoints", found, limits=[20], sigmas=sigmas).keypoint_figures()
        return values | {f"keypoints_{item}": round(value, 3) for item, value in figures.items()}


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
