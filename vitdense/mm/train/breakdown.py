"""What the metrics of a test are made of: AP by class and size, IoU by class, confusion matrix."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.runner import Runner

from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError


def report_test(runner: Runner, folder: Path) -> dict[str, float]:
    """Test a model, and write tables of what its metrics are made of into a folder; the metrics.

    Detection: ``ap_bbox`` and ``ap_segm``, AP by class and size. Segmentation: ``per_class``, and ``confusion``, pixels
    of a true class (row) and a predicted one (column). See `write_table`.

    Raises:
        ConfigError: No metric of the test is a COCO metric of vitdense, or mmseg's IoU.
    """
    evaluator, tables = runner.test_loop.evaluator, {}
    coco = [metric for metric in evaluator.metrics if hasattr(metric, "evaluations")]
    confusions = [ConfusionMatrix(metric) for metric in evaluator.metrics if hasattr(metric, "intersect_and_union")]
    if not (coco or confusions):
        names = ", ".join(type(metric).__name__ for metric in evaluator.metrics)
        raise ConfigError(f"report: got the metrics {names} of test_evaluator, expected a COCO metric or IoUMetric")
    for metric in coco:
        metric.evaluations = []
    evaluator.metrics += confusions
    metrics = runner.test()
    if not is_main_process():
        return metrics
    for confusion in confusions:
        tables |= {"per_class": confusion.per_class(), "confusion": confusion.rows()}
    for ap_limit, evaluation in ((metric.ap_limit, one) for metric in coco for one in metric.evaluations):
        from vitdense.mm.train.metrics import ap_table  # imports mmdet

        name = f"ap_{evaluation.kind}"
        tables[f"{name}_2" if name in tables else name] = ap_table(evaluation, ap_limit)
    for name, rows in tables.items():
        write_table(folder / name, rows)
    print_log(f"report: {folder if tables else 'none, for no boxes were evaluated by class'}", logger="current")
    return metrics


class ConfusionMatrix(BaseMetric):
    """Pixels by true and predicted class, beside mmseg's `IoUMetric`; `matrix` [classes, classes] has true rows."""

    default_prefix = "confusion"  # mmengine warns without one

    def __init__(self, metric: BaseMetric) -> None:
        super().__init__(metric.collect_device)
        self.ignore_index, self.dataset_meta = metric.ignore_index, metric.dataset_meta

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Count the pixels of images: their pairs of classes, and how often each occurs."""
        for sample in data_samples:
            found = sample["pred_sem_seg"]["data"].squeeze().long()  # [H, W]
            labels = sample["gt_sem_seg"]["data"].squeeze().to(found)
            pairs = len(self.dataset_meta["classes"]) * labels + found
            self.results.append(torch.unique(pairs[labels != self.ignore_index], return_counts=True))

    def compute_metrics(self, results: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict:
        """Sum the counts of all images."""
        num = len(self.dataset_meta["classes"])
        matrix = torch.zeros(num**2, dtype=torch.long)
        for pairs, counts in results:
            matrix[pairs] += counts
        self.matrix = matrix.view(num, num).numpy()
        return {}

    def rows(self) -> list[dict]:
        """The matrix as a table."""
        classes = self.dataset_meta["classes"]
        return [{"true class": name, **dict(zip(classes, row))} for name, row in zip(classes, self.matrix.tolist())]

    def per_class(self) -> list[dict]:
        """What mmseg computes of each class, in per cent, then their mean; NaN where a class has no pixel of it."""
        matrix = self.matrix.astype(float)
        same, labels, found = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        parts = {"IoU": labels + found - same, "Acc": labels, "Dice": (labels + found) / 2, "Precision": found}
        with np.errstate(invalid="ignore"):
            shares = {name: 100 * same / part for name, part in parts.items()}
        columns = {"class": [*self.dataset_meta["classes"], "mean"]}
        columns |= {name: [*share, np.nanmean(share)] for name, share in shares.items()}
        columns["pixels"] = [*self.matrix.sum(1), self.matrix.sum()]
        return [dict(zip(columns, row)) for row in zip(*columns.values())]


def write_table(path: Path, rows: Sequence[dict]) -> None:
    """Write rows with the same keys to ``path.csv`` with all digits, and to ``path.md`` with four."""
    table = [[*rows[0]], *([*row.values()] for row in rows)]
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in table]
    cells.insert(1, ["---"] * len(rows[0]))
    with atomic_write(path.with_suffix(".csv")) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
    with atomic_write(path.with_suffix(".md")) as scratch:
        scratch.write_text("".join(f"| {' | '.join(row)} |\n" for row in cells), encoding="utf-8")
