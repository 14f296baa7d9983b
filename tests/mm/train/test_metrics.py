import json
import multiprocessing
import os

import numpy as np
import pytest
import torch
from mmdet.evaluation import metrics as mmdet_metrics
from pycocotools import mask as rle

from vitdense.mm.data.coco import ImageId, Source
from vitdense.mm.errors import ConfigError
from vitdense.mm.train import coco_engines
from vitdense.mm.train.coco_engines import ENGINES
from vitdense.mm.train.metrics import CocoMetric, FasterCocoMetric

SIZE = 64
CLASSES = ("a", "b")


def box_mask(x, y, w, h):
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[y : y + h, x : x + w] = 1
    return mask


@pytest.fixture
def ground_truth(tmp_path):
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for i in range(6):
        images.append({"id": i, "file_name": f"{i}.jpg", "height": SIZE, "width": SIZE})
        for n in range(2 + i % 3):
            x, y = (int(v) for v in rng.integers(0, 40, 2))
            w, h = (int(v) for v in rng.integers(8, 24, 2))
            coded = rle.encode(np.asfortranarray(box_mask(x, y, w, h)))
            coded["counts"] = coded["counts"].decode()
            one = {"id": len(annotations) + 1, "image_id": i, "category_id": int(rng.integers(1, 3))}
            one |= {"bbox": [x, y, w, h], "area": w * h, "iscrowd": int(i == 5 and n == 0), "segmentation": coded}
            annotations.append(one)
    path = tmp_path / "gt.json"
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path, annotations


def predictions(annotations, image_ids, noise):
    rng = np.random.default_rng(1)
    for i in image_ids:
        boxes, labels, masks = [], [], []
        for a in [a for a in annotations if a["image_id"] == i] if noise is not None else []:
            x, y, w, h = a["bbox"]
            x, y = (int(np.clip(v + rng.integers(-noise, noise + 1), 0, SIZE - 8)) for v in (x, y))
            boxes.append([x, y, x + w, y + h])
            labels.append(a["category_id"] - 1)
            masks.append(box_mask(x, y, w, h))
        if noise:
            boxes, labels, masks = [*boxes, [1, 1, 30, 30]], [*labels, 0], [*masks, box_mask(1, 1, 29, 29)]
        found = {
            "bboxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "scores": torch.tensor(rng.random(len(boxes)), dtype=torch.float32),
            "labels": torch.tensor(labels, dtype=torch.long),
            "masks": torch.tensor(np.array(masks), dtype=torch.bool).reshape(-1, SIZE, SIZE),
        }
        yield {"img_id": i, "ori_shape": (SIZE, SIZE), "pred_instances": found}


def seen(kind, ground_truth, noise, image_ids=range(6), metric=("bbox", "segm"), **options):
    path, annotations = ground_truth
    metric = kind(ann_file=str(path), metric=list(metric), **options)
    metric.dataset_meta = {"classes": CLASSES}
    for sample in predictions(annotations, image_ids, noise):
        metric.process({}, [sample])
    return metric


def test_ap_counts_a_hundred_objects_of_an_image_or_as_many_as_are_asked_for(tmp_path):
    """As mmdet's two metrics; 150 objects in one image, all found."""
    boxes = [[10 * (i % 15), 10 * (i // 15), 8, 8] for i in range(150)]
    own = {"image_id": 0, "category_id": 1, "area": 64, "iscrowd": 0}
    annotations = [{"id": i, "bbox": box, **own} for i, box in enumerate(boxes)]
    content = {"images": [{"id": 0, "file_name": "a.jpg", "height": 200, "width": 200}], "annotations": annotations}
    (tmp_path / "gt.json").write_text(json.dumps({**content, "categories": [{"id": 1, "name": "a"}]}))
    corners = torch.tensor(boxes, dtype=torch.float32)
    corners[:, 2:] += corners[:, :2]
    found = {"bboxes": corners, "scores": torch.linspace(1, 0.5, 150), "labels": torch.zeros(150, dtype=torch.long)}
    for kind, low, high in ((CocoMetric, 0.6, 0.7), (FasterCocoMetric, 1.0, 1.0)):
        metric = kind(ann_file=str(tmp_path / "gt.json"))
        metric.dataset_meta = {"classes": ("a",)}
        metric.process({}, [{"img_id": 0, "ori_shape": (200, 200), "pred_instances": found}])
        values = metric.evaluate(1)
        assert low <= values["coco/bbox_mAP"] <= high
        assert values["coco/bbox_mAP_50"] == 1.0


def test_no_predictions_give_zero_for_all_keys(ground_truth, capsys):
    CocoMetric(ann_file=str(ground_truth[0]))
    assert capsys.readouterr().out == ""  # pycocotools prints its steps
    nothing = seen(CocoMetric, ground_truth, noise=None).evaluate(6)
    assert nothing.keys() == seen(CocoMetric, ground_truth, noise=4).evaluate(6).keys()
    assert set(nothing.values()) == {0.0}


@pytest.mark.parametrize("noise", [4, None])
def test_predictions_are_written_in_coco_format_also_if_there_are_none(noise, ground_truth, tmp_path):
    seen(CocoMetric, ground_truth, noise, format_only=True, outfile_prefix=str(tmp_path / "out")).evaluate(6)
    for name in ("bbox", "segm"):
        assert bool(json.loads((tmp_path / f"out.{name}.json").read_text())) == bool(noise)


def test_a_subset_is_evaluated_on_its_images(ground_truth):
    """Perfect predictions on two of six images have AP 1, not 1/3."""
    assert seen(CocoMetric, ground_truth, 0, (1, 3)).evaluate(2)["coco/segm_mAP"] == 1.0


def test_the_first_engine_that_is_installed_evaluates_and_another_is_refused(ground_truth, monkeypatch):
    assert CocoMetric(ann_file=str(ground_truth[0])).engine == "hotcoco"
    monkeypatch.setattr(coco_engines, "find_spec", lambda name: name == "pycocotools" or None)
    assert CocoMetric(ann_file=str(ground_truth[0])).engine == "pycocotools"
    for name in ("hotcoco", "fast"):
        with pytest.raises(ConfigError, match=rf"got '{name}', expected one that is installed: \['pycocotools'\]"):
            CocoMetric(ann_file=str(ground_truth[0]), engine=name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_evaluates(ground_truth):
    """hotcoco's threads are not in it."""
    expected = seen(CocoMetric, ground_truth, noise=4).evaluate(6)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    metric = seen(CocoMetric, ground_truth, noise=4)
    process = context.Process(target=lambda: queue.put(metric.evaluate(6)), daemon=True)
    process.start()
    try:
        assert queue.get(timeout=120) == pytest.approx(expected, abs=1e-9)
    finally:
        process.kill()
        process.join()


def test_masks_of_a_detector_of_boxes_are_refused(ground_truth):
    metric = seen(CocoMetric, ground_truth, noise=1)
    for _, found in metric.results:
        del found["masks"]
    with pytest.raises(ConfigError, match="without masks"):
        metric.evaluate(6)


NAMED = {"classwise": True, "metric_items": ["mAP_75", "AR@100"], "proposal_nums": (1, 10, 100)}
PROPOSALS = {"metric": ("proposal", "bbox"), "proposal_nums": (2, 3, 100)}


@pytest.mark.parametrize(("options", "number"), [(NAMED, 6), (PROPOSALS, 12)])
def test_metrics_equal_mmdet(ground_truth, options, number):
    """With the options that change their names or numbers; mmdet's truth has the same ids here."""
    want = seen(mmdet_metrics.CocoMetric, ground_truth, noise=4, **options).evaluate(6)
    assert seen(CocoMetric, ground_truth, noise=4, **options).evaluate(6) == pytest.approx(want, abs=1e-9, nan_ok=True)
    assert len(want) == number
    with pytest.raises(ConfigError, match="proposal_fast"):
        CocoMetric(metric="proposal_fast")


def test_ids_of_annotations_do_not_matter(ground_truth):
    expected = seen(CocoMetric, ground_truth, noise=1).evaluate(6)
    path, annotations = ground_truth
    content = json.loads(path.read_text())
    for numbers in (range(100), range(-5, 100), [2**60 + i for i in range(100)]):
        content["annotations"] = [{**one, "id": i} for one, i in zip(annotations, numbers)]
        path.write_text(json.dumps(content))
        for engine in ENGINES:
            assert seen(CocoMetric, ground_truth, 1, engine=engine).evaluate(6) == pytest.approx(expected, abs=1e-9)


def test_what_joined_files_do_not_have(ground_truth, tmp_path):
    path, annotations = ground_truth
    metric = CocoMetric(metric="bbox", outfile_prefix=str(tmp_path / "out"))
    metric.dataset_meta = {"classes": CLASSES}
    (tmp_path / "other.json").write_bytes(path.read_bytes())
    for sample, file in zip(predictions(annotations, range(2), noise=0), (path, tmp_path / "other.json")):
        metric.process({}, [{**sample, "img_id": ImageId(sample["img_id"], Source(str(file)))}])
    first, (truth, found) = results = list(metric.results)
    for wrong, said in ((results, "outfile_prefix"), ([first, ({**truth, "img_id": 1}, found)], "with and without")):
        metric.results = list(wrong)
        with pytest.raises(ConfigError, match=said):
            metric.evaluate(2)


def test_one_threshold_of_iou_is_a_number(ground_truth):
    alone = seen(CocoMetric, ground_truth, noise=4, iou_thrs=0.5).evaluate(6)
    assert alone["coco/bbox_mAP"] == seen(CocoMetric, ground_truth, noise=4).evaluate(6)["coco/bbox_mAP_50"]
