"""The page of `vitdense test --report`: sections of numbers and of pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitdense import __version__
from vitdense.extensions.errors import page
from vitdense.extensions.errors.maps import METRICS, Maps
from vitdense.extensions.errors.objects import KINDS, Judged, Score, numbers
from vitdense.extensions.errors.pictures import FOUND, Drawn, Figures, figures_of, sides_of
from vitdense.extensions.errors.suspects import Suspect, as_results, suspects
from vitdense.extensions.page import write_page
from vitdense.mm.errors import ConfigError
from vitdense.runtime import SCORE
from vitdense.seams import ask

if TYPE_CHECKING:
    from mmengine.runner import Runner

    from vitdense.mm.train.coco_engines import Evaluation

OF_KIND, OF_SUSPECTS = 8, 40  # figures
NAMES = {"bbox": "Boxes", "segm": "Masks", "keypoints": "Keypoints"}
SIDES = "Left the truth, right what was found."


def page_of(target: Path) -> Path:
    """The file of the report: a table, or the page in a folder."""
    return target if target.suffix in page.TABLES else target / "report.html"


@dataclass
class Tested:
    """What is known of a model after its test.

    Attributes:
        name: Of the model.
        metrics: By name.
        evaluations: Evaluations of a detector, each with the limit of its AP, see `Evaluation.figures`.
        paths: Number of an image of the evaluations -> its path.
        score: The minimum score at which errors are counted.
        maps: What a segmentor or a panoptic model took for something else.
    """

    name: str
    metrics: Mapping[str, float]
    evaluations: Sequence[tuple["Evaluation", int | None]] = ()
    paths: Mapping[int, str] = field(default_factory=dict)
    score: Score = SCORE
    maps: Maps | None = None


class Collected:
    """What the metrics of a test keep for its report."""

    def __init__(self, runner: "Runner") -> None:
        metrics = runner.test_evaluator.metrics
        self.coco, self.maps = [one for one in metrics if hasattr(one, "evaluations")], None
        for metric in self.coco:
            metric.evaluations = []
            if metric.engine != "hotcoco":
                raise ConfigError(f"--report: got the engine {metric.engine} of a COCO metric, expected hotcoco")
        of_maps = [one for one in metrics if any(base.__name__ in METRICS for base in type(one).__mro__)]
        if not self.coco and not of_maps:
            names = ", ".join(type(one).__name__ for one in metrics)
            raise ConfigError(
                f"--report: got the metrics {names}, expected {', '.join(METRICS)} or vitdense's CocoMetric"
            )
        if of_maps:
            self.maps = Maps(of_maps[0])
            metrics.append(self.maps)

    def tested(self, runner: "Runner", metrics: Mapping[str, float], tiles: int | None, overlap: float) -> Tested:
        """See `Tested`."""
        classes, checkpoint = runner.test_evaluator.dataset_meta["classes"], str(runner.cfg.load_from)
        # Straight boxes stand for oriented ones: hotcoco's pictures and matches know no others.
        found = [(one, of.ap_limit) for of in self.coco for one in of.evaluations if one.kind in NAMES]
        made = Tested(checkpoint, metrics, found)
        if self.maps:
            made.maps = self.maps
            return made
        if not made.evaluations:
            raise ConfigError("--report: the detector found nothing on the test data, so there is nothing to show")
        if point := ask("load", "read_point", checkpoint, runner.cfg, list(classes), tiles, overlap):
            made.score = point.thresholds
        dataset = runner.test_dataloader.dataset
        images = enumerate(made.evaluations[0][0].images)
        made.paths = {number: dataset.get_data_info(i)["img_path"] for i, number in images}
        return made


def write_report(target: Path, tested: Tested) -> Path:
    """Write the page and its files, or the table alone; the path of the page or the table."""
    judged = [Judged(one, tested.score) for one, _ in tested.evaluations]
    values = {one.evaluation.kind: numbers(one, limit) for one, (_, limit) in zip(judged, tested.evaluations)}
    if tested.maps:
        values["pixels"] = tested.maps.numbers()
    path = page_of(target)
    if target.suffix in page.TABLES:
        page.write_table(path, [{"of": name, **row} for name, of in values.items() for row in of["table"]])
        return path
    target.mkdir(parents=True, exist_ok=True)
    metrics = {name: None if math.isnan(value) else value for name, value in tested.metrics.items()}  # no NaN in JSON
    page.write_json(target / "metrics.json", {"model": tested.name, "metrics": metrics, **values})
    if tested.maps:
        figures = Figures({one.path: one.path for one in tested.maps.images})
        sections = [tested.maps.sections(values["pixels"], figures)]
        verdict = ", ".join(f"<b>{name} {value:.2f}</b>" for name, value in tested.metrics.items())
    else:
        figures, found = figures_of(judged[-1], tested.paths), suspects(judged[0])
        page.write_json(target / "suspects.json", as_results(found, judged[0], tested.paths))
        labels = _labels(found, judged[0], figures)  # first, while there is room
        sections = [*(_numbers(NAMES[kind], of) for kind, of in values.items()), _kinds(judged[-1], figures), labels]
        counts = judged[-1].counts().items()
        verdict = "; ".join(f"<b>{name} {number}</b>" for name, number in counts) + f" at {_score(tested.score)}"
    body, about = "".join([*sections, figures.notes()]), f"{tested.name}, vitdense {__version__}"
    write_page(path, f"Test of {Path(tested.name).stem}", about, verdict, body)
    return path


def _score(score: Score) -> str:
    return f"scores from {np.min(score):.3f}" + (f" to {np.max(score):.3f}, by class" if np.ndim(score) else "")


def _numbers(name: str, of: Mapping[str, Any]) -> str:
    """The sections of numbers of a kind of objects."""
    cost, counts = of["tide"]["delta_ap"], of["tide"]["counts"]
    costs = [
        {"error": KINDS[kind], "costs AP at IoU 0.5": float(cost[kind]), "at any score": counts[kind]}
        for kind in sorted(KINDS, key=lambda kind: -cost[kind])
    ]
    note = f"AP at IoU 0.5 is {of['tide']['ap_base']:.3f}; each kind of error by TIDE"
    at, confused = f"at {_score(of['score'])}", page.confusion(**of["confusion"])
    return (
        page.section(name, "AP by class and size", page.table(of["table"]))
        + page.section(f"{name}: by minimum score", f"Errors are counted {at}", page.table(of["by_score"]))
        + page.section(f"{name}: what errors cost", note, page.table(costs))
        + page.section(f"{name}: taken for one another", f"Shares of the truth, {at}", confused)
    )


def _kinds(judged: Judged, figures: Figures) -> str:
    """The pictures of each kind of error, the worst first."""
    names, cards = judged.evaluation.truth.classes, []
    for kind, title in KINDS.items():
        missed = sorted(judged.missed, key=lambda one: -one["area"]) if kind == "Miss" else []
        rows = np.flatnonzero(judged.chosen & (judged.kinds == kind))
        rows, made = rows[np.argsort(-judged.boxes[rows, 5], kind="stable")].tolist(), []
        for one in missed[:OF_KIND]:
            text = f"{names[one['category_id'] - 1]}, annotation {one['file_id']}"
            sides = sides_of(judged, one["image_id"], one["id"])
            made.append(figures.crops(one["image_id"], [one["bbox"]], sides, text))
        for row in rows[:OF_KIND]:
            image, text = int(judged.boxes[row, 0]), f"{names[judged.labels[row]]} {judged.boxes[row, 5]:.2f}"
            made.append(figures.crops(image, [judged.boxes[row, 1:5]], sides_of(judged, image, row=row), text))
        cards.append(page.card(f"{title}: {len(missed) + len(rows)}", made))
    return page.section("Where it fails", SIDES, *cards)


def _labels(found: Sequence[Suspect], judged: Judged, figures: Figures) -> str:
    """The pictures of labels that look wrong."""
    made = []
    for i, one in enumerate(found[:OF_SUSPECTS], 1):
        truth, seen = sides_of(judged, one.image, one.object and one.object["id"])
        sides = truth, [*seen, Drawn(one.boxes[0], "", FOUND)]
        made.append(figures.crops(one.image, one.boxes, sides, f"{i}. {one.reason}"))
    note = f"{len(found)} suspects, the most certain first; suspects.json has all of them, with ids and boxes."
    return page.section("Labels that look wrong", note, page.card(SIDES, made))
