"""What the metrics of a test are made of: AP by class and size, IoU by class, confusion matrix."""

import copy
import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.runner import Runner

from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError

NUMBERED = 30  # classes, up to which a confusion matrix has its values in its cells


def report_test(runner: Runner, folder: Path) -> dict[str, float]:
    """Test a model, and write what its metrics are made of.

    Detection: ``ap_bbox`` and ``ap_segm``, AP by class and size; of a second COCO metric ``ap_bbox_2``. Segmentation:
    ``per_class``, and the confusion matrix as ``confusion.png`` and ``confusion.csv``, pixels of a true class (row)
    and a predicted one (column). Tables are CSV and Markdown; their numbers are those of the metric, before it
    rounds them.

    Args:
        runner: A runner with a test loop.
        folder: For the files.

    Returns:
        The metrics.

    Raises:
        ConfigError: No metric of the test is mmdet's COCO metric for boxes or masks, or mmseg's IoU.
    """
    runner.test_loop  # noqa: B018  builds the evaluator
    evaluator = runner.test_evaluator
    # By a method that only this metric has: one of mmdet and mmseg may not be installed.
    areas = next((metric for metric in evaluator.metrics if hasattr(metric, "total_area_to_metrics")), None)
    if areas is not None:
        confusion = ConfusionMatrix(areas.ignore_index, collect_device=areas.collect_device)
        confusion.dataset_meta = evaluator.dataset_meta
        evaluator.metrics.append(confusion)
    elif not any(hasattr(metric, "gt_to_coco_json") for metric in evaluator.metrics):
        names = ", ".join(type(metric).__name__ for metric in evaluator.metrics)
        raise ConfigError(f"report: got the metrics {names} of test_evaluator, expected a COCO metric or IoUMetric")
    with _kept_evaluations() as evaluations:
        metrics = runner.test()
    if not is_main_process():
        return metrics
    if areas is not None:
        classes = evaluator.dataset_meta["classes"]
        write_table(folder / "per_class", iou_table(areas, confusion.matrix, classes), digits=2)
        write_confusion(folder, confusion.matrix, classes)
    counts: Counter[str] = Counter()
    for evaluation in evaluations:
        kind = evaluation.params.iouType
        counts[kind] += 1
        number = f"_{counts[kind]}" if counts[kind] > 1 else ""  # of several COCO metrics
        write_table(folder / f"ap_{kind}{number}", ap_table(evaluation), digits=3)
    empty = areas is None and not evaluations
    print_log(f"report: {'none, for no boxes were evaluated by class' if empty else folder}", logger="current")
    return metrics


@contextmanager
def _kept_evaluations() -> Iterator[list]:
    """The COCO evaluations of boxes and masks by class that are made inside; mmdet drops them after their averages."""
    kinds, kept = [], []
    if find_spec("pycocotools"):
        from pycocotools.cocoeval import COCOeval

        kinds.append(COCOeval)
    if find_spec("faster_coco_eval"):
        from faster_coco_eval import COCOeval_faster

        kinds.append(COCOeval_faster)

    def keep(accumulate: Callable) -> Callable:
        def wrapped(self: Any, *args: object) -> None:
            accumulate(self, *args)
            if self.params.useCats:
                kept.append(self)

        return wrapped

    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(mock.patch.object(kind, "accumulate", keep(kind.accumulate)))
        yield kept


def ap_table(evaluation: Any) -> list[dict]:
    """AP, 0 to 1, of each class, at IoU thresholds and by size; then their mean.

    NaN where there is no object. The column ``objects`` counts those of the annotation file, without crowds.

    Args:
        evaluation: An accumulated `COCOeval` of pycocotools or faster-coco-eval.
    """
    from vitdense.mm.train.metrics import BOX_ITEMS  # imports mmdet

    whole, ids = evaluation.eval, evaluation.params.catIds
    selections = [[k] for k in range(len(ids))] + [range(len(ids))]
    names = [*(category["name"] for category in evaluation.cocoGt.loadCats(ids)), "mean"]
    annotations = evaluation.cocoGt.loadAnns(evaluation.cocoGt.getAnnIds(imgIds=evaluation.params.imgIds))
    objects = [annotation["category_id"] for annotation in annotations if not annotation.get("iscrowd")]
    rows = []
    for name, chosen in zip(names, selections):
        part = copy.copy(evaluation)
        part.eval = {**whole, "precision": whole["precision"][:, :, chosen]}  # [thresholds, recalls, classes, ...]
        with redirect_stdout(io.StringIO()):
            part.summarize()
        values = {item: value if value > -1 else np.nan for item, value in zip(BOX_ITEMS, part.stats)}
        rows.append({"class": name, **values, "objects": sum(objects.count(ids[k]) for k in chosen)})
    return rows


class ConfusionMatrix(BaseMetric):
    """Pixels by true and predicted class, as a metric of mmengine without values.

    Args:
        ignore_index: Label of pixels that do not count.

    Attributes:
        matrix: After the evaluation, [classes, classes] int64; rows are true classes.
    """

    default_prefix = "confusion"  # mmengine warns without one

    def __init__(self, ignore_index: int = 255, collect_device: str = "cpu") -> None:
        super().__init__(collect_device)
        self.ignore_index = ignore_index

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Count the pixels of images: their pairs of classes, and how often each occurs."""
        num = len(self.dataset_meta["classes"])
        for sample in data_samples:
            found = sample["pred_sem_seg"]["data"].squeeze().long()  # [H, W]
            labels = sample["gt_sem_seg"]["data"].squeeze().to(found)
            counted = labels != self.ignore_index
            self.results.append(torch.unique(num * labels[counted] + found[counted], return_counts=True))

    def compute_metrics(self, results: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict:
        """Sum the counts of all images."""
        num = len(self.dataset_meta["classes"])
        matrix = torch.zeros(num**2, dtype=torch.long)
        for pairs, counts in results:
            matrix[pairs] += counts
        self.matrix = matrix.view(num, num).numpy()
        return {}


def iou_table(metric: BaseMetric, matrix: np.ndarray, classes: Sequence[str]) -> list[dict]:
    """What mmseg's `IoUMetric` computes for each class from a confusion matrix, in per cent; then their mean.

    NaN where a class is neither in the images nor predicted. The column ``pixels`` counts those of the labels.
    """
    areas = torch.from_numpy(matrix).double()
    same, labels, found = areas.diagonal(), areas.sum(1), areas.sum(0)
    values = metric.total_area_to_metrics(
        same, labels + found - same, found, labels, metric.metrics, metric.nan_to_num, metric.beta
    )
    values = {name: 100 * value for name, value in values.items() if name != "aAcc"}
    of_class = {name: [*value, np.nanmean(value)] for name, value in values.items()}
    columns = {"class": [*classes, "mean"], **of_class, "pixels": [*matrix.sum(1), matrix.sum()]}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def write_table(path: Path, rows: Sequence[Mapping], digits: int) -> None:
    """Write rows with the same keys to ``path.csv``, and rounded to ``path.md``."""
    with atomic_write(path.with_suffix(".csv")) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    cells = [list(rows[0])]
    for row in rows:
        cells.append([f"{x:.{digits}f}" if isinstance(x, float) else str(x) for x in row.values()])
    widths = [max(map(len, column)) for column in zip(*cells)]
    cells.insert(1, ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])])
    lines = [
        f"| {' | '.join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths)))} |"
        for row in cells
    ]
    with atomic_write(path.with_suffix(".md")) as scratch:
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_confusion(folder: Path, matrix: np.ndarray, classes: Sequence[str]) -> None:
    """Write ``confusion.csv``, pixels, and ``confusion.png``, the shares of the pixels of each true class.

    Up to `NUMBERED` classes, the shares of at least 0.5 % are also written into their cells.

    Args:
        folder: For both files.
        matrix: [classes, classes] pixels; rows are true classes.
        classes: Names.
    """
    with atomic_write(folder / "confusion.csv") as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true class \\ predicted", *classes])
        writer.writerows([name, *row] for name, row in zip(classes, matrix.tolist()))
    num, numbered = len(classes), len(classes) <= NUMBERED
    with np.errstate(invalid="ignore"):
        share = 100 * matrix / matrix.sum(1, keepdims=True)  # NaN for classes without a pixel
    # In inches: a line of text of the size below fits a cell.
    text, size = (9, 3 + 0.42 * num) if numbered else (7, 4 + 0.17 * num)
    figure = Figure(figsize=(size + 0.5, size), dpi=120, layout="constrained")
    ax = figure.subplots()
    ax.set_facecolor("lightgrey")  # of NaN
    # Colours by the square root: small confusions become visible.
    picture = ax.imshow(share, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100))
    ax.set_xticks(range(num), classes, rotation=90, fontsize=text)
    ax.set_yticks(range(num), classes, fontsize=text)
    ax.set_xticks(np.arange(num + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(num + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="lightgrey", linewidth=0.5)
    ax.tick_params(which="minor", length=0)
    if not numbered:
        ax.tick_params(top=True, labeltop=True, right=True, labelright=True)
    ax.set_xlabel("predicted class", fontsize=text + 4)
    ax.set_ylabel("true class", fontsize=text + 4)
    figure.colorbar(picture, shrink=min(0.6, 6 / size), label="share of the pixels of the true class (%)")
    for y, x in zip(*np.nonzero(share >= 0.5) if numbered else ((), ())):
        colour = "white" if share[y, x] > 40 else "black"
        ax.text(x, y, f"{share[y, x]:.0f}", color=colour, fontsize=text, ha="center", va="center")
    with atomic_write(folder / "confusion.png") as scratch:
        figure.savefig(scratch)
