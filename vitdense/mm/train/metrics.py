"""COCO metrics, which also work without predictions and on subsets of a data set; panoptic quality."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mmdet.evaluation import metrics as mmdet_metrics
from mmdet.structures import INSTANCE_OFFSET
from mmengine import fileio
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from vitdense.mm.data.classes import category_ids
from vitdense.mm.data.coco import ImageId, Source, parse, without_doubles
from vitdense.mm.data.panoptic import read_ids
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import METRICS
from vitdense.mm.train import coco_engines
from vitdense.mm.train.coco_engines import BOX_ITEMS, RECALL_ITEMS, Evaluation, Found, Truth


@METRICS.register_module()
class CocoMetric(mmdet_metrics.CocoMetric):
    """COCO box and mask AP, with mmdet's arguments; ``mAP`` counts 100 objects per image, `use_mp_eval` has no effect.

    Args:
        ann_file: The truth. None for the annotation files of the evaluated data sets, or what their pipelines pack.
        drop_doubles: See `CocoDataset`.
        engine: ``hotcoco`` or ``pycocotools``; by default the first of these that is installed.

    Attributes:
        evaluations: None; or a list that collects the evaluations of boxes and masks, which are large.
    """

    ap_limit: int | None = 100  # most objects per image for mAP; None for the last of `proposal_nums`

    def __init__(
        self,
        ann_file: str | None = None,
        *args: Any,
        drop_doubles: bool = False,
        engine: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(None, *args, **kwargs)
        if "proposal_fast" in self.metrics:
            raise ConfigError("metric: got 'proposal_fast', expected 'proposal', which has its recalls")
        self.source = None if ann_file is None else Source(ann_file, drop_doubles)
        self._coco_api = None if ann_file is None else Truth({self.source: self.read(self.source)})
        self.engine, self.evaluations = coco_engines.chosen_engine(engine), None

    def read(self, source: Source) -> Mapping:
        with fileio.get_local_path(source.file, backend_args=self.backend_args) as local:
            content = parse(Path(local))
        return without_doubles(content) if source.drop_doubles else content

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Collect predictions, as mmdet does; without an annotation file it also takes the truth from the samples."""
        if self._coco_api is None or None in self._coco_api.contents:  # the last truth was in samples
            self._coco_api = Truth({}) if all(isinstance(one["img_id"], ImageId) for one in data_samples) else None
        super().process(data_batch, data_samples)

    def evaluate(self, size: int) -> dict[str, float]:
        """As in mmengine, but each process matches its own images by hotcoco, and the first adds the matches up.

        The first has all results if they are written or kept, without a truth in files, if an image comes twice, or for
        a class with a `compute_metrics` of its own.
        """
        keeps = self.outfile_prefix or self.evaluations is not None
        keeps = keeps or type(self).compute_metrics is not CocoMetric.compute_metrics
        if get_world_size() > 1 and not keeps and self.engine == "hotcoco" and coco_engines.has_threads():
            ids, some = [truth["img_id"] for truth, _ in self.results], any(len(x["bboxes"]) for _, x in self.results)
            parts, found = zip(*all_gather_object((ids, some)))
            images = sorted((i, rank, one) for rank, part in enumerate(parts) for i, one in enumerate(part))
            images = images[:size]  # as in mmengine: the sampler repeats images at the end
            keys = [(self.source or getattr(one, "source", None), one) for *_, one in images]
            if any(found) and all(source for source, _ in keys) and len({*keys}) == len(keys):
                self._number([{"img_id": one} for _, one in keys])
                self.img_ids = [number for number, (_, rank, _) in zip(self.img_ids, images) if rank == get_rank()]
                own = [one for _, one in self.results[: len(self.img_ids)]]
                self.results = own and [{k: coco_engines.match(self._coco_api, **v) for k, v in self.inputs(own)}]
        return super().evaluate(size)

    def _number(self, truths: Sequence[Mapping]) -> None:
        sources = [self.source or getattr(one["img_id"], "source", None) for one in truths]
        files = dict.fromkeys(sources)
        if None not in files:
            if self._coco_api is None or self._coco_api.contents.keys() != files.keys():
                self._coco_api = Truth({source: self.read(source) for source in files})
        elif len(files) > 1:
            raise ConfigError("metric: got data sets with and without an annotation file of COCO, expected one kind")
        else:  # the truth that the pipeline packs
            with TemporaryDirectory() as folder:
                self._coco_api = Truth({None: parse(Path(self.gt_to_coco_json(truths, f"{folder}/all")))})
        self._coco_api.number(self.dataset_meta["classes"])
        self.cat_ids = list(range(1, len(self._coco_api.classes) + 1))
        self.img_ids = self._coco_api.number_images([(key, one["img_id"]) for key, one in zip(sources, truths)])

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics over the evaluated images, not all of the file.

        They are zero, with a warning, if nothing was predicted. mmdet then returns no keys, and a training with
        `save_best` stops.
        """
        values: dict[str, float] = {}
        if isinstance(results[0], dict):  # what each process has matched
            for name in results[0]:
                values |= self.figures(name, coco_engines.add_up(part[name] for part in results))
            return values
        truths, found = zip(*results)
        self._number(truths)
        if self.outfile_prefix:
            self.results2json(found, self.outfile_prefix)
        if self.format_only:
            return {}
        found_any = any(len(one["bboxes"]) for one in found)
        if not found_any:
            MMLogger.get_current_instance().warning(
                f"no box was predicted on any of {len(results)} images, so AP is 0: the model may be untrained, the "
                f"learning rate too high, or test_cfg.rcnn.score_thr too strict"
            )
        for name, inputs in self.inputs(found):
            evaluation = coco_engines.evaluate(self._coco_api, engine=self.engine, **inputs) if found_any else None
            if evaluation and self.evaluations is not None:
                self.evaluations.append(evaluation)
            values |= self.figures(name, evaluation)
        return values

    def inputs(self, found: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
        """Names of evaluations, and their arguments of `coco_engines.evaluate`; `found` is for the images `img_ids`."""
        for kind in self.metrics:
            options = {"useCats": 0} if kind == "proposal" else {}
            yield kind, self._masks(found) if kind == "segm" else self._input("bbox", found, **options)

    def figures(self, name: str, evaluation: Evaluation | None) -> dict[str, float]:
        """The values of the evaluation `name`; zeros if nothing was found."""
        is_proposal = name == "proposal"
        items = self.metric_items or (RECALL_ITEMS if is_proposal else BOX_ITEMS)
        values, figures = {}, dict.fromkeys(items, 0.0)
        if evaluation:
            figures = evaluation.figures(ap_limit=self.ap_limit)
            for k, one in enumerate(self.dataset_meta["classes"] if self.classwise and not is_proposal else ()):
                ap = evaluation.figures([k])["mAP"]
                values[f"{one}_precision"] = round(ap, 3) if ap > -1 else math.nan
        return values | {item if is_proposal else f"{name}_{item}": round(figures[item], 3) for item in items}

    def _masks(self, found: Sequence[Mapping]) -> dict:
        if not all("masks" in one for one in found):
            raise ConfigError(
                "metric of val_evaluator or test_evaluator: got 'segm' of a model without masks, expected 'bbox'"
            )
        scored = [{**one, "scores": one.get("mask_scores", one["scores"])} for one in found]
        masks = {"segmentation": [mask for one in found for mask in one["masks"]]}
        return self._input("segm", scored, masks, fields=["segmentation"])

    def _input(
        self, kind: str, found: Sequence[Mapping], places: Mapping[str, Sequence] | None = None, **options: Any
    ) -> dict:
        corners = np.concatenate([one["bboxes"] for one in found]).astype(np.float64)  # [N, 4]
        columns = [
            np.repeat(self.img_ids, [len(one["bboxes"]) for one in found])[:, None],
            corners[:, :2],
            corners[:, 2:] - corners[:, :2],
            np.concatenate([one["scores"] for one in found])[:, None],
            np.concatenate([one["labels"] for one in found])[:, None] + 1,  # categories are numbered from 1
        ]
        options = {"thresholds": self.iou_thrs, "limits": self.proposal_nums, "images": self.img_ids, **options}
        return {"found": Found(np.concatenate(columns, 1), places or {}), "kind": kind, **options}

    def results2json(self, results: Sequence[dict], outfile_prefix: str) -> dict[str, str]:
        """Write files as mmdet does, with the category ids of the data; the evaluation uses numbers."""
        contents = list(self._coco_api.contents.values())
        if len(contents) > 1:
            raise ConfigError(f"outfile_prefix of a metric: got {len(contents)} joined annotation files, expected one")
        numbers, self.cat_ids = self.cat_ids, category_ids(self._coco_api.classes, contents[0]["categories"])
        try:
            return super().results2json(results, outfile_prefix)
        finally:
            self.cat_ids = numbers


@METRICS.register_module()
class FasterCocoMetric(CocoMetric):
    """As `CocoMetric`, but ``mAP`` counts as many objects per image as the last of `proposal_nums`."""

    ap_limit = None


def count_segments(
    truth: np.ndarray, segments: Sequence[dict], found: np.ndarray, found_labels: dict[int, int], num_classes: int
) -> np.ndarray:
    """Counts of an image for panoptic quality (Kirillov et al., CVPR 2019, section 4; COCO's rules for crowds).

    Segments match if they have the same class and an IoU above 0.5. Pixels without a true segment do not count. A found
    segment without a match does not count if more than half of it are such pixels or a crowd of its class.

    Args:
        truth, found: Ids, integers [H, W].
        segments: Segments of the truth: ``id``, ``category`` (label) and ``is_crowd``; other ids mean no segment.
        found_labels: Id of a found segment -> label; other ids mean no segment.

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
        """Means over classes in the truth or in the predictions."""
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
