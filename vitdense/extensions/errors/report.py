"""The page of `vitdense test --report`, its numbers as JSON, and the table alone."""

import csv
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitdense import __version__
from vitdense.extensions.errors import html
from vitdense.extensions.errors.objects import KINDS, Judged, Score, numbers
from vitdense.extensions.errors.pictures import Drawn, Figures
from vitdense.extensions.errors.suspects import Suspect, as_results, suspects
from vitdense.extensions.page import write_page
from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError, join_some
from vitdense.results import draw
from vitdense.runtime import SCORE
from vitdense.seams import ask

if TYPE_CHECKING:
    from mmengine.runner import Runner

    from vitdense.mm.train.coco_engines import Evaluation

TABLES = (".csv", ".md")  # files of the table alone
OF_KIND, OF_SUSPECTS = 8, 40  # figures
NAMES = {"bbox": "Boxes", "segm": "Masks", "keypoints": "Keypoints"}
FOUND, TRUE, OTHER = (255, 120, 60), (0, 160, 90), (130, 150, 170)  # colours of what a figure is about, and of the rest


def page_of(target: Path) -> Path:
    """The file of the report: a table, or the page in a folder."""
    return target if target.suffix in TABLES else target / "report.html"


@dataclass
class Tested:
    """What is known of a model after its test.

    Attributes:
        name: Of the model.
        classes: Class names.
        metrics: By name.
        evaluations: Evaluations of a detector, each with the limit of its AP, see `Evaluation.figures`.
        paths: Number of an image of the evaluations -> its path.
        score: The minimum score at which errors are counted.
    """

    name: str
    classes: Sequence[str]
    metrics: Mapping[str, float]
    evaluations: Sequence[tuple["Evaluation", int | None]] = ()
    paths: Mapping[int, str] = field(default_factory=dict)
    score: Score = SCORE


class Collected:
    """What the metrics of a test keep for its report."""

    def __init__(self, runner: "Runner") -> None:
        self.coco = [one for one in runner.test_evaluator.metrics if hasattr(one, "evaluations")]
        for metric in self.coco:
            metric.evaluations = []
            if metric.engine != "hotcoco":
                raise ConfigError(f"--report: got the engine {metric.engine} of a COCO metric, expected hotcoco")
        if not self.coco:
            names = ", ".join(type(one).__name__ for one in runner.test_evaluator.metrics)
            raise ConfigError(
                f"--report: got the metrics {names} of test_evaluator, expected a COCO metric of vitdense"
            )

    def tested(self, runner: "Runner", metrics: Mapping[str, float], tiles: int | None, overlap: float) -> Tested:
        """See `Tested`."""
        classes, checkpoint = runner.test_evaluator.dataset_meta["classes"], runner.cfg.load_from
        made = Tested(str(checkpoint), classes, metrics)
        made.evaluations = [(one, metric.ap_limit) for metric in self.coco for one in metric.evaluations]
        if self.coco and not made.evaluations:
            raise ConfigError("--report: the detector found nothing on the test data, so there is nothing to show")
        if point := ask("load", "read_point", str(checkpoint), runner.cfg, list(classes), tiles, overlap):
            made.score = point.thresholds
        dataset = runner.test_dataloader.dataset
        for one, _ in made.evaluations[:1]:
            made.paths = {number: dataset.get_data_info(i)["img_path"] for i, number in enumerate(one.images)}
        return made


def write_report(target: Path, tested: Tested) -> Path:
    """Write the page and its files, or the table alone; the path of the page or the table."""
    judged = [Judged(one, tested.score) for one, _ in tested.evaluations]
    values = {one.evaluation.kind: numbers(one, limit) for one, (_, limit) in zip(judged, tested.evaluations)}
    path = page_of(target)
    if target.suffix in TABLES:
        rows = [{"of": name, **row} for name, of in values.items() for row in of["table"]]
        with atomic_write(path) as scratch:
            scratch.write_text(as_table(rows, target.suffix), encoding="utf-8")
        return path
    target.mkdir(parents=True, exist_ok=True)
    ids = {number: one for (_, one), number in tested.evaluations[0][0].truth.images.items()}
    figures, found = Figures(tested.paths, ids), suspects(judged[0])
    parts = _labels(found, judged[0], figures), _kinds(judged[-1], figures)
    sections = [_numbers(judged[i].evaluation.kind, of, tested.score) for i, of in enumerate(values.values())]
    body = "".join([*sections, *reversed(parts), _notes(figures)])
    counts = values[judged[-1].evaluation.kind]["counts"]
    verdict = "; ".join(f"<b>{name} {number}</b>" for name, number in counts.items()) + f" at {_score(tested.score)}"
    write_page(path, f"Test of {Path(tested.name).stem}", f"{tested.name}, vitdense {__version__}", verdict, body)
    content = {"model": tested.name, "metrics": tested.metrics, **values, "suspects": len(found)}
    _write_json(target / "metrics.json", content)
    _write_json(target / "suspects.json", as_results(found, judged[0].evaluation, tested.paths))
    return path


def as_table(rows: Sequence[Mapping[str, Any]], suffix: str) -> str:
    """Rows with the same keys as CSV with all digits, or as Markdown with three."""
    if suffix == ".md":
        lines = [[*rows[0]], ["---"] * len(rows[0]), *([html.cell(x) for x in row.values()] for row in rows)]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer.writerows([keys, *([row.get(key, "") for key in keys] for row in rows)])
    return text.getvalue()


def _write_json(path: Path, content: Any) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and math.isnan(value) else value  # JSON has no NaN

    with atomic_write(path) as scratch:
        scratch.write_text(json.dumps(plain(content), indent=1) + "\n", encoding="utf-8")


def _score(score: Score) -> str:
    return f"scores from {np.min(score):.3f}" + (f" to {np.max(score):.3f}, by class" if np.ndim(score) else "")


def _numbers(kind: str, of: Mapping[str, Any], score: Score) -> str:
    """The sections of numbers of a kind of objects."""
    tide = of["tide"]
    costs = [
        {
            "error": KINDS[name],
            "costs AP at IoU 0.5": float(tide["delta_ap"][name]),
            "at any score": tide["counts"][name],
        }
        for name in sorted(KINDS, key=lambda name: -tide["delta_ap"][name])
    ]
    recalls = [(i / (len(of["curve"]) - 1), y) for i, y in enumerate(of["curve"])]
    by_score = of["by_score"]
    lines = {name: list(zip(by_score["score"], by_score[name])) for name in ("precision", "recall")}
    curves = html.curve({"precision": recalls}, "recall, the mean over classes") + html.curve(
        lines, "minimum score", np.min(score)
    )
    return (
        f"<h2>{NAMES[kind]}</h2>{html.table(of['table'], 'mAP')}"
        f'<div class="grid">{curves}</div>'
        f"<h2>{NAMES[kind]}: what errors cost</h2>"
        f'<p class="faint">AP at IoU 0.5 is {tide["ap_base"]:.3f}; each kind of error by TIDE</p>'
        f"{html.table(costs, 'costs AP at IoU 0.5')}"
        f'<h2>{NAMES[kind]}: taken for one another</h2><p class="faint">Rows are the truth, at {_score(score)}</p>'
        f"{html.confusion(**of['confusion'], unit='objects')}"
    )


def _drawn(
    judged: Judged, image: int, about: int | None, rows: Collection[int] = ()
) -> tuple[list[Drawn], list[Drawn]]:
    """The objects of the truth and the found ones of an image.

    What a figure is about is drawn in colour and last: the object with the number `about`, and found objects `rows`.
    """
    names, truth, found = draw.drawable(judged.evaluation.truth.classes), [], []
    place, codes = judged.places[image], judged.evaluation.found.places.get("segmentation")
    for one in sorted(place.objects, key=lambda one: one["id"] == about):
        mask = judged.evaluation.made.coco_gt.ann_to_rle(one) if judged.evaluation.kind == "segm" else None
        words = names[one["category_id"] - 1] + " (crowd)" * one["iscrowd"]
        truth.append(Drawn(one["bbox"], words, TRUE if one["id"] == about else OTHER, mask))
    for row in sorted(
        place.rows[judged.chosen[place.rows]].tolist(), key=lambda row: (row in rows, judged.boxes[row, 5])
    ):
        words = f"{names[judged.labels[row]]} {judged.boxes[row, 5]:.2f}"
        found.append(Drawn(judged.boxes[row, 1:5], words, FOUND if row in rows else OTHER, codes and codes[row]))
    return truth, found


def _kinds(judged: Judged, figures: Figures) -> str:
    """The pictures of each kind of error, the worst first."""
    names, cards = judged.evaluation.truth.classes, []
    for kind, title in KINDS.items():
        rows = np.flatnonzero(judged.chosen & (judged.kinds == kind))
        rows, made = rows[np.argsort(-judged.boxes[rows, 5], kind="stable")].tolist(), []
        missed = sorted(judged.missed, key=lambda one: -one["area"]) if kind == "Miss" else []
        for one in missed[:OF_KIND]:
            sides = _drawn(judged, one["image_id"], one["id"])
            text = f"{names[one['category_id'] - 1]}, annotation {one['file_id']}"
            made.append(figures.crops(one["image_id"], [one["bbox"]], sides, text))
        for row in rows[:OF_KIND]:
            image, box = int(judged.boxes[row, 0]), judged.boxes[row, 1:5]
            text = f"{names[judged.labels[row]]} {judged.boxes[row, 5]:.2f}"
            made.append(figures.crops(image, [box], _drawn(judged, image, None, [row]), text))
        cards.append(html.card(f"{title}: {len(missed) + len(rows)}", made))
    return f'<h2>Where it fails</h2><p class="faint">Left the truth, right what was found.</p>{"".join(cards)}'


def _labels(found: Sequence[Suspect], judged: Judged, figures: Figures) -> str:
    """The pictures of labels that look wrong."""
    made = []
    for i, one in enumerate(found[:OF_SUSPECTS], 1):
        sides = _drawn(judged, one.image, one.object and one.object["id"])
        drawn = Drawn(one.boxes[0], "", FOUND)
        made.append(figures.crops(one.image, one.boxes, (sides[0], [*sides[1], drawn]), f"{i}. {one.reason}"))
    text = f"{len(found)} suspects, the most certain first; suspects.json has all of them, with ids and boxes."
    card = html.card("Left the truth, right what was found", made)
    return f'<h2>Labels that look wrong</h2><p class="faint">{text}</p>{card}'


def _notes(figures: Figures) -> str:
    notes = []
    if figures.gone:
        notes.append(f"Images that cannot be read, {len(figures.gone)} of those to show: {join_some(figures.gone)}.")
    if figures.left_out["figures"]:
        notes.append(f"Figures left out, for the page would be too large: {figures.left_out['figures']}.")
    return "".join(f"<p>{escape(note)}</p>" for note in notes)
