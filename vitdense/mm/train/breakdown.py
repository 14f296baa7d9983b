"""What the metrics of a test are made of: AP by class and size, IoU by class, confusion matrix."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

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
        ConfigError: No metric of the test is a COCO metric of vitdense, or mmseg's IoU.
    """
    runner.test_loop  # noqa: B018  builds the evaluator
    evaluator = runner.test_evaluator
    # By a method that only this metric has: mmseg may not be installed.
    areas = next((metric for metric in evaluator.metrics if hasattr(metric, "total_area_to_metrics")), None)
    coco = [metric for metric in evaluator.metrics if hasattr(metric, "evaluations")]
    if areas is not None:
        confusion = ConfusionMatrix(areas.ignore_index, collect_device=areas.collect_device)
        confusion.dataset_meta = evaluator.dataset_meta
        evaluator.metrics.append(confusion)
    elif not coco:
        names = ", ".join(type(metric).__name__ for metric in evaluator.metrics)
        raise ConfigError(f"report: got the metrics {names} of test_evaluator, expected a COCO metric or IoUMetric")
    for metric in coco:
        metric.evaluations = []
    metrics = runner.test()
    if not is_main_process():
        return metrics
    tables = {}
    if areas is not None:
        classes = evaluator.dataset_meta["classes"]
        tables["per_class"] = iou_table(areas, confusion.matrix, classes)
        write_confusion(folder, confusion.matrix, classes)
    for evaluation in (evaluation for metric in coco for evaluation in metric.evaluations):
        from vitdense.mm.train.metrics import ap_table  # imports mmdet

        name = f"ap_{evaluation.params.iouType}"
        number = sum(key.startswith(name) for key in tables) + 1
        tables[name if number == 1 else f"{name}_{number}"] = ap_table(evaluation)
    for name, rows in tables.items():
        write_table(folder / name, rows, digits=2 if name == "per_class" else 3)
    print_log(f"report: {folder if tables else 'none, for no boxes were evaluated by class'}", logger="current")
    return metrics


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


def write_table(path: Path, rows: Sequence[dict], digits: int) -> None:
    """Write rows with the same keys to ``path.csv``, and rounded to ``path.md``."""
    _write_csv(path.with_suffix(".csv"), [rows[0], *(row.values() for row in rows)])
    cells = [[f"{x:.{digits}f}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(rows[0], *cells)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    with atomic_write(path.with_suffix(".md")) as scratch, scratch.open("w", encoding="utf-8") as file:
        for first, *others in ([*rows[0]], rule, *cells):
            aligned = [first.ljust(widths[0]), *(x.rjust(width) for x, width in zip(others, widths[1:]))]
            file.write(f"| {' | '.join(aligned)} |\n")


def _write_csv(path: Path, rows: Iterable[Iterable]) -> None:
    with atomic_write(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_confusion(folder: Path, matrix: np.ndarray, classes: Sequence[str]) -> None:
    """Write ``confusion.csv``, pixels, and ``confusion.png``, the shares of the pixels of each true class.

    Up to `NUMBERED` classes, the shares of at least 0.5 % are also written into their cells.

    Args:
        folder: For both files.
        matrix: [classes, classes] pixels; rows are true classes.
        classes: Names.
    """
    rows = ([name, *row] for name, row in zip(classes, matrix.tolist()))
    _write_csv(folder / "confusion.csv", [["true class \\ predicted", *classes], *rows])
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
    ax.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(picture, shrink=min(0.6, 6 / size), label="share of the pixels of the true class (%)")
    for y, x in zip(*np.nonzero(share >= 0.5) if numbered else ((), ())):
        colour = "white" if share[y, x] > 40 else "black"
        ax.text(x, y, f"{share[y, x]:.0f}", color=colour, fontsize=text, ha="center", va="center")
    with atomic_write(folder / "confusion.png") as scratch:
        figure.savefig(scratch)
