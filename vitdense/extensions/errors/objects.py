"""What a detector found: each object right, or wrong in one of TIDE's ways, and numbers over them by hotcoco."""

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
    """An image with its G objects, crowds included, and D found objects."""

    objects: Sequence[Mapping]  # annotations of the truth, whose categories are 1 + label
    rows: np.ndarray  # [D], indices of `Found.boxes`, the highest score first


class Judged:
    """The objects of an evaluation, as COCO's metric matches them at IoU 0.5.

    Attributes:
        evaluation: By hotcoco.
        score: The minimum score at which errors are counted.
        boxes, labels: [N, 7], see `Found.boxes`, and [N].
        places: Number of an image in the truth -> `Place`.
        kinds: [N], "right", one of `KINDS`, or "" for what does not count, such as objects in crowds.
        chosen: [N] bool, whether an object counts at the minimum score.
        missed: Annotations without a right object at the minimum score.
    """

    def __init__(self, evaluation: Evaluation, score: Score) -> None:
        self.evaluation, self.boxes, self.score = evaluation, evaluation.found.boxes, score
        self.labels = self.boxes[:, 6].astype(int) - 1
        objects, rows = defaultdict(list), defaultdict(list)
        for one in evaluation.truth.dataset["annotations"]:
            objects[one["image_id"]].append(one)
        for row in np.argsort(-self.boxes[:, 5], kind="stable").tolist():
            rows[int(self.boxes[row, 0])].append(row)
        images = dict.fromkeys(evaluation.images)
        self.places = {image: Place(objects[image], np.array(rows[image], int)) for image in images}
        self.kinds = np.full(len(self.boxes), "", "U5")
        for place in self.places.values():
            self.kinds[place.rows] = kinds_of(place, self.labels[place.rows], shared(evaluation, place))
        said = evaluation.made.image_diagnostics(RIGHT)
        for row in range(len(self.boxes)):  # ids count from 1
            state = said["dt_status"].get(row + 1)
            self.kinds[row] = self.kinds[row] if state == "fp" else "right" if state == "tp" else ""
        self.chosen = (self.boxes[:, 5] >= least(score, self.labels)) & (self.kinds != "")
        found_by = {one: row - 1 for one, row in said["gt_match"].items()}
        counted = (one for place in self.places.values() for one in place.objects if one["id"] in said["gt_status"])
        self.missed = [one for one in counted if one["id"] not in found_by or not self.chosen[found_by[one["id"]]]]

    def counts(self) -> dict[str, int]:
        """Right, false and missed objects at the minimum score."""
        right = int((self.chosen & (self.kinds == "right")).sum())
        return {"right": right, "false": int(self.chosen.sum()) - right, "missed": len(self.missed)}


def shared(evaluation: Evaluation, place: Place) -> np.ndarray:
    """IoUs, [D, G], or OKS of keypoints; with a crowd, the share of the found object inside."""
    objects, crowds = place.objects, [one["iscrowd"] for one in place.objects]
    if not (len(place.rows) and objects):
        return np.zeros((len(place.rows), len(objects)))
    if evaluation.kind == "bbox":
        return box_ious(evaluation.found.boxes[place.rows, 1:5], [one["bbox"] for one in objects], crowds)
    if evaluation.kind == "segm":
        masks = [evaluation.found.places["segmentation"][row] for row in place.rows]
        return hotcoco.mask.iou(masks, [evaluation.made.coco_gt.ann_to_rle(one) for one in objects], crowds)
    found = np.array([evaluation.found.places["keypoints"][row] for row in place.rows])
    truth = np.array([one["keypoints"] for one in objects], float).reshape(len(objects), -1, 3)
    distances = ((found.reshape(len(found), 1, -1, 3) - truth)[..., :2] ** 2).sum(-1)  # [D, G, K]
    areas = np.array([one["area"] for one in objects], float)[:, None] + np.spacing(1)
    near = np.exp(-distances / (8 * np.square(evaluation.made.params.kpt_oks_sigmas) * areas))
    seen = truth[..., 2] > 0
    return (near * seen).sum(-1) / np.maximum(seen.sum(-1), 1)


def box_ious(found: Any, objects: Any, crowds: Sequence[int] | None = None) -> np.ndarray:
    """IoUs of boxes (x, y, width, height), [D, 4] and [G, 4] -> [D, G]; `crowds` as in `shared`."""
    found, objects = (np.array(boxes, float).reshape(-1, 4) for boxes in (found, objects))
    if not (len(found) and len(objects)):
        return np.zeros((len(found), len(objects)))
    return hotcoco.mask.iou(found, objects, crowds or [0] * len(objects))


def kinds_of(place: Place, labels: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """The kinds of error of the found objects of an image, by TIDE's rules (Bolya et al., ECCV 2020, section 2.2)."""
    categories = np.array([one["category_id"] - 1 for one in place.objects], int)
    crowds = np.array([one["iscrowd"] for one in place.objects], bool)
    same = labels[:, None] == categories
    own = np.where(same, shared, 0).max(1, initial=0)
    other = np.where(~same & ~crowds, shared, 0).max(1, initial=0)
    rules = [(own >= NEAR) & (own < RIGHT), other >= RIGHT, own >= RIGHT, np.maximum(own, other) < NEAR]
    return np.select(rules, ["Loc", "Cls", "Dupe", "Bkg"], "Both")


def numbers(judged: Judged, ap_limit: int | None) -> dict[str, Any]:
    """The numbers of a kind of objects, for ``metrics.json``; -1 where there is nothing to find.

    `table` has AP by class and size, `tide` what each kind of error costs, `confusion` objects by true and found class
    (the last is the background), and `by_score` precision and recall by minimum score.
    """
    evaluation, made = judged.evaluation, judged.evaluation.made
    sizes = "ml" if evaluation.kind == "keypoints" else "sml"
    limit = evaluation.limits.index(ap_limit) if ap_limit in evaluation.limits else -1
    truth = [one for place in judged.places.values() for one in place.objects if not one["iscrowd"]]
    objects = np.bincount([one["category_id"] - 1 for one in truth], minlength=len(evaluation.truth.classes))
    table = [{"class": "all", "objects": len(truth), **evaluation.precisions(sizes, limit=limit)}]
    for label, name in enumerate(evaluation.truth.classes):
        table.append({"class": name, "objects": int(objects[label]), **evaluation.precisions(sizes, [label])})
    confusion = made.confusion_matrix(RIGHT, min_score=float(np.min(judged.score)))["matrix"]
    total = len(made.image_diagnostics(RIGHT)["gt_status"])
    by_score = []
    for least_score in sorted({*np.linspace(0, 0.95, 20).round(2).tolist(), float(np.min(judged.score))}):
        kinds = judged.kinds[judged.boxes[:, 5] >= least_score]
        found, hits = int((kinds != "").sum()), int((kinds == "right").sum())
        precision, recall = hits / found if found else -1.0, hits / max(total, 1)
        by_score.append({"score": f"{least_score:.2f}", "precision": precision, "recall": recall})
    return {
        "score": judged.score,
        "counts": judged.counts(),
        "table": table,
        "tide": made.tide_errors(RIGHT, NEAR),
        "calibration_error": made.calibration(iou_threshold=RIGHT)["ece"],
        "confusion": {"classes": [*evaluation.truth.classes, "background"], "matrix": confusion.tolist()},
        "by_score": by_score,
    }
