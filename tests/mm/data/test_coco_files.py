"""COCO annotation files: what is read, and every fault in one line with its ids."""

import json
import os

import pytest
import torch

from vitdense.mm.data import coco, detection, kept
from vitdense.mm.data.coco import examine, overview, read, used
from vitdense.mm.errors import ConfigError


def content(**changes):
    """Two images of 40x30 pixels, ids with gaps, one annotation in the first; `changes` are of that annotation."""
    annotation = {"id": 5, "image_id": 70, "category_id": 9, "bbox": [1, 2, 10, 20], "area": 200} | changes
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in (70, 8)]
    return {"images": images, "annotations": [annotation], "categories": [{"id": 9, "name": "cat"}]}


def faults(of, grave=True):
    return [str(fault) for fault in examine(of).faults if fault.grave == grave]


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "some.json"
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return path

    return write


def test_counts(write):
    data = content(segmentation=[[1, 2, 11, 2, 11, 22, 1, 22]], iscrowd=1)
    data["annotations"] += [content(id=i, bbox=[i, 2, 10, 20])["annotations"][0] for i in (6, 7, 8)]
    found = examine(read(write(data)))
    assert (len(found.sizes), found.densest, found.without_mask) == (2, 3, [6, 7, 8])
    assert found.counts == {"cat": 4}
    assert found.faults == []
    del data["annotations"]  # of test images
    assert examine(read(write(data))).counts == {"cat": 0}


@pytest.mark.parametrize(("area", "warns"), [(1200, 0), (300, 0), (1.0, 1), (1e11, 1)])
def test_areas_of_boxes_without_masks(area, warns):
    """A mask fills a part of its box, and not more."""
    assert len(faults(content(area=area, bbox=[0, 0, 40, 30]), grave=False)) == warns


def test_images_that_are_used_for_training():
    found = content()  # a box in one of two images of 40x30
    assert used(found, ["cat"], {}) == 2
    assert used(found, ["cat"], {"filter_empty_gt": True}) == 1
    assert used(found, ["dog"], {"filter_empty_gt": True}) == 0
    assert used(found, ["cat"], {"min_size": 32}) == 0


NAMES = ("a", "b", "c")
CATEGORIES = json.dumps([{"id": 3, "name": "a"}, {"id": 7, "name": "b"}, {"id": 40, "name": "c"}])
OTHERS = '"images": [{"id": 1, "license": {"id": 9, "name": "x"}}], "annotations": []'


@pytest.mark.parametrize(
    "text",
    [
        f'{{{OTHERS}, "categories": {CATEGORIES}}}',
        f'{{"categories"  :\n {CATEGORIES},\n {OTHERS}}}',
        json.dumps({"categories": [{"name": name} for name in NAMES]}),
        f'{{"categories": {CATEGORIES}, {OTHERS}, "info": {{"categories": ["animals"]}}}}',
        *("", "{", "[1, 2]", "{}", '{"categories": 3}', '{"categories": [3]}', CATEGORIES),
    ],
)
def test_overview_of_a_file(text, write, monkeypatch):
    """Categories are read without parsing the whole file, if there is one list of that name."""
    path = write(text.encode())
    if text.count('"categories"') == 1:
        monkeypatch.delattr(coco.json, "loads")
    if any(name in text for name in ('"a"', '"animals"')) and text != CATEGORIES:
        assert overview(path).categories == NAMES
    else:
        with pytest.raises(ConfigError, match=r"some\.json"):
            overview(path)


def other_file_of_the_same_size_and_time(_, path):
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(path.read_bytes().replace(b'"area": 200', b'"area": 0.0'))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    assert path.stat().st_size == before.st_size


OF_FILE = {
    "other": lambda _, path: path.write_text(json.dumps(content(area=300))),
    "other, of the same size and time": other_file_of_the_same_size_and_time,
}
OF_KEPT = {
    "cut": lambda kept, _: kept.write_bytes(kept.read_bytes()[:-9]),
    "damaged": lambda kept, _: kept.write_bytes(kept.read_bytes()[:-9] + b"some bytes"),
    "of another user": lambda kept, _: os.chown(kept, os.getuid() + 1, -1) if os.getuid() == 0 else kept.unlink(),
}


@pytest.mark.parametrize("change", [None, *OF_FILE, *OF_KEPT])
@pytest.mark.parametrize("options", [{}, {"drop_doubles": True, "filter_cfg": {"filter_empty_gt": True}}])
def test_rows_of_a_large_file_are_kept_until_it_changes(write, tmp_path, monkeypatch, options, change):
    data = content(bbox=[1, 2, 10, 20], segmentation=[[1, 2, 3, 4, 5, 6]])
    data["annotations"].append({**data["annotations"][0], "id": 6})
    path, parsed = write(data), []

    def built(**more):
        all_options = {"data_prefix": {"img": "images"}, "metainfo": {"classes": ("cat",)}, **options, **more}
        dataset = detection.CocoDataset(ann_file=str(path), **all_options)
        return dataset.cat_ids, [dataset[i] for i in range(len(dataset))]

    plain = built()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(detection, "KEPT", 0)
    monkeypatch.setattr(detection, "parse", lambda path: parsed.append(path) or json.loads(path.read_bytes()))
    assert built() == built() == plain
    assert len(parsed) == 1
    assert built(test_mode=True) == built(test_mode=True)
    assert len(parsed) == 2
    if change is not None:
        files = list(tmp_path.glob("hub/vitdense/rows*"))
        assert len(files) == 2
        for file in files:
            (OF_FILE | OF_KEPT)[change](file, path)
        assert (built() == plain) == (change in OF_KEPT)
        assert len(parsed) == 3


def test_rows_of_a_data_set_that_extends_ours_are_read_anew(write, monkeypatch):
    class Other(detection.CocoDataset):
        def parse_data_info(self, raw):
            return super().parse_data_info(raw) | {"more": 1}

    monkeypatch.setattr(detection, "KEPT", 0)
    found = Other(ann_file=str(write(content())), data_prefix={"img": ""}, metainfo={"classes": ("cat",)})
    assert found._kept_file() is None
    assert found[0]["more"] == 1


def test_what_is_kept_is_bounded_and_left_of_no_killed_write(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "ROOM", 25)
    for i, name in enumerate(("rows-a", "rows-b", "rows-c", "maps-a")):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (i, i))
    (tmp_path / "in").mkdir()
    old, new = (tmp_path / "in" / f".{letter * 32}.safetensors" for letter in "ef")
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    kept.evict(tmp_path, "rows")
    assert {path.name for path in tmp_path.iterdir()} == {"rows-b", "rows-c", "maps-a", "in"}
    assert [*(tmp_path / "in").iterdir()] == [new]


def test_what_another_version_kept_is_not_read(monkeypatch):
    before = kept.cache_file("rows", "a")
    monkeypatch.setattr("vitdense.__version__", "0.0")
    assert kept.cache_file("rows", "a") != before
