import itertools
import json
import tracemalloc

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitdense.mm.data.predictions import CocoPredictions
from vitdense.results.draw import distinct_colours
from vitdense.results.result import Result

CATEGORIES = [{"id": 3, "name": "a"}, {"id": 7, "name": "b"}, {"id": 40, "name": "c"}]
NAMES, SIZE = ("a", "b", "c"), (40, 60)


def detections(labels):
    boxes = [[5 * i, 3 * i, 5 * i + 20, 3 * i + 10] for i in range(len(labels))]
    masks = np.zeros((len(labels), *SIZE), bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes):
        mask[y1:y2, x1:x2] = True
    codes = [rle.encode(np.asfortranarray(mask, np.uint8)) for mask in masks]
    return Result(
        names=NAMES,
        palette=distinct_colours(len(NAMES)),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        scores=np.full(len(labels), 0.9, np.float32),
        labels=np.array(labels, int),
        rle=[{"size": code["size"], "counts": code["counts"].decode()} for code in codes],
    )


def written(predictions, folder):
    predictions.write(folder / "dataset.json", as_dataset=True)
    return json.loads((folder / "dataset.json").read_text())


def test_predictions_have_the_ids_of_the_annotation_file(tmp_path, capsys):
    images = [{"id": i, "file_name": f"sub/{i}.jpg", "height": 40, "width": 60} for i in (139, 285)]
    samples = {image["id"]: detections([2, 0, 1]) for image in images}
    path = tmp_path / "truth.json"
    dataset = {"data_root": str(tmp_path), "ann_file": "truth.json", "data_prefix": {"img": "val/"}}

    def predictions():
        path.write_text(json.dumps(truth))
        made = CocoPredictions(NAMES, dataset)
        for i, sample in samples.items():
            made.add(tmp_path / "val/sub" / f"{i}.jpg", sample, SIZE)
        return made

    truth = {"images": images, "annotations": [], "categories": CATEGORIES[::-1]}
    truth["annotations"] = written(predictions(), tmp_path)["annotations"]
    found = predictions()
    content = written(found, tmp_path)
    annotations = content["annotations"]
    assert [a["category_id"] for a in annotations] == [40, 3, 7] * 2
    assert content["images"] == images
    found.write(tmp_path / "predictions.json")
    assert "id" not in capsys.readouterr().out  # no new ids
    reference = COCO(str(path))
    for kind, results in itertools.product(("bbox", "segm"), (str(tmp_path / "predictions.json"), annotations)):
        scored = COCOeval(reference, reference.loadRes(results), kind)
        scored.evaluate(), scored.accumulate(), scored.summarize()
        assert scored.stats[0] == pytest.approx(1.0)


def test_results_have_the_keys_of_coco_results(tmp_path):
    predictions = CocoPredictions(NAMES, {})
    predictions.add(tmp_path / "none.jpg", detections([]), SIZE)
    predictions.write(tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text()) == []
    sample = detections([0, 1])
    predictions.add(tmp_path / "a.jpg", sample, SIZE)
    sample.rle = None
    predictions.add(tmp_path / "b.jpg", sample, SIZE)
    predictions.write(tmp_path / "predictions.json")
    results = json.loads((tmp_path / "predictions.json").read_text())
    keys = {"image_id", "category_id", "bbox", "score"}
    assert [result.keys() for result in results] == [keys | {"segmentation"}] * 2 + [keys] * 2
    assert [result["image_id"] for result in results] == [2, 2, 3, 3]


def test_detections_take_few_bytes_until_they_are_written(tmp_path):
    predictions, many = CocoPredictions(NAMES, {}), detections([0] * 100)
    tracemalloc.start()
    try:
        for i in range(20):
            predictions.add(tmp_path / f"{i}.jpg", many, SIZE)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 20 * 100 * 200  # of dicts some 800 bytes each
    assert len(written(predictions, tmp_path)["annotations"]) == 2000


LVIS = {"id": 139, "coco_url": "http://images.cocodataset.org/val2017/000000000139.jpg"}


@pytest.mark.parametrize(
    ("images", "prefix", "given", "ids"),
    [
        ({70: "7.jpg", 80: "linked/8.jpg"}, "val", ("val/7.jpg", "val/linked/8.jpg"), [70, 80]),  # links elsewhere
        ({1: "1.jpg", 3: "3.jpg"}, "val", ("other/1.jpg", "other/3.jpg", "other/5.jpg"), [2, 4, 5]),  # unused ids
        ({}, "", ("val2017/000000000139.jpg",), [139]),  # LVIS
    ],
)
def test_ids_of_images(tmp_path, capsys, images, prefix, given, ids):
    for folder in ("val", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stored.jpg").touch()
    (tmp_path / "val/7.jpg").symlink_to(tmp_path / "stored.jpg")
    (tmp_path / "val/linked").symlink_to(tmp_path / "elsewhere")
    images = [{"id": key, "file_name": name} for key, name in images.items()] or [LVIS]
    (tmp_path / "truth.json").write_text(json.dumps({"images": images, "categories": CATEGORIES}))
    dataset = {"data_root": str(tmp_path), "ann_file": "truth.json", "data_prefix": {"img": prefix}}
    predictions = CocoPredictions(NAMES, dataset)
    for name in given:
        predictions.add(tmp_path / name, detections([0]), SIZE)
    assert [image["id"] for image in written(predictions, tmp_path)["images"]] == ids
    predictions.report_new_images()
    assert ("3 of 3 images" in capsys.readouterr().out) == ("other/1.jpg" in given)


def test_coco_classes_have_coco_ids_without_annotation_file(shared_data, capsys):
    classes = CocoDataset.METAINFO["classes"]
    categories = CocoPredictions(classes, {}).categories
    assert capsys.readouterr().out == ""
    published = json.loads((shared_data / "coco/annotations/instances_val2017.json").read_text())["categories"]
    assert categories == [{"id": c["id"], "name": c["name"]} for c in published]
    assert categories[11] == {"id": 13, "name": "stop sign"}


@pytest.mark.parametrize("truth", [None, json.dumps({"categories": CATEGORIES[:2]})])
def test_category_ids_without_a_matching_annotation_file(truth, tmp_path, capsys):
    if truth is not None:
        (tmp_path / "truth.json").write_text(truth)
    predictions = CocoPredictions(NAMES, {"data_root": str(tmp_path), "ann_file": "truth.json"})
    assert predictions.categories == [{"id": i, "name": name} for i, name in enumerate(NAMES, 1)]
    (line,) = capsys.readouterr().out.splitlines()
    assert "numbered from 1" in line
    assert "truth.json" in line
