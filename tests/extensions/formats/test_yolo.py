from pathlib import Path

import numpy as np
import pytest
from kinds import photo
from PIL import Image

from vitdense.extensions.formats.yolo import read_yolo
from vitdense.mm.data.coco import ALL_CORNERS, KEYS, ORIENTED, examine

DATA = "names: {0: fox, 1: owl}\npath: set\ntrain: images/train\nval: images/val\n"
BOX = "1 0.5 0.25 0.2 0.1\n"


@pytest.fixture
def write(tmp_path):
    def write(lines, data=DATA, labels="set/labels/train/a.txt"):
        for name, size, orientation in (("train/a.jpg", (200, 100), 1), ("train/x/b.jpg", (100, 200), 6)):
            for split in ("train", "val"):
                path = tmp_path / "set/images" / name.replace("train", split)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(photo(0, size, turned=orientation))
        (tmp_path / labels).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / labels).write_text(lines)
        (tmp_path / "data.yaml").write_text(data)
        return tmp_path / "data.yaml"

    return write


def test_boxes_and_polygons(write, tmp_path):
    content, folder, faults = read_yolo(write(f"{BOX}\n0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5\n"), "train")
    assert folder == tmp_path / "set/images/train"
    assert content["images"] == [
        {"id": 1, "file_name": "a.jpg", "width": 200, "height": 100},
        {"id": 2, "file_name": "x/b.jpg", "width": 200, "height": 100},
    ]
    assert content["categories"] == [{"id": 1, "name": "fox"}, {"id": 2, "name": "owl"}]
    assert content.keys() == KEYS.keys()
    assert [*faults, *examine(content).faults] == []
    box, polygon = content["annotations"]
    assert [Path(one.pop("place")).name for one in (box, polygon)] == ["a.txt:1", "a.txt:3"]
    np.testing.assert_allclose(box.pop("bbox"), [80, 20, 40, 10])
    assert box == {"id": 1, "image_id": 1, "iscrowd": 0, "category_id": 2, "area": pytest.approx(400)}
    np.testing.assert_allclose(polygon.pop("bbox"), [20, 10, 40, 40])
    np.testing.assert_allclose(polygon.pop("segmentation"), [[20, 10, 60, 10, 60, 50, 20, 50]])
    assert polygon == {"id": 2, "image_id": 1, "iscrowd": 0, "category_id": 1, "area": pytest.approx(1600)}


@pytest.mark.parametrize(
    ("train", "labels"),
    [
        ("../set/images/train", "set/labels/train/a.txt"),  # for set/images/train
        ("[set/images/train, set/images/train/x]", "set/labels/train/a.txt"),
        ("lists/train.txt", "set/labels/train/a.txt"),
        ("other", "other/a.txt"),
    ],
)
def test_where_images_and_labels_may_be(train, labels, write, tmp_path):
    data = write(BOX, f"names: [fox, owl]\nnc: 2\ntrain: {train}\n", labels)
    for name in ("lists", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "lists/train.txt").write_text("../set/images/train/x/b.jpg\n\n../set/images/train/a.jpg\n")
    Image.new("RGB", (200, 100)).save(tmp_path / "other/a.png")
    content, folder, _ = read_yolo(data, "train")
    assert len(content["annotations"]) == 1
    assert len(content["images"]) == 2 - (train == "other")
    assert all((folder / image["file_name"]).is_file() for image in content["images"])


STRAIGHT, TURNED = "0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5\n", "1 0.5 0.1 0.7 0.5 0.5 0.9 0.3 0.5\n"


@pytest.mark.parametrize(
    ("lines", "fixes"),
    [
        (TURNED + STRAIGHT, [ORIENTED]),
        (STRAIGHT, []),
        (TURNED + BOX, [ALL_CORNERS]),
        (TURNED + "0 0.1 0.1 0.3 0.1 0.3 0.5\n", []),
        ("", []),
    ],
)
def test_oriented_boxes_are_said(lines, fixes, write):
    content, *_ = read_yolo(write(lines), "train")
    said = [fault for fault in examine(content).faults if "four corners" in str(fault)]
    assert [fault.fix for fault in said if not fault.grave] == fixes


def test_rounded_coordinates_are_clipped_to_the_image(write):
    content, *_ = read_yolo(write("0 0.2 -0.0000001 1.0000001 0.5 0.3 0.9\n"), "train")
    x, y, width, _ = content["annotations"][0]["bbox"]
    assert min(x, y) >= 0
    assert x + width == content["images"][0]["width"]
