"""`vitdense.CocoMetric` and pycocotools score a file alike, whatever is odd about it.

Where they differ on purpose:

- annotations of id 0: pycocotools takes an object that is matched to one for not found;
- annotations without `iscrowd`, people without keypoints: pycocotools fails, here they are no crowd, and not labelled;
- no detection at all: pycocotools fails, here every value is 0.
"""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS, METRICS, init_default_scope
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import vitdense  # noqa: F401
from vitdense.mm.train.coco_engines import ENGINES
from vitdense.mm.train.metrics import CocoMetric

KINDS = ["bbox", "segm", *(["keypoints"] if METRICS.get("vitdense.KeypointMetric") else [])]  # of an extension
FILES = 40  # a test; five kinds of them
NAMES = ("a", "b", "c")
POINTS = 3
SIGMAS = np.array([0.05, 0.1, 0.02])
THRESHOLDS = np.array([0.5, 0.6, 0.75, 0.95])
ODD = {
    "plain": lambda rng, one: {},
    "thin": lambda rng, one: {"bbox": [*one["bbox"][:2], float(rng.random()), one["bbox"][3]]},
    "no side": lambda rng, one: {"bbox": [*one["bbox"][:3], 0], "area": 0},
    "no area": lambda rng, one: {"area": 0},
    "ignored": lambda rng, one: {"ignore": 1},
    "crowd": lambda rng, one: {"iscrowd": 1},
    "ignored crowd": lambda rng, one: {"iscrowd": 1, "ignore": 1},
    "small by its area": lambda rng, one: {"area": 5.5},
    "large by its area": lambda rng, one: {"area": 1e5},
    "at a border of sizes": lambda rng, one: {"area": float(rng.choice([32**2, 96**2]))},
    "outside": lambda rng, one: {"bbox": [-300, -300, 20, 20]},
    "over the edge": lambda rng, one: {"bbox": [-7.5, one["bbox"][1], 400, one["bbox"][3]]},
    "of no image": lambda rng, one: {"image_id": 10**6},
    "of no category": lambda rng, one: {"category_id": 10**6},
    "no points": lambda rng, one: {"keypoints": [0] * 3 * POINTS, "num_keypoints": 0},
    "points by their number": lambda rng, one: {"num_keypoints": int(rng.integers(0, 2))},
}


def mask_of(rng, box, height, width):
    x, y, w, h = box
    form, polygon = rng.integers(3), [x, y, x + w, y, x + w, y + h, x, y + h]
    if form == 0:
        return [polygon, [v + 3 for v in polygon]] if rng.random() < 0.3 else [polygon]
    coded = rle.merge(rle.frPyObjects([polygon], height, width))
    if form == 1:
        return {"size": coded["size"], "counts": coded["counts"].decode()}
    pixels = rle.decode(coded).ravel(order="F")  # [height * width]
    ends = [0, *(np.flatnonzero(np.diff(pixels)) + 1).tolist(), len(pixels)]
    return {"size": coded["size"], "counts": [0] * int(pixels[0]) + np.diff(ends).tolist()}


def odd_file(rng):
    ids = rng.permutation(50)[:3].tolist()
    named = {"keypoints": ["x", "y", "z"]}
    categories = [{"id": key, "name": name, **named} for key, name in zip(ids, rng.permutation(NAMES).tolist())]
    images, annotations = [], []
    for key in rng.permutation(100)[: rng.integers(2, 5)].tolist():
        width, height = rng.integers(40, 260, 2).tolist()
        images.append({"id": key, "file_name": f"{key}.jpg", "width": width, "height": height})
        for _ in range(rng.integers(0, 7)):  # of some images none
            x, y, w, h = (rng.random(4) * [width, height, width / 2, height / 2]).round(1).tolist()
            places = np.stack([x + w * rng.random(POINTS), y + h * rng.random(POINTS), rng.integers(0, 3, POINTS)], 1)
            one = {"image_id": key, "category_id": int(rng.choice(ids)), "bbox": [x, y, w, h], "area": w * h}
            one |= {"iscrowd": 0, "keypoints": places.ravel().tolist(), "num_keypoints": int((places[:, 2] > 0).sum())}
            if rng.random() < 0.5:
                one |= ODD[rng.choice(list(ODD))](rng, one)
            one["segmentation"] = mask_of(rng, one["bbox"], height, width)
            annotations += [one] * (2 if rng.random() < 0.1 else 1)  # doubles
    annotations = [{**one, "id": i} for i, one in enumerate(annotations, 1)]
    for one in annotations:
        if rng.random() < 0.02 and 10**6 not in one.values():
            one["id"] = 1  # of another
    return {"images": images, "annotations": annotations, "categories": categories}


def detections(rng, content):
    names = {one["id"]: NAMES.index(one["name"]) for one in content["categories"]}
    found = {}
    for image in content["images"]:
        near = [one for one in content["annotations"] if one["image_id"] == image["id"] and rng.random() < 0.8]
        corners, labels, masks, points = [], [], [], []
        for one in [*near, *near[:1], None]:
            box = np.array(one["bbox"] if one else rng.random(4) * 50)
            box = np.float32(box + rng.normal(0, 1 + 0.05 * abs(box)) * (rng.random() < 0.7))
            box[2:] = np.maximum(box[2:], 0)
            corners.append(np.float32([*box[:2], box[0] + box[2], box[1] + box[3]]))
            labels.append(names.get(one["category_id"] if one else -1, int(rng.integers(3))))
            x, y, w, h = box.tolist()
            polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            masks.append(rle.merge(rle.frPyObjects(polygon, image["height"], image["width"])))
            own = np.array(one["keypoints"] if one else 3 * POINTS * [5.0]).reshape(POINTS, 3)
            points.append(np.float32(own + rng.normal(0, 2, own.shape)))
        scores = np.float32(rng.integers(1, 6, len(labels)) / 5)
        found[image["id"]] = (np.array(corners), scores, np.array(labels), masks, np.array(points))
    return found


def scored(file, rows, kind):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(rows), kind)
        evaluation.params.iouThrs = THRESHOLDS
        if kind == "keypoints":
            evaluation.params.kpt_oks_sigmas = SIGMAS
        else:
            evaluation.params.maxDets = [100, 300, 1000]
        evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
    return evaluation


def of_pycocotools(content, found, kind, folder):
    """Precision and recall [..., K in the order of `NAMES`, ...], and the numbers of its summary."""
    ids = {one["name"]: one["id"] for one in content["categories"]}
    rows = []
    for key, (corners, scores, labels, masks, points) in found.items():
        for (x1, y1, x2, y2), score, label, mask, own in zip(corners.tolist(), scores.tolist(), labels, masks, points):
            place = {"bbox": {"bbox": [x1, y1, x2 - x1, y2 - y1]}, "segm": {"segmentation": mask}}
            place["keypoints"] = {"keypoints": own.ravel().tolist()}
            rows.append({"image_id": key, "category_id": ids[NAMES[label]], "score": score, **place[kind]})
    (folder / "truth.json").write_text(json.dumps(content))
    evaluation = scored(folder / "truth.json", rows, kind)
    order = [evaluation.params.catIds.index(ids[name]) for name in NAMES]
    return evaluation.eval["precision"][:, :, order], evaluation.eval["recall"][:, order], evaluation.stats


def metric_of(kind, file, engine=None):
    options = {"engine": engine, "iou_thrs": THRESHOLDS}
    if kind == "keypoints":
        return METRICS.build({"type": "vitdense.KeypointMetric", "ann_file": file, "metric": "bbox", **options})
    return CocoMetric(file, metric=kind, **options)


def evaluated(metric, found, image_ids=None):
    """The values of a metric, and its last evaluation; the ids may differ from the ids of `found`."""
    metric.dataset_meta, metric.evaluations = {"classes": NAMES, "sigmas": SIGMAS}, []
    for image_id, (corners, scores, labels, masks, points) in zip(image_ids or found, found.values()):
        own = {"bboxes": torch.tensor(corners), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}
        own |= {"masks": masks, "keypoints": torch.tensor(points)}
        metric.process({}, [{"img_id": image_id, "ori_shape": (9, 9), "pred_instances": own}])
    return metric.evaluate(len(found)), metric.evaluations[-1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_odd_files(kind, seed, tmp_path):
    for i in range(FILES):
        rng = np.random.default_rng([seed, i])
        content = odd_file(rng)
        found = detections(rng, content)
        precision, recall, stats = of_pycocotools(content, found, kind, tmp_path)
        for one in content["annotations"]:
            if not any(one["keypoints"]):
                del one["keypoints"], one["num_keypoints"]
        (tmp_path / "truth.json").write_text(json.dumps(content))
        for engine in ENGINES:
            values, evaluation = evaluated(metric_of(kind, str(tmp_path / "truth.json"), engine), found)
            np.testing.assert_allclose(evaluation.precision, precision, rtol=0, atol=1e-12, err_msg=f"{engine} {i}")
            np.testing.assert_allclose(evaluation.recall, recall, rtol=0, atol=1e-12, err_msg=f"{engine} {i}")
            own = [value for name, value in values.items() if name.startswith(f"coco/{kind}_")]
            np.testing.assert_allclose(own[:5], stats[:5], rtol=0, atol=0.00051)  # rounded


def split(content):
    """The content as of two files, whose images, annotations and categories have ids of their own."""
    for part, categories in zip((content["images"][:1], content["images"][1:]), (1, -1)):
        images = {image["id"]: i for i, image in enumerate(sorted(part, key=lambda image: image["id"]))}
        ids = {one["id"]: i for i, one in enumerate(content["categories"][::categories], 5)}
        rows = [one for one in content["annotations"] if one["image_id"] in images and one["category_id"] in ids]
        yield {
            "images": [{**image, "id": images[image["id"]]} for image in part],
            "annotations": [
                {**one, "id": i, "image_id": images[one["image_id"]], "category_id": ids[one["category_id"]]}
                for i, one in enumerate(rows)
            ],
            "categories": [{**one, "id": ids[one["id"]]} for one in content["categories"]],
        }


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_joined_files_are_scored_as_one(kind, tmp_path):
    """The metric has no file: data sets say which one each image is of."""
    init_default_scope("mmdet")
    for i in range(FILES // 4):
        rng = np.random.default_rng([5, i])
        content = odd_file(rng)
        content["images"] = sorted(content["images"], key=lambda image: image["id"])
        content["annotations"] = [{**one, "id": i} for i, one in enumerate(content["annotations"], 1)]
        found, parts = detections(rng, content), []
        for name, part in zip(("first", "second"), split(content)):
            (tmp_path / f"{name}.json").write_text(json.dumps(part))
            data = {"type": "vitdense.CocoDataset", "ann_file": f"{tmp_path}/{name}.json", "test_mode": True}
            data |= {"metainfo": {"classes": NAMES}, "data_prefix": {"img": ""}, "pipeline": []}
            parts.append(data)
        joined = DATASETS.build({"type": "ConcatDataset", "datasets": parts})
        ids = [joined[i]["img_id"] for i in range(len(joined))]
        precision, recall, _ = of_pycocotools(content, found, kind, tmp_path)
        _, evaluation = evaluated(metric_of(kind, None), found, ids)
        np.testing.assert_array_equal(evaluation.precision, precision)
        np.testing.assert_array_equal(evaluation.recall, recall)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_files_of_results_have_the_values_of_the_metric(kind, tmp_path):
    for i in range(FILES // 2):
        rng = np.random.default_rng([6, i])
        content = odd_file(rng)
        found = detections(rng, content)
        _, _, stats = of_pycocotools(content, found, kind, tmp_path)
        metric = metric_of(kind, str(tmp_path / "truth.json"))
        metric.outfile_prefix = str(tmp_path / "found")
        evaluated(metric, found)
        rows = json.loads((tmp_path / f"found.{kind}.json").read_text())
        for row in rows if kind == "segm" else ():
            del row["bbox"]  # as mmdet does: COCO would take the area of the box for the mask's
        np.testing.assert_array_equal(scored(tmp_path / "truth.json", rows, kind).stats, stats)
