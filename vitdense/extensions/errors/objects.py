"""What a detector found: each object right, or wrong in one of TIDE's ways, and numbers over them by hotcoco."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hotcoco
import numpy as np

from vitdense.extensions.errors import page
from vitdense.extensions.errors.pictures import FOUND, OTHER, TRUE, Drawn, Figures
from vitdense.mm.train.coco_engines import Evaluation
from vitdense.results import draw
from vitdense.runtime import SCORE, least
from vitdense.seams import ask

RIGHT, NEAR = 0.5, 0.1  # least IoU of a right object and of one that is near an object, in TIDE too
KINDS = {  # TIDE's kinds of errors
    "Miss": "missed",
    "Cls": "another class",
    "Loc": "badly placed",
    "Both": "another class, and badly placed",
    "Dupe": "found twice",
    "Bkg": "on the background",
}
OF_KIND = 8  # figures of a kind of errors


class Place(NamedTuple):
    """An image with its G objects, crowds included, and D found objects."""

    objects: Sequence[Mapping]  # annotations of the truth, whose categories are 1 + label
    rows: np.ndarray  # [D], indices of `Found.boxes`, the highest score first


class Judged:
    """The objects of an evaluation, as COCO's metric matches them at IoU 0.5.

    Args:
        evaluation: By hotcoco.
        paths: Number of an image in the truth -> its path.
        score: The minimum score at which errors are counted, of all classes or one of each.
        ap_limit: Most objects per image for mAP, see `Evaluation.figures`.

    Attributes:
        boxes, labels: [N, 7], see `Found.boxes`, and [N].
        places: Number of an image in the truth -> `Place`.
        kinds: [N], "right", one of `KINDS`, or "" for what does not count, such as objects in crowds.
        chosen: [N] bool, whether an object counts at the minimum score.
        missed: Annotations without a right object at the minimum score.
        wrong: Number of an image -> 1 - F1.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        paths: Mapping[int, str],
        score: float | Sequence[float] = SCORE,
        ap_limit: int | None = 100,
    ) -> None:
        self.evaluation, self.boxes, self.score, self.ap_limit = evaluation, evaluation.found.boxes, score, ap_limit
        self.kind, self.names, self.paths = evaluation.kind, evaluation.truth.classes, paths
        joined = (one.get("skeleton") for x in evaluation.truth.contents.values() for one in x["categories"])
        self.pairs = [(a - 1, b - 1) for a, b in next(filter(None, joined), ())]
        self.data = self.kind, self.names, list(evaluation.truth.images), evaluation.images
        ids = {number: one for (_, one), number in evaluation.truth.images.items()}
        self.called = {image: f"{Path(path).name}, image id {ids[image]}" for image, path in paths.items()}
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
        self.total, self.wrong = len(said["gt_status"]), dict.fromkeys(images, 0.0)
        self.wrong |= {image: 1 - of["f1"] for image, of in said["img_summary"].items()}

    def counts(self) -> dict[str, int]:
        """Right, false and missed objects at the minimum score."""
        right = int((self.chosen & (self.kinds == "right")).sum())
        return {"right": right, "false": int(self.chosen.sum()) - right, "missed": len(self.missed)}

    def numbers(self) -> dict[str, Any]:
        """The numbers for ``metrics.json``; -1 where there is nothing to find.

        `table` has AP by class and size, `by_score` precision and recall by minimum score, `tide` and `costs` what each
        kind of error costs, and `confusion` objects by true and found class, of which the last is the background.
        """
        evaluation, made, lowest = self.evaluation, self.evaluation.made, float(np.min(self.score))
        sizes = "ml" if self.kind == "keypoints" else "sml"
        limit = evaluation.limits.index(self.ap_limit) if self.ap_limit in evaluation.limits else -1
        truth = [one for place in self.places.values() for one in place.objects if not one["iscrowd"]]
        objects = np.bincount([one["category_id"] - 1 for one in truth], minlength=len(self.names)).tolist()
        table = [{"class": "all", "objects": len(truth), **evaluation.precisions(sizes, limit=limit)}]
        for label, name in enumerate(self.names):
            table.append({"class": name, "objects": objects[label], **evaluation.precisions(sizes, [label])})
        by_score, scores = [], {*np.linspace(0, 0.95, 20).round(2).tolist(), lowest}
        for score in sorted(score for score in scores if score <= self.boxes[:, 5].max()):
            kinds = self.kinds[self.boxes[:, 5] >= score]
            found, hits = int((kinds != "").sum()), int((kinds == "right").sum())
            precision, recall = hits / found if found else -1.0, hits / max(self.total, 1)
            by_score.append({"score": f"{score:.2f}", "precision": precision, "recall": recall})
        tide, confusion = made.tide_errors(RIGHT, NEAR), made.confusion_matrix(RIGHT, min_score=lowest)["matrix"]
        costs = [
            {"error": title, "AP": tide["delta_ap"][kind], "at any score": tide["counts"][kind]}
            for kind, title in sorted(KINDS.items(), key=lambda item: -tide["delta_ap"][item[0]])
        ]
        return {
            "score": self.score,
            "counts": self.counts(),
            "calibration_error": made.calibration(iou_threshold=RIGHT)["ece"],
            "tide": tide,
            "table": table,
            "by_score": by_score,
            "costs": costs,
            "confusion": {"classes": [*self.names, "background"], "matrix": confusion.tolist()},
        }

    def at(self) -> str:
        """The minimum score in words."""
        of_classes = f" to {np.max(self.score):.3f}, by class" if np.ndim(self.score) else ""
        return f"at scores from {np.min(self.score):.3f}{of_classes}"

    def pictures(self, figures: Figures) -> str:
        """The section with pictures of each kind of error, the worst first."""
        cards = []
        for kind, title in KINDS.items():
            missed = sorted(self.missed, key=lambda one: -one["area"]) if kind == "Miss" else []
            rows = np.flatnonzero(self.chosen & (self.kinds == kind))
            rows, made = rows[np.argsort(-self.boxes[rows, 5], kind="stable")].tolist(), []
            for one in missed[:OF_KIND]:
                text = f"{self.names[one['category_id'] - 1]}, annotation {one['file_id']}"
                made.append(self.figure(figures, one["image_id"], [one["bbox"]], text, about=one["id"]))
            for row in rows[:OF_KIND]:
                text = f"{self.names[self.labels[row]]} {self.boxes[row, 5]:.2f}"
                made.append(self.figure(figures, int(self.boxes[row, 0]), [self.boxes[row, 1:5]], text, row=row))
            cards.append(page.card(f"{title}: {len(missed) + len(rows)}", made))
        return page.section("Where it fails", "Left the truth, right what was found.", *cards)

    def figure(self, figures: Figures, image: int, boxes: Sequence, text: str, **about: Any) -> str:
        return figures.add(image, self.views(image, figures, boxes, **about), text)

    def views(
        self,
        image: int,
        figures: Figures,
        boxes: Sequence = (),
        about: int | None = None,
        row: int | None = None,
        more: Sequence[Drawn] = (),
    ) -> list[np.ndarray]:
        """The objects of the truth and the found ones, with `more`, around boxes or in the whole image.

        What a figure is about is drawn in colour and last: the object with the number `about`, the found object `row`.
        """
        names, place, truth, found = draw.drawable(self.names), self.places[image], [], []
        shapes = "corners" if self.kind == "obb" else "segmentation"
        codes, poses = (self.evaluation.found.places.get(key) for key in (shapes, "keypoints"))
        for one in sorted(place.objects, key=lambda one: one["id"] == about):
            mask = one.get("corners") if self.kind == "obb" else None
            mask = self.evaluation.made.coco_gt.ann_to_rle(one) if self.kind == "segm" else mask
            words = names[one["category_id"] - 1] + " (crowd)" * one["iscrowd"]
            truth.append(Drawn(one["bbox"], words, TRUE if one["id"] == about else OTHER, mask, one.get("keypoints")))
        for one in sorted(place.rows[self.chosen[place.rows]][::-1].tolist(), key=lambda one: one == row):
            words = f"{names[self.labels[one]]} {self.boxes[one, 5]:.2f}"
            colour, posed = FOUND if one == row else OTHER, poses and poses[one]
            found.append(Drawn(self.boxes[one, 1:5], words, colour, codes and codes[one], posed))
        return figures.crops(image, boxes, [truth, [*found, *more]], self.pairs)


def shared(evaluation: Evaluation, place: Place) -> np.ndarray:
    """IoUs, [D, G], or OKS of keypoints; with a crowd, the share of the found object inside."""
    objects, crowds = place.objects, [one["iscrowd"] for one in place.objects]
    if evaluation.kind == "bbox" or not (len(place.rows) and objects):
        return box_ious(evaluation.found.boxes[place.rows, 1:5], [one["bbox"] for one in objects], crowds)
    if evaluation.kind == "segm":
        masks = [evaluation.found.places["segmentation"][row] for row in place.rows]
        return hotcoco.mask.iou(masks, [evaluation.made.coco_gt.ann_to_rle(one) for one in objects], crowds)
    if evaluation.kind == "obb":
        found = [evaluation.found.places["corners"][row] for row in place.rows]
        return ask("report", "shared", found, objects, crowds)
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
