"""What a detector found, each object right or wrong of a kind, and numbers over them, which are hotcoco's."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hotcoco
import numpy as np

from vitdense.mm.train.coco_engines import Evaluation
from vitdense.runtime import least

RIGHT, NEAR = 0.5, 0.1  # least IoU of a right object and of one that is near an object, in TIDE too
KINDS = {  # TIDE's kinds of errors
    "Miss": "missed",
    "Cls": "another class",
    "Loc": "badly placed",
    "Both": "another class, and badly placed",
    "Dupe": "found twice",
    "Bkg": "on the background",
}
Score = float | Sequence[float]  # a minimum score of all classes, or one of each


class Place(NamedTuple):
    """An image with its G objects, crowds included, and D found objects, the highest score first."""

    image: int  # its number in the truth
    objects: Sequence[Mapping]  # annotations of the truth, whose categories are 1 + label
    rows: np.ndarray  # [D], indices of `Found.boxes`
    shared: np.ndarray  # [D, G], IoU, or OKS of keypoints; with a crowd, the share of the found object inside


class Judged:
    """The objects of an evaluation, as COCO's metric matches them at IoU 0.5.

    Args:
        evaluation: By hotcoco.
        score: The minimum score at which errors are counted.

    Attributes:
        boxes: [N, 7], see `Found.boxes`.
        kinds: [N], "right", one of `KINDS`, or "" for what does not count, such as objects in crowds.
        chosen: [N] bool, whether an object counts at the minimum score.
        missed: Annotations without a right object at the minimum score.
        total: Number of objects that count.
    """

    def __init__(self, evaluation: Evaluation, score: Score) -> None:
        self.evaluation, self.boxes, self.score = evaluation, evaluation.found.boxes, score
        said = evaluation.made.image_diagnostics(RIGHT)
        self.labels = self.boxes[:, 6].astype(int) - 1
        self.chosen = self.boxes[:, 5] >= least(score, self.labels)
        self.kinds = np.full(len(self.boxes), "", "U5")
        self.places = {place.image: place for place in places(evaluation)}
        for place in self.places.values():
            self.kinds[place.rows] = kinds_of(place, self.labels[place.rows])
        status = said["dt_status"]
        for row in range(len(self.boxes)):  # ids count from 1
            state = status.get(row + 1)
            self.kinds[row] = self.kinds[row] if state == "fp" else "right" if state == "tp" else ""
        self.chosen &= self.kinds != ""
        by = {one: row - 1 for one, row in said["gt_match"].items()}
        counted, self.total = said["gt_status"], len(said["gt_status"])
        objects = (one for place in self.places.values() for one in place.objects if one["id"] in counted)
        self.missed = [one for one in objects if not self.chosen[by.get(one["id"], 0)] or one["id"] not in by]

    def counts(self) -> dict[str, int]:
        """Right, false and missed objects at the minimum score."""
        right = int((self.chosen & (self.kinds == "right")).sum())
        return {"right": right, "false": int(self.chosen.sum()) - right, "missed": len(self.missed)}


def places(evaluation: Evaluation, kind: str | None = None) -> Sequence[Place]:
    """The images of an evaluation, with IoUs of its kind or of another, ``bbox`` for boxes."""
    boxes, objects = evaluation.found.boxes, defaultdict(list)
    for one in evaluation.truth.dataset["annotations"]:
        objects[one["image_id"]].append(one)
    order = np.lexsort((-boxes[:, 5], boxes[:, 0]))
    numbers, starts = np.unique(boxes[order, 0], return_index=True)
    rows = dict(zip(numbers.astype(int).tolist(), np.split(order, starts[1:]) if len(starts) else ()))
    none = np.zeros(0, int)
    found = ((image, objects[image], rows.get(image, none)) for image in dict.fromkeys(evaluation.images))
    return [Place(*one, shared(evaluation, kind or evaluation.kind, *one[1:])) for one in found]


def shared(evaluation: Evaluation, kind: str, objects: Sequence[Mapping], rows: np.ndarray) -> np.ndarray:
    """See `Place.shared`."""
    if not (len(rows) and objects):
        return np.zeros((len(rows), len(objects)))
    if kind == "keypoints":
        return oks(
            [evaluation.found.places["keypoints"][i] for i in rows], objects, evaluation.made.params.kpt_oks_sigmas
        )
    crowds = [one["iscrowd"] for one in objects]
    if kind == "bbox":
        return hotcoco.mask.iou(
            evaluation.found.boxes[rows, 1:5], np.array([x["bbox"] for x in objects], float), crowds
        )
    masks = [evaluation.found.places["segmentation"][i] for i in rows]
    return hotcoco.mask.iou(masks, [evaluation.made.coco_gt.ann_to_rle(one) for one in objects], crowds)


def oks(found: Sequence[Sequence[float]], objects: Sequence[Mapping], sigmas: Sequence[float]) -> np.ndarray:
    """COCO's similarity of keypoints, [D, G]; 0 for objects without labelled points."""
    found = np.array(found).reshape(len(found), 1, -1, 3)
    truth = np.array([one["keypoints"] for one in objects], float).reshape(len(objects), -1, 3)
    areas = np.array([one["area"] for one in objects], float)[:, None]
    squares = ((found[..., :2] - truth[..., :2]) ** 2).sum(-1)  # [D, G, K]
    near = np.exp(-squares / (2 * np.square(2 * np.asarray(sigmas)) * (areas + np.spacing(1))))
    seen = truth[..., 2] > 0
    return (near * seen).sum(-1) / np.maximum(seen.sum(-1), 1)


def kinds_of(place: Place, labels: np.ndarray) -> np.ndarray:
    """The kinds of error of the found objects of an image, by TIDE's rules (Bolya et al., ECCV 2020, section 2.2)."""
    categories = np.array([one["category_id"] - 1 for one in place.objects], int)
    crowds = np.array([one["iscrowd"] for one in place.objects], bool)
    same = labels[:, None] == categories
    own = np.where(same, place.shared, 0).max(1, initial=0)
    other = np.where(~same & ~crowds, place.shared, 0).max(1, initial=0)
    rules = [(own >= NEAR) & (own < RIGHT), other >= RIGHT, own >= RIGHT, np.maximum(own, other) < NEAR]
    return np.select(rules, ["Loc", "Cls", "Dupe", "Bkg"], "Both")


def numbers(judged: Judged, ap_limit: int | None) -> dict[str, Any]:
    """The numbers of a kind of objects, for ``metrics.json``; -1 where there is nothing to find.

    `table` has AP by class and size, `tide` what each kind of error costs, `confusion` objects by true and found class
    (the last is the background), `by_score` precision and recall by minimum score, `curve` precision by recall at IoU
    0.5, from 0 to 1, and `counts` those of `Judged`.
    """
    evaluation, made = judged.evaluation, judged.evaluation.made
    sizes = "ml" if evaluation.kind == "keypoints" else "sml"
    limit = evaluation.limits.index(ap_limit) if ap_limit in evaluation.limits else -1
    objects = np.bincount(
        [x["category_id"] - 1 for place in judged.places.values() for x in place.objects if not x["iscrowd"]]
    )
    table = [{"class": "all", "objects": int(objects.sum()), **evaluation.precisions(sizes, limit=limit)}]
    for label, name in enumerate(evaluation.truth.classes):
        number = int(objects[label]) if label < len(objects) else 0
        table.append({"class": name, "objects": number, **evaluation.precisions(sizes, [label])})
    tide, calibration = made.tide_errors(RIGHT, NEAR), made.calibration(iou_threshold=RIGHT)
    confusion = made.confusion_matrix(RIGHT, min_score=float(np.min(judged.score)))
    precision = evaluation.precision[np.isclose(evaluation.thresholds, RIGHT), :, :, 0, -1][0]  # [recalls, classes]
    scores, right = judged.boxes[judged.kinds != "", 5], judged.boxes[judged.kinds == "right", 5]
    grid = np.linspace(0, 1, 101)
    found, hits = ((x[:, None] >= grid).sum(0) for x in (scores, right))
    known = precision[:, (precision > -1).all(0)]
    return {
        "score": judged.score,
        "counts": judged.counts(),
        "table": table,
        "tide": tide,
        "calibration_error": calibration["ece"],
        "confusion": {"classes": [*evaluation.truth.classes, "background"], "matrix": confusion["matrix"].tolist()},
        "by_score": {
            "score": grid.tolist(),
            "precision": (hits / np.maximum(found, 1)).tolist(),
            "recall": (hits / max(judged.total, 1)).tolist(),
        },
        "curve": known.mean(1).tolist() if known.size else [],
    }
