"""The page of `vitdense test --report`: sections of numbers and of pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.evaluator import BaseMetric

from vitdense import __version__
from vitdense.extensions.errors import page
from vitdense.extensions.errors.maps import METRICS, Maps
from vitdense.extensions.errors.objects import Judged
from vitdense.extensions.errors.pictures import FOUND, Drawn, Figures
from vitdense.extensions.errors.suspects import OF_SUSPECTS, as_results, suspects
from vitdense.extensions.page import write_page
from vitdense.mm.errors import ConfigError
from vitdense.runtime import SCORE
from vitdense.seams import ask

if TYPE_CHECKING:
    from mmengine.runner import Runner

NAMES = {"bbox": "Boxes", "segm": "Masks", "obb": "Oriented boxes", "keypoints": "Keypoints", "pixels": "Pixels"}


@dataclass
class Tested:
    """What is known of a model after its test: its name, metrics, and what is wrong, by kind of results."""

    name: str
    metrics: Mapping[str, float]
    parts: Sequence[Judged | Maps]


def page_of(target: Path) -> Path:
    """The file of the report: a table, or the page in a folder."""
    return target if target.suffix in page.TABLES else target / "report.html"


def watched(runner: "Runner") -> list[BaseMetric]:
    """The metrics of a test that keep what its report needs, from now on."""
    metrics = runner.test_evaluator.metrics
    coco = [one for one in metrics if hasattr(one, "evaluations")]
    for metric in coco:
        metric.evaluations = []
        if metric.engine != "hotcoco":
            raise ConfigError(f"--report: got the engine {metric.engine} of a COCO metric, expected hotcoco")
    of_maps = [one for one in metrics if any(base.__name__ in METRICS for base in type(one).__mro__)]
    if not coco and not of_maps:
        names = ", ".join(type(one).__name__ for one in metrics)
        raise ConfigError(f"--report: got the metrics {names}, expected {', '.join(METRICS)} or vitdense's CocoMetric")
    of_queries = hasattr(getattr(runner.model, "decode_head", None), "num_queries")
    made = [Maps(one, of_queries) for one in of_maps[:1]]
    metrics += made
    return made or coco


def tested_of(
    runner: "Runner", watched: Sequence[BaseMetric], metrics: Mapping[str, float], tiles: int | None, overlap: float
) -> Tested:
    """What the metrics of a test have kept; `tiles` and `overlap` are conditions of its operating point."""
    checkpoint = str(runner.cfg.load_from)
    if isinstance(watched[0], Maps):
        return Tested(checkpoint, metrics, watched)
    found = [(one, of.ap_limit) for of in watched for one in of.evaluations if one.kind in NAMES]
    if not found:
        raise ConfigError("--report: the detector found nothing on the test data, so there is nothing to show")
    classes = list(runner.test_evaluator.dataset_meta["classes"])
    point = ask("load", "read_point", checkpoint, runner.cfg, classes, tiles, overlap)
    dataset = runner.test_dataloader.dataset
    paths = {number: dataset.get_data_info(i)["img_path"] for i, number in enumerate(found[0][0].images)}
    score = point.thresholds if point else SCORE
    return Tested(checkpoint, metrics, [Judged(one, paths, score, limit) for one, limit in found])


def write_report(target: Path, tested: Tested) -> Path:
    """Write the page and its files, or the table alone; the path of the page or the table."""
    values, path = {part.kind: part.numbers() for part in tested.parts}, page_of(target)
    if target.suffix in page.TABLES:
        page.write_table(path, [{"of": name, **row} for name, of in values.items() for row in of["table"]])
        return path
    target.mkdir(parents=True, exist_ok=True)
    metrics = {name: None if math.isnan(value) else value for name, value in tested.metrics.items()}  # no NaN in JSON
    page.write_json(target / "metrics.json", {"model": tested.name, "metrics": metrics, **values})
    shown = tested.parts[-1]
    figures = Figures(shown.paths, shown.called)
    if isinstance(shown, Maps):
        verdict = ", ".join(f"<b>{name} {value:.2f}</b>" for name, value in tested.metrics.items())
    else:
        verdict = "; ".join(f"<b>{name} {number}</b>" for name, number in shown.counts().items()) + f" {shown.at()}"
    labels = _labels(target, tested.parts[0], shown, figures)  # first, while there is room
    sections = [page.numbers(NAMES[kind], of) for kind, of in values.items()]
    body = "".join([shown.pictures(figures), labels, figures.notes(), *sections])
    write_page(path, f"Test of {Path(tested.name).stem}", f"{tested.name}, vitdense {__version__}", verdict, body)
    return path


def _labels(target: Path, first: Judged | Maps, shown: Judged | Maps, figures: Figures) -> str:
    """The section of labels that look wrong, by their boxes or pixels, and their file."""
    if isinstance(first, Maps):
        rows, made = first.suspects(figures)
    else:
        found, made = suspects(first), []
        rows = as_results(found, first)
        for i, one in enumerate(found[:OF_SUSPECTS], 1):
            about, more = one.object and one.object["id"], [Drawn(one.boxes[0], "", FOUND)]
            made.append(shown.figure(figures, one.image, one.boxes, f"{i}. {one.reason}", about=about, more=more))
    page.write_json(target / "suspects.json", rows)
    if not rows:
        return ""
    note = f"{len(rows)} suspects, the most certain first; suspects.json has all of them, with boxes."
    return page.section("Labels that look wrong", note, page.card("Left the truth, right what was found.", made))
