import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
from mmengine.evaluator import Evaluator
from mmseg.evaluation import IoUMetric
from pycocotools.cocoeval import COCOeval
from test_metrics import CLASSES, ground_truth, seen  # noqa: F401

from vitdense.mm.errors import ConfigError
from vitdense.mm.train.breakdown import report_test, write_table
from vitdense.mm.train.metrics import BOX_ITEMS, CocoMetric, FasterCocoMetric, ap_table

# Detection


@pytest.fixture(params=[FasterCocoMetric, CocoMetric])
def evaluated(request, ground_truth):  # noqa: F811
    """Metrics of imperfect predictions, and the evaluations of boxes and masks behind them."""
    metric = seen(request.param, ground_truth, noise=4)
    metric.evaluations = []
    return metric.evaluate(6), metric.evaluations


def test_mean_of_the_table_is_the_reported_ap(evaluated):
    metrics, kept = evaluated
    assert [evaluation.kind for evaluation in kept] == ["bbox", "segm"]
    for evaluation in kept:
        *rows, mean = ap_table(evaluation)
        assert [row["class"] for row in (*rows, mean)] == [*CLASSES, "mean"]
        for item in BOX_ITEMS:
            column = [row[item] for row in rows]
            reported = metrics[f"coco/{evaluation.kind}_{item}"]
            if item in ("mAP_m", "mAP_l"):  # all objects are small
                assert np.isnan([*column, mean[item]]).all()
                assert reported == -1
            else:
                assert np.mean(column) == pytest.approx(mean[item], abs=1e-9)
                assert mean[item] == pytest.approx(reported, abs=5.01e-4)
        assert rows[0]["mAP"] != rows[1]["mAP"]


def test_each_class_has_the_ap_of_an_evaluation_of_its_own(evaluated, ground_truth):  # noqa: F811
    """By pycocotools, on this class alone; its objects are those of the annotations without crowds."""
    _, (boxes, _) = evaluated
    *rows, mean = ap_table(boxes)
    for row, category in zip(rows, (1, 2)):
        alone = COCOeval(boxes.truth.indexed(), boxes.truth.detections(boxes.found.rows()), "bbox")
        alone.params.catIds = [category]
        alone.evaluate()
        alone.accumulate()
        alone.summarize()
        for item, value in zip(BOX_ITEMS[:4], alone.stats):
            assert row[item] == pytest.approx(value, abs=1e-9), item
        assert row["objects"] == sum(a["category_id"] == category and not a["iscrowd"] for a in ground_truth[1])
    assert mean["objects"] == sum(row["objects"] for row in rows)


def test_every_coco_metric_has_a_table_for_boxes_and_for_masks(ground_truth, tmp_path):  # noqa: F811
    metrics = [
        seen(FasterCocoMetric, ground_truth, noise=1, prefix="good"),
        seen(CocoMetric, ground_truth, noise=6, metric=["bbox"], prefix="bad"),
        seen(CocoMetric, ground_truth, noise=6, metric=["proposal"], prefix="proposals"),  # has none
    ]
    evaluator = Evaluator(metrics)
    evaluator.dataset_meta = {"classes": CLASSES}
    runner = SimpleNamespace(test_loop=SimpleNamespace(evaluator=evaluator), test=lambda: evaluator.evaluate(6))
    reported = report_test(runner, tmp_path / "report")
    tables = {"ap_bbox": "good/bbox", "ap_segm": "good/segm", "ap_bbox_2": "bad/bbox"}
    names = {f"{name}.{end}" for name in tables for end in ("csv", "md")}
    assert {file.name for file in (tmp_path / "report").iterdir()} == names
    assert reported["good/bbox_mAP"] != reported["bad/bbox_mAP"]
    for name, prefix in tables.items():
        with (tmp_path / f"report/{name}.csv").open() as file:
            *_, mean = csv.DictReader(file)
        assert float(mean["mAP"]) == pytest.approx(reported[f"{prefix}_mAP"], abs=5.01e-4)


# Segmentation

NAMES = ("sky", "road", "tree", "car")


@pytest.fixture
def samples():
    """Three images with labels and predictions; no pixel is a car, and some do not count."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for size in ((20, 31), (7, 8), (40, 5)):
        labels = torch.randint(0, 3, (1, *size), generator=generator)
        right = torch.rand((1, *size), generator=generator) < 0.6
        predicted = torch.where(right, labels, torch.randint(0, 3, (1, *size), generator=generator))
        labels[torch.rand((1, *size), generator=generator) < 0.1] = 255
        found.append({"gt_sem_seg": {"data": labels}, "pred_sem_seg": {"data": predicted}})
    return found


def read(path):
    """The rows of a table."""
    with path.open(encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_report_of_a_segmentor_has_the_numbers_of_its_metric(samples, tmp_path):
    """IoU, accuracy and Dice by class, and a confusion matrix of pixels, which has true classes as rows."""
    evaluator = Evaluator([IoUMetric(iou_metrics=["mIoU", "mDice"])])
    evaluator.dataset_meta = {"classes": NAMES}

    def test():
        for sample in samples:
            evaluator.process([sample])
        return evaluator.evaluate(3)

    reported = report_test(SimpleNamespace(test_loop=SimpleNamespace(evaluator=evaluator), test=test), tmp_path)
    want = np.zeros((4, 4), int)
    for sample in samples:
        for label, found in zip(*(sample[key]["data"].flatten().tolist() for key in ("gt_sem_seg", "pred_sem_seg"))):
            if label != 255:
                want[label, found] += 1
    assert want[0, 1] != want[1, 0]  # rows and columns differ
    rows = read(tmp_path / "confusion.csv")
    assert [[int(row[name]) for name in NAMES] for row in rows] == want.tolist()
    assert [row["true class"] for row in rows] == [*NAMES]
    *rows, mean = read(tmp_path / "per_class.csv")
    assert [row["class"] for row in rows] == [*NAMES]
    same = np.diag(want)[:3]
    iou = same / (want.sum(0)[:3] + want.sum(1)[:3] - same)
    np.testing.assert_allclose([float(row["IoU"]) for row in rows[:3]], 100 * iou)
    np.testing.assert_allclose([float(row["Precision"]) for row in rows[:3]], 100 * same / want.sum(0)[:3])
    assert rows[3]["IoU"] == "nan"
    for name in ("IoU", "Acc", "Dice"):
        assert float(mean[name]) == pytest.approx(reported[f"m{name}"], abs=0.006)
    assert [int(row["pixels"]) for row in (*rows, mean)] == [*want.sum(1), want.sum()]


# Files


def test_table_is_written_with_all_digits_and_rounded(tmp_path):
    rows = [{"class": "a, b", "AP": 0.123456, "objects": 3}, {"class": "c", "AP": float("nan"), "objects": 12}]
    write_table(tmp_path / "new/ap", rows)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["ap.csv", "ap.md"]
    with (tmp_path / "new/ap.csv").open() as file:
        assert [*csv.reader(file)] == [["class", "AP", "objects"], ["a, b", "0.123456", "3"], ["c", "nan", "12"]]
    assert (tmp_path / "new/ap.md").read_text().splitlines() == [
        "| class | AP | objects |",
        "| --- | --- | --- |",
        "| a, b | 0.1235 | 3 |",
        "| c | nan | 12 |",
    ]


def test_test_without_a_known_metric_is_refused(tmp_path):
    evaluator = SimpleNamespace(metrics=[SimpleNamespace()])
    with pytest.raises(ConfigError, match=r"report.*SimpleNamespace"):
        report_test(SimpleNamespace(test_loop=SimpleNamespace(evaluator=evaluator)), tmp_path)
