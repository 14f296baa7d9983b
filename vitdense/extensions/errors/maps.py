"""What a segmentor or a panoptic model takes for something else, pixel by pixel."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import hotcoco
import numpy as np
from mmengine.evaluator import BaseMetric
from torch.nn import functional

from vitdense.extensions.errors import page
from vitdense.extensions.errors.pictures import FOUND, SIDE, Figures
from vitdense.extensions.errors.suspects import MOST, OF_SUSPECTS
from vitdense.mm.data.panoptic import read_ids
from vitdense.results import draw

METRICS = ("IoUMetric", "PanopticMetric")  # metrics of segmentors and of panoptic models
VOID = 65535  # pixels that do not count
SHOWN = 32  # images
LEGEND = "Left the truth, right what was found, where it is wrong"
DOUBTS, PAIRS = 20, 50  # regions of an image, and pairs of a label and the found class that have most pixels
INSTANCE_OFFSET = 1000  # mmdet's: the id of a segment is its label + 1000 * number
# `count_segments` -> the two sums of a class whose quotient is its quality
QUALITY = np.array([[1, 0], [0, 1], [0, 0.5], [0, 0.5]])


class Doubt(NamedTuple):
    """Pixels of one class, side by side, that are found as another."""

    path: str
    surprise: float  # squared mean of -log of the share that the model gives its label, times pixels ** (1/4)
    box: np.ndarray  # x, y, width, height in pixels of the image
    label: int
    found: int


class Looked(NamedTuple):
    """An image and its label maps, small."""

    path: str
    wrong: float  # share of its pixels
    most: str  # wrong pixels, in words
    counts: np.ndarray  # [C, 2], whose quotients of sums over images are IoUs, or panoptic qualities
    truth: np.ndarray  # uint16 [h, w], `VOID` does not count
    found: np.ndarray


class Maps(BaseMetric):
    """Keeps what is wrong in each image, and adds no value.

    Args:
        metric: The metric of the test, which sees every batch before this.
        of_queries: Whether ``seg_logits`` are sums of probabilities over queries, as of Mask2Former, and no logits.
    """

    kind = "pixels"

    def __init__(self, metric: BaseMetric, of_queries: bool = False) -> None:
        super().__init__(prefix="errors")
        self.of_queries = of_queries
        self.metric, self.dataset_meta, self.images = metric, metric.dataset_meta, {}
        self.names = [*metric.dataset_meta["classes"], "nothing"]
        self.colours = np.array([*draw.distinct_colours(len(self.names) - 1), (255, 255, 255)], np.uint8)
        self.confusion, self.segments = np.zeros([len(self.names)] * 2, np.int64), 0
        self.doubts: list[Doubt] = []

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        classes = len(self.dataset_meta["classes"])
        for sample in data_samples:
            is_panoptic = "pred_panoptic_seg" in sample
            truth, found = _segments(sample) if is_panoptic else _labels(sample, self.metric.ignore_index)
            truth, found = np.where(truth < classes, truth, VOID), np.minimum(found, classes)
            confusion = hotcoco.metrics.pixel_confusion(truth, found, classes + 1, ignore_index=VOID).astype(np.int64)
            self.confusion += confusion
            right, scale = np.diag(confusion), min(1, SIDE / max(truth.shape))
            counts = np.stack([right, confusion.sum(0) + confusion.sum(1) - right], 1)[:classes]
            if is_panoptic:
                of_segments = self.metric.results[len(self.results)]
                self.segments, counts = self.segments + of_segments, of_segments @ QUALITY
            size = [max(1, round(side * scale)) for side in truth.shape[::-1]]
            small = [cv2.resize(one.astype(np.uint16), size, interpolation=cv2.INTER_NEAREST) for one in (truth, found)]
            logits = sample.get("seg_logits", {}).get("data", ())
            if len(logits) == classes:
                logits = functional.interpolate(logits[None].float(), small[0].shape, mode="bilinear")[0]  # [C, h, w]
                shares = functional.normalize(logits + 1e-6, 1, 0) if self.of_queries else logits.softmax(0)
                self.doubts += _doubts(sample["img_path"], *small, shares.clamp(min=1e-6).log().cpu().numpy(), scale)
            wrong = 1 - float(right.sum() / max(confusion.sum(), 1))
            self.results.append(Looked(sample["img_path"], wrong, confused(self.names, confusion), counts, *small))

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        self.images = {one[0]: Looked(*one) for one in results}  # mmengine made tuples of them
        self.paths = self.called = {path: path for path in self.images}
        self.wrong = {path: one.wrong for path, one in self.images.items()}
        self.data = self.kind, self.names, list(self.images)
        return {}

    def numbers(self) -> dict[str, Any]:
        """IoU and accuracy, or panoptic quality, of every class, and the confusion in pixels; the last is nothing."""
        if np.ndim(self.segments):
            quality, size = (self.segments @ QUALITY).T
            columns = {"PQ": np.where(size > 0, quality / np.maximum(size, 0.5), -1).tolist()}
            columns |= zip(("found", "false", "missed"), self.segments[:, 1:].astype(int).T.tolist())
        else:
            values = hotcoco.metrics.mean_iou(self.confusion[:-1, :-1])
            columns = {"IoU": values["IoU"], "accuracy": values["Acc"]}
        rows = [{"class": name, **dict(zip(columns, row))} for name, *row in zip(self.names, *columns.values())]
        return {"table": rows, "confusion": {"classes": self.names, "matrix": self.confusion.tolist()}}

    def suspects(self, figures: Figures) -> tuple[list[dict[str, Any]], list[str]]:
        """Regions whose labels look wrong, the worst first, as rows of a file and as pictures; none without logits."""
        rows, made = [], []
        missed = 1 - np.diag(self.confusion) / np.maximum(self.confusion.sum(1), 1)  # share of the pixels of a class
        weights = -np.log(np.maximum(missed, 1e-6))  # a class that the model knows tells more
        found = [(one, float(one.surprise * weights[one.label])) for one in self.doubts]
        for one, score in sorted(found, key=lambda one: -one[1])[:MOST]:
            reason = f"marked as {self.names[one.label]}, found as {self.names[one.found]}"
            box = np.round(one.box, 2).tolist()
            rows.append({"file_name": one.path, "bbox": box, "score": round(score, 4), "reason": reason})
            if len(rows) <= OF_SUSPECTS:
                made.append(figures.add(one.path, self.views(one.path, figures, one.box), f"{len(rows)}. {reason}"))
        return rows, made

    def views(self, path: str, figures: Figures, box: Sequence[float] = ()) -> list[np.ndarray]:
        """The truth of an image, and what was found where that is wrong; empty if the image cannot be read.

        `box` is drawn; x, y, width and height in pixels of the image."""
        pixels, one = figures.read(path), self.images[path]
        if pixels is None:
            return []
        small = cv2.resize(pixels, one.truth.shape[::-1], interpolation=cv2.INTER_AREA)
        counts = one.truth != VOID
        views = [
            np.where(shown[..., None], draw.overlay(small, labels.clip(max=len(self.names) - 1), self.colours), small)
            for shown, labels in ((counts, one.truth), (counts & (one.truth != one.found), one.found))
        ]
        if len(box):
            place = np.round(np.multiply(box, len(small) / len(pixels))).astype(int).tolist()
            views = [cv2.rectangle(view, place, FOUND, 2) for view in views]
        return views

    def pictures(self, figures: Figures) -> str:
        """The section with pictures of the images with most wrong pixels."""
        made = []
        for one in sorted(self.images.values(), key=lambda one: -one.wrong)[:SHOWN]:
            text = f"{100 * one.wrong:.1f} % wrong, most of all {one.most}"
            made.append(figures.add(one.path, self.views(one.path, figures), text))
        note = f"The images with most wrong pixels; in all images most are {confused(self.names, self.confusion)}"
        return page.section("Where it fails", note, self.legend(), page.card(LEGEND, made))

    def legend(self) -> str:
        """The classes in their colours, as HTML."""
        shades = [f"rgb({r} {g} {b})" for r, g, b in self.colours.tolist()]
        names = [f'<b style="border-bottom: 4px solid {x}">{escape(name)}</b>' for x, name in zip(shades, self.names)]
        return f"<p>{' &ensp; '.join(names)}</p>"


def _doubts(path: str, truth: np.ndarray, found: np.ndarray, logs: np.ndarray, scale: float) -> list[Doubt]:
    """The regions of small maps [h, w] whose labels are least likely; `logs` of the classes' shares, [C, h, w]."""
    wrong, doubts = (truth != found) & (truth != VOID), []
    pairs, counts = np.unique(np.stack([truth[wrong], found[wrong]], 1), axis=0, return_counts=True)
    for label, other in pairs[np.argsort(-counts, kind="stable")[:PAIRS]].tolist():
        region = wrong & (truth == label) & (found == other)
        _, marks, sizes, _ = cv2.connectedComponentsWithStats(region.astype(np.uint8))
        sums = np.bincount(marks[region], logs[label][region], len(sizes))
        for total, (*box, pixels) in zip(sums[1:].tolist(), sizes[1:].tolist()):
            doubts.append(Doubt(path, (total / pixels) ** 2 * pixels**0.25, np.divide(box, scale), label, other))
    return sorted(doubts, key=lambda one: -one.surprise)[:DOUBTS]


def confused(names: Sequence[str], confusion: np.ndarray) -> str:
    """The classes with the most wrong pixels between them, in words."""
    wrong = confusion - np.diag(np.diag(confusion))
    true, found = np.unravel_index(wrong.argmax(), wrong.shape)
    return f"{names[true]} taken for {names[found]}"


def _labels(sample: Mapping[str, Any], ignored: int) -> list[np.ndarray]:
    maps = [sample[key]["data"].squeeze().cpu().numpy().astype(np.int64) for key in ("gt_sem_seg", "pred_sem_seg")]
    return [np.where(maps[0] == ignored, VOID, maps[0]), maps[1]]


def _segments(sample: Mapping[str, Any]) -> list[np.ndarray]:
    """The labels of segments, by the rules of `PanopticMetric`."""
    ids, truth = read_ids(Path(sample["seg_map_path"])), np.full(sample["ori_shape"][:2], VOID)
    for one in sample["segments_info"]:
        truth[ids == one["id"]] = one["category"]
    return [truth, sample["pred_panoptic_seg"]["sem_seg"][0].cpu().numpy() % INSTANCE_OFFSET]
