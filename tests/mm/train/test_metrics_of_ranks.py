"""Metrics of several processes are those of one, to the bit, whichever images a process has."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run_ranks
from mmengine.registry import METRICS
from pycocotools import mask as rle

import vitdense.registry  # noqa: F401
from vitdense.mm.data.coco import ImageId, Source
from vitdense.mm.train.metrics import PanopticMetric

pytestmark = pytest.mark.long

SIDE = 200  # of an image
META = {"classes": ("a", "b"), "thing_classes": ("a",), "keypoints": ("x", "y"), "sigmas": (0.05, 0.1)}
COCO = {"metric": ["bbox", "segm", "proposal"], "proposal_nums": [1, 3, 100], "classwise": True}
INSTANCES = [{"bbox": [30, 30, 80, 90], "bbox_label": 0, "mask": [[30, 30, 80, 30, 80, 90]]}]
EXTENSIONS = [name for name in ("KeypointMetric", "OrientedMetric") if METRICS.get(f"vitdense.{name}")]
ALONE = ("truth in samples", "an image twice", "written", "by pycocotools")  # the first process evaluates all images
CASES = {  # metric, arguments, images; nothing is found in odd ones
    "coco": ("CocoMetric", COCO, range(7)),
    "fewer images than processes": ("CocoMetric", COCO, (4,)),
    "nothing found": ("CocoMetric", COCO, (1, 3, 5)),
    "joined files": ("CocoMetric", {**COCO, "ann_file": None}, ("b2", "a4", "b1", "b4", "a0")),
    "truth in samples": ("CocoMetric", {**COCO, "ann_file": None}, range(7)),
    "an image twice": ("CocoMetric", COCO, (0, 1, 2, 0)),
    "written": ("CocoMetric", {**COCO, "outfile_prefix": "found"}, range(7)),
    "by pycocotools": ("CocoMetric", {**COCO, "engine": "pycocotools"}, range(7)),
    **{name: (name, {"metric": "bbox"}, range(7)) for name in EXTENSIONS},
}


def draw(path, seed):
    rng, annotations = np.random.default_rng(seed), []
    for i in range(28):
        x, y, w, h = (rng.random(4) * 90 + 10).tolist()
        corners = [x, y + 2, x + w, y, x + w + 2, y + h, x + 2, y + h + 2]
        one = {"bbox": [x, y, w + 2, h + 2], "area": w * h, "segmentation": [corners]}
        one |= {"keypoints": [x, y, 2, x + w, y + h, 2], "num_keypoints": 2, "iscrowd": int(i % 9 == 8)}
        annotations.append({"id": i, "image_id": i // 4, "category_id": int(rng.integers(1, 3)), **one})
    images = [{"id": i, "file_name": f"{i}.jpg", "width": SIDE, "height": SIDE} for i in range(7)]
    categories = [{"id": i, "name": name, "keypoints": META["keypoints"]} for i, name in enumerate(META["classes"], 1)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def sample(file, image):
    """Objects near the annotated ones, some with equal scores."""
    rng = np.random.default_rng(image)
    own = [one for one in json.loads(file.read_text())["annotations"] if one["image_id"] == image and image % 2 == 0]
    corners = np.array([one["segmentation"][0] for one in own]).reshape(-1, 4, 2) + rng.normal(0, 3, (len(own), 4, 2))
    masks = [rle.frPyObjects([one.ravel().tolist()], SIDE, SIDE)[0] for one in corners]
    found = {
        "bboxes": torch.tensor(np.concatenate([corners.min(1), corners.max(1)], 1), dtype=torch.float32),
        "scores": torch.tensor(rng.integers(1, 5, len(own)) / 5, dtype=torch.float32),
        "labels": torch.tensor([one["category_id"] - 1 for one in own], dtype=torch.long),
        "corners": torch.tensor(corners),
        "keypoints": torch.tensor([one["keypoints"] for one in own]).reshape(-1, 2, 3),
        "masks": masks,
    }
    return {"img_id": ImageId(image, Source(str(file))), "ori_shape": (SIDE, SIDE), "pred_instances": found}


def evaluated(folder, case, rank, world):
    """Values of a metric and, from the first process, precision and recall of each evaluation."""
    name, options, images = CASES[case]
    images, curves = [image if isinstance(image, str) else f"a{image}" for image in images], []
    if "outfile_prefix" in options:
        options = {**options, "outfile_prefix": str(folder / f"found{world}")}
    metric = METRICS.build({"type": f"vitdense.{name}", "ann_file": str(folder / "a.json"), **options})
    metric.dataset_meta, metric.collect_dir = META, str(folder / "collected")
    figures = metric.figures

    def keep(name, made):
        if made:
            assert (made.truth is None) == (world > 1 and case not in ALONE)
            curves.append((name, made.precision, made.recall))
        return figures(name, made)

    metric.figures = keep
    repeated = images * world if len(images) > 1 else images  # as by samplers that round up, or do not
    for _ in range(2):  # validations
        for file, image in repeated[rank : -(-len(images) // world) * world : world]:
            one = sample(folder / f"{file}.json", int(image))
            if case == "truth in samples":
                one |= {"img_id": int(image), "instances": INSTANCES}
            metric.process({}, [one])
        values = metric.evaluate(len(images))
    return values, curves


def summed(folder, kind, rank, world):
    """Values of a metric of rows by image, for numbers whose sum in float32 depends on their order."""
    rng = np.random.default_rng(0)
    if kind == "PanopticMetric":
        metric, rows = PanopticMetric(), list(rng.random((7, 2, 4)))
    else:
        metric = METRICS.build({"type": kind})
        rows = [tuple(torch.tensor(rng.random(2) * 1e7, dtype=torch.float32) for _ in range(4)) for _ in range(7)]
    metric.dataset_meta, metric.collect_dir = META, str(folder / "collected")
    metric.results = (rows * world)[rank : -(-7 // world) * world : world]
    return metric.evaluate(7), []


def values_of(folder, rank, world):
    values = {case: evaluated(folder, case, rank, world) for case in CASES}
    return values | {kind: summed(folder, kind, rank, world) for kind in ("PanopticMetric", "mmseg.IoUMetric")}


def _work(rank, folder, world):
    torch.set_num_threads(1)
    where = f"file://{folder}/rendezvous{world}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    Path(folder, f"{world}.{rank}").write_bytes(pickle.dumps(values_of(Path(folder), rank, world)))


def test_values_are_those_of_one_process(tmp_path):
    for seed, name in enumerate("ab"):
        draw(tmp_path / f"{name}.json", seed)
    want = values_of(tmp_path, 0, 1)
    for world in (2, 3):
        run_ranks(_work, str(tmp_path), world, ranks=world)
        for rank in range(world):
            got = pickle.loads((tmp_path / f"{world}.{rank}").read_bytes())
            for case, (values, curves) in want.items():
                np.testing.assert_equal(got[case][0], values, f"{case}, process {rank} of {world}")
                np.testing.assert_equal(got[case][1], [] if rank else curves, f"{case} in {world} processes")
        for kind in ("bbox", "segm"):
            names = (tmp_path / f"found{number}.{kind}.json" for number in (1, world))
            assert len({path.read_bytes() for path in names}) == 1
    assert len({value for values, _ in want.values() for value in values.values()}) > 50
