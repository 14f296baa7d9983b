"""The embedded data set: reproducible images, valid ground truth in both formats, atomic writing."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from vitdense.mm.data import shapes

SMALL = {"num_train": 10, "num_val": 5, "image_size": (96, 128)}


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    return shapes.draw_dataset(tmp_path_factory.mktemp("shapes") / "set", **SMALL, workers=2)


def test_an_image_depends_only_on_its_seed_split_and_index(drawn, tmp_path):
    first = content(drawn)
    assert first == content(shapes.draw_dataset(tmp_path / "again", **SMALL, workers=1))
    fewer = content(shapes.draw_dataset(tmp_path / "fewer", **{**SMALL, "num_train": 3}))
    images = {name: data for name, data in fewer.items() if name.endswith(("jpg", "png"))}
    assert len(images) == 3 * (3 + 5)
    assert images.items() <= first.items()
    other = content(shapes.draw_dataset(tmp_path / "other", **SMALL, seed=1))
    assert len({first["train/000001.jpg"], first["val/000001.jpg"], other["train/000001.jpg"]}) == 3


@pytest.mark.parametrize("split", ["train", "val"])
def test_annotations_agree_with_each_other(drawn, split):
    coco = COCO(str(drawn / f"annotations/instances_{split}.json"))
    assert tuple(c["name"] for c in coco.loadCats(coco.getCatIds())) == shapes.CLASSES
    assert len(coco.imgs) == SMALL[f"num_{split}"]
    for image_id, info in coco.imgs.items():
        picture = cv2.imread(str(drawn / split / info["file_name"]))
        assert picture.shape == (info["height"], info["width"], 3) == (96, 128, 3)
        expected = np.zeros((96, 128), int)
        for annotation in coco.loadAnns(coco.getAnnIds(image_id)):
            mask = coco.annToMask(annotation).astype(bool)
            assert not (expected[mask] != 0).any()  # masks of one image are disjoint
            expected[mask] = 255 if annotation["iscrowd"] else annotation["category_id"]
            ys, xs = np.nonzero(mask)
            x, y, w, h = annotation["bbox"]
            assert (x, y, x + w, y + h) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
            assert annotation["area"] == mask.sum()
        labels = cv2.imread(str(drawn / "semantic" / split / f"{image_id:06d}.png"), cv2.IMREAD_UNCHANGED)
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(labels, expected)


def test_distribution_of_classes_sizes_occlusion_crowds_and_empty_images():
    instances, per_image = [], []
    for index in range(60):
        rng = np.random.default_rng((0, 0, index))
        crowd, empty = (index % every == at for every, at in [shapes.CROWD, shapes.EMPTY])
        _, found = shapes.draw_image(rng, (256, 256), empty=empty, crowd=crowd)
        assert any(i.crowd for i in found) == crowd
        objects = [i for i in found if not i.crowd]
        per_image.append(len(objects))
        instances += objects
    assert per_image.count(0) == 3  # 7, 27, 47
    assert max(per_image) <= 8
    assert {i.label for i in instances} == set(range(len(shapes.CLASSES)))
    areas = np.array([i.mask.sum() for i in instances])
    assert 0.1 < (areas < 32**2).mean() < 0.4
    assert 0.1 < (areas >= 96**2).mean() < 0.4
    visible = np.array([i.visible for i in instances])
    assert 0.25 < (visible < 0.9).mean() < 0.6
    assert visible.min() >= shapes.MIN_VISIBLE


def test_existing_data_set_is_not_drawn_again(drawn, monkeypatch):
    monkeypatch.setattr(shapes, "draw_image", lambda *args, **kwargs: pytest.fail("drawn again"))
    shapes.draw_dataset(drawn, **SMALL)


@pytest.mark.parametrize("change", [{"num_val": 6}, {"num_train": 9}, None])
def test_another_data_set_or_folder_is_refused_and_unchanged(drawn, tmp_path, change):
    if change is None:
        (tmp_path / "photo.jpg").write_bytes(b"photo")
    root = drawn if change else tmp_path
    before = content(root)
    with pytest.raises(ValueError, match=next(iter(change)) if change else re.escape(str(tmp_path))):
        shapes.draw_dataset(root, **{**SMALL, **(change or {})})
    assert content(root) == before


@pytest.mark.parametrize(
    "arguments", [{"num_train": 0}, {"num_val": 0}, {"image_size": (256, 32)}, {"image_size": (256, 256, 3)}]
)
def test_arguments_out_of_range_are_named(tmp_path, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        shapes.draw_dataset(tmp_path / "set", **arguments)
    assert not list(tmp_path.iterdir())


def test_interrupted_drawing_leaves_no_files(tmp_path, monkeypatch):
    draw, calls = shapes.draw_image, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return draw(*args, **kwargs)

    monkeypatch.setattr(shapes, "draw_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shapes.draw_dataset(tmp_path / "set", **SMALL, workers=1)
    assert calls
    assert not list(tmp_path.iterdir())


def test_first_to_rename_wins_if_several_draw(tmp_path, monkeypatch):
    start, draw_into = Barrier(3), shapes._draw_into  # all find no data set before the first one draws

    def wait_then_draw(*args):
        start.wait(60)
        draw_into(*args)

    monkeypatch.setattr(shapes, "_draw_into", wait_then_draw)
    small = {**SMALL, "num_train": 2, "num_val": 1, "workers": 1}
    with ThreadPoolExecutor(3) as pool:
        roots = list(pool.map(lambda _: shapes.draw_dataset(tmp_path / "set", **small), range(3)))
    assert roots == [tmp_path / "set"] * 3
    assert [p.name for p in tmp_path.iterdir()] == ["set"]
    assert len(list((tmp_path / "set/train").iterdir())) == 2


def test_drawing_imports_neither_torch_nor_mm():
    code = (
        "import sys, numpy; from vitdense.mm.data.shapes import draw_image\n"
        "draw_image(numpy.random.default_rng(0), (64, 64))\n"
        "print([m for m in ('torch', 'mmengine', 'mmcv', 'mmdet', 'pycocotools') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
