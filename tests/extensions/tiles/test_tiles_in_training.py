"""Tiles in training and validation: every object is in one, labels are cut as images are, AP is of whole images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_command, succeed
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from vitdense.errors import OptionError
from vitdense.extensions.tiles.dataset import TiledDataset
from vitdense.extensions.tiles.small import densest, sides_of
from vitdense.mm.config.files import CONFIGS
from vitdense.mm.config.load import load_config
from vitdense.mm.data.panoptic import colours_of_ids
from vitdense.mm.data.seeded import SeededIndex
from vitdense.mm.train import launch

LOAD = [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations", "with_bbox": True, "with_mask": True}]


@pytest.fixture(autouse=True)
def _scope(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init_default_scope("mmdet")


def write_coco(path, sizes, boxes, names=("a",)):
    """Boxes (x, y, w, h, label) of every image, whose masks are the boxes."""
    images = [{"id": i, "file_name": f"{i}.png", "width": w, "height": h} for i, (h, w) in enumerate(sizes)]
    annotations = []
    for i, of_image in enumerate(boxes):
        for x, y, w, h, label in of_image:
            mask = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            place = {"id": len(annotations) + 1, "image_id": i, "category_id": label + 1, "iscrowd": 0}
            annotations.append({**place, "bbox": [x, y, w, h], "area": w * h, "segmentation": mask})
    categories = [{"id": i, "name": name, "isthing": 1} for i, name in enumerate(names, 1)]
    Path(path).write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def tiled(pipeline=(), kind="CocoDataset", inside=None, **options):
    dataset = {"type": kind, "ann_file": "train.json", "metainfo": {"classes": ("a",)}, "pipeline": list(pipeline)}
    dataset["data_prefix"] = {"img": ""}
    return TiledDataset({**dataset, **(inside or {})}, **{"side": 64, **options})


@pytest.mark.parametrize("min_kept", [0.2, 1.0])
def test_every_object_is_in_a_tile(min_kept):
    draw, sizes, boxes = np.random.default_rng(1), [], []
    for _ in range(30):
        height, width = draw.integers(40, 400, 2).tolist()
        sizes.append((height, width))
        corners = draw.uniform(0, [width - 2, height - 2], (20, 2))
        extents = np.minimum(draw.uniform(1, 150, (20, 2)), [width, height] - corners)
        boxes.append([(*corner, *extent, 0) for corner, extent in zip(corners.tolist(), extents.tolist())])
    write_coco("train.json", sizes, boxes)
    found = tiled(min_kept=min_kept, keep_empty=0.0)
    learned = set()
    for i in range(len(found)):
        info = found.get_data_info(i)
        x1, y1, x2, y2 = info["tile"]
        flags = [one["ignore_flag"] for one in info["instances"]]
        assert not all(flags)
        for one in info["instances"]:
            a, b, c, d = one["bbox"]
            share = (min(c, x2) - max(a, x1)) * (min(d, y2) - max(b, y1)) / ((c - a) * (d - b))
            assert share > 0
            assert not one["ignore_flag"] or share < min_kept
            learned |= set() if one["ignore_flag"] else {(info["img_id"], a, b)}
    assert learned == {(i, box[0], box[1]) for i, of_image in enumerate(boxes) for box in of_image}


def paint(size, boxes):
    image = np.zeros((*size, 3), np.uint8)
    for i, (x, y, w, h, _) in enumerate(boxes, 1):
        image[y : y + h, x : x + w] = 40 * i
    return image


BOXES = [(10, 20, 30, 30, 0), (50, 50, 40, 20, 0), (120, 70, 20, 20, 0), (100, 5, 4, 50, 0)]


def test_boxes_masks_and_flags_are_cut_with_the_image():
    write_coco("train.json", [(100, 150)], [BOXES])
    Image.fromarray(paint((100, 150), BOXES)).save("0.png")
    found, seen = tiled(LOAD), 0
    for results in found:
        assert results["img"].shape[:2] == results["img_shape"] == (64, 64)
        for box, mask in zip(results["gt_bboxes"].numpy().astype(int), results["gt_masks"].masks):
            x1, y1, x2, y2 = box
            value = results["img"][y1, x1, 0]
            assert value
            np.testing.assert_array_equal(mask, results["img"][..., 0] == value)
            assert (mask.any(0).sum(), mask.any(1).sum()) == (x2 - x1, y2 - y1)
            seen += 1
    assert seen > len(BOXES)


def test_label_maps_and_segments_are_cut_with_the_image():
    ids = paint((100, 150), BOXES)[..., 0]
    for name, pixels in (("img/0.png", ids), ("map/0.png", ids), ("seg/0.png", colours_of_ids(ids.astype(int)))):
        Path(name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(name)
    segments = [
        {"id": 40 * i, "category_id": 1, "bbox": box[:4], "area": box[2] * box[3], "iscrowd": 0}
        for i, box in enumerate(BOXES, 1)
    ]
    write_coco("train.json", [(100, 150)], [[]])
    content = json.loads(Path("train.json").read_text())
    content["annotations"] = [{"image_id": 0, "file_name": "0.png", "segments_info": segments}]
    Path("train.json").write_text(json.dumps(content))
    panoptic = {"data_prefix": {"img": "img/", "seg": "seg/"}, "metainfo": None}
    steps = [LOAD[0], {"type": "vitdense.LoadPanopticAnnotations"}]
    for results in tiled(steps, "vitdense.PanopticDataset", panoptic, keep_empty=1.0):
        boxes, masks = results["gt_bboxes"].numpy().astype(int), results["gt_masks"].masks
        assert len(boxes) == len(masks) > 0
        for (x1, y1, _, _), mask in zip(boxes, masks):
            np.testing.assert_array_equal(mask, results["img"][..., 0] == results["img"][y1, x1, 0])
        np.testing.assert_array_equal(results["gt_seg_map"] == 255, results["img"][..., 0] == 0)
    init_default_scope("mmseg")
    maps = {"data_prefix": {"img_path": "img", "seg_map_path": "map"}, "img_suffix": ".png", "ann_file": ""}
    found = tiled([LOAD[0], {"type": "LoadAnnotations"}], "mmseg.BaseSegDataset", maps, keep_empty=0.0)
    assert len(found) == 6
    for results in found:
        np.testing.assert_array_equal(results["gt_seg_map"], results["img"][..., 0])


def test_empty_tiles_at_a_rate_and_the_same_ones_again():
    write_coco("train.json", [(700, 700)], [[(5, 5, 10, 10, 0)]])
    numbers = [len(tiled(keep_empty=rate, side=32)) for rate in (0.0, 0.3, 1.0)]
    assert numbers[0] == 1
    assert 0.2 < numbers[1] / numbers[2] < 0.4
    first, again = (tiled(keep_empty=0.3, side=32).windows for _ in range(2))
    np.testing.assert_array_equal(first, again)
    index = SeededIndex(1, (7,))
    assert tiled(side=32).get_data_info(index)["sample_idx"] is index  # seeds and resume, as of any data set


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"side": 0}, "tiles"),
        ({"overlap": 1.0}, "overlap"),
        ({"min_kept": 0.0}, "min_kept"),
        ({"min_kept": 1.5}, "min_kept"),
        ({"keep_empty": 2}, "keep_empty"),
        ({"side": 800}, "100x100"),
    ],
)
def test_refused(options, named):
    write_coco("train.json", [(100, 100)], [[(5, 5, 10, 10, 0)]])
    with pytest.raises(OptionError, match=named):
        tiled(**options)


def test_share_of_small_objects():
    write_coco("train.json", [(1000, 2000)], [[(5, 5, 20, 20, 0)]])
    content = json.loads(Path("train.json").read_text())
    assert [*sides_of(content, (500, 500), True, None)] == [pytest.approx(20 * (0.5 * 0.25) ** 0.5)]
    assert [*sides_of(content, (500, 800), False, None)] == [pytest.approx(20 * 0.4)]
    assert [*sides_of(content, (500, 500), True, 250)] == [pytest.approx(40)]


def test_a_check_counts_the_objects_of_a_tile():
    write_coco("train.json", [(200, 200)], [[(20 * i, 20 * j, 10, 10, 0) for i in range(10) for j in range(10)]])
    tiles = {"side": 64, "overlap": 0.2}
    cfg = Config({"train_dataloader": {"dataset": tiles}, "val_cfg": {}})
    found = {split: densest(cfg, split, "train.json") for split in ("train", "val", "test")}
    assert found == {"train": 16, "val": None, "test": None}
    assert densest(Config({**cfg, "val_cfg": tiles}), "val", "train.json") == 16


@pytest.mark.long
def test_ap_of_joined_tiles_is_of_whole_images(tmp_path):
    found = []
    for side in (None, 256):
        cfg = load_config("shapes_nano", work_dir=str(tmp_path / "work"))
        cfg.test_dataloader.update(num_workers=0, persistent_workers=False, batch_size=2)
        draw = {"num_train": 1, "num_val": 2, "image_size": (256, 256)}
        cfg.test_dataloader.dataset.update(data_root=str(tmp_path / "shapes"), draw=draw)
        cfg.test_evaluator.ann_file = str(tmp_path / "shapes/annotations/instances_val.json")
        if side:
            cfg.test_cfg = {"type": "vitdense.TiledTestLoop", "side": side, "overlap": 0.2}
        found.append(launch.test(cfg, str(CONFIGS / "demo/shapes_nano.safetensors")))
    assert found[0] == found[1]
    assert found[0]["coco/bbox_mAP"] > 0.3


@pytest.mark.long
def test_new_writes_a_config_that_trains_validates_and_resumes(tmp_path):
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        boxes = [[(*draw.integers(0, 180, 2).tolist(), 16, 16, i % 2) for i in range(4)] for _ in range(4)]
        Path(split).mkdir()
        write_coco(f"{split}.json", [(200, 200)] * 4, boxes, names=("a", "b"))
        for i, of_image in enumerate(boxes):
            Image.fromarray(paint((200, 200), of_image)).save(f"{split}/{i}.png")
    start = "new detection --train train.json --val val.json --images train --val-images val"
    start = f"{start} --boxes --base cascade_rcnn_swin_nano_shapes".split()
    for side, said in (("0", "tiles"), ("256", "tiles of 256 pixels and images of at most 200x200")):
        status, printed = run_command([*start, "--tiles", side, "mine.py"])
        assert (status, said in printed, Path("mine.py").exists()) == (2, True, False), printed
    succeed([*start, "--tiles", "128", "mine.py"])
    inside = load_config("mine.py").train_dataloader.dataset.dataset
    assert (inside.type, inside.metainfo.classes) == ("vitdense.CocoDataset", ("a", "b"))
    assert "objects under 16 pixels" in succeed(["check", "mine.py"])
    options = "--cfg-options randomness.seed=1 settings.max_iters=4"
    options = f"{options} default_hooks.checkpoint.interval=2 train_cfg.val_interval=4"
    ends = []
    for resumed in ("", "--resume"):
        words = f"train mine.py --work-dir run {resumed} {options} train_dataloader.num_workers=0"
        assert "bbox_mAP" in succeed(words.split())
        ends.append(torch.load("run/iter_4.pth", weights_only=False)["state_dict"])
        Path("run/iter_4.pth").unlink()
        Path("run/last_checkpoint").write_text("iter_2.pth")
    assert [key for key, x in ends[0].items() if not x.equal(ends[1][key])] == []
