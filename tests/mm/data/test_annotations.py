import gzip
import json

import pytest

from vitdense.mm.checks.masks import check_masks
from vitdense.mm.data.coco import count_used, examine, read_annotations
from vitdense.mm.errors import ConfigError


def content(**changes):
    """Two images of 40x30 pixels, ids with gaps, one annotation in the first; `changes` are of that annotation."""
    annotation = {"id": 5, "image_id": 70, "category_id": 9, "bbox": [1, 2, 10, 20], "area": 200} | changes
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in (70, 8)]
    return {"images": images, "annotations": [annotation], "categories": [{"id": 9, "name": "cat"}]}


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "some.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def test_counts(write):
    data = content(segmentation=[[1, 2, 3, 4, 5, 6]], iscrowd=1)
    data["annotations"] += content(id=6)["annotations"]
    found = examine(read_annotations(write(data)))
    assert (len(found.images), found.empty, found.annotations, found.crowd, found.with_mask) == (2, 1, 2, 1, 1)
    assert found.boxes == {"cat": 2}
    assert not found.errors
    assert not found.warnings


def test_boxes_that_touch_or_round_over_the_edge_are_no_fault():
    found = examine(content(bbox=[-0.5, 0, 41, 30]))
    assert not found.warnings


@pytest.mark.parametrize(
    ("changes", "kind", "fault"),
    [
        ({"bbox": [1, 2, 0.5, 20]}, "warnings", "no area"),
        ({"bbox": [40, 2, 10, 10]}, "warnings", "outside"),
        ({"bbox": [35, 2, 10, 10]}, "warnings", "over the edge"),
        ({"bbox": [1, 2, 3]}, "errors", "four numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "errors", "four numbers"),
        ({"image_id": 71}, "errors", "image that is not in the file"),
        ({"category_id": 0}, "errors", "category ids"),
    ],
)
def test_fault_of_an_annotation_is_one_line_with_its_id(changes, kind, fault):
    found = examine(content(**changes))
    (line,) = getattr(found, kind)
    assert fault in line
    assert line.startswith("1 ")
    assert line.endswith(" 0" if fault == "category ids" else " 5")


HALF = 40 * 15
RLE = {"size": [30, 40], "counts": [HALF, HALF]}


@pytest.mark.parametrize(
    ("mask", "fault"),
    [
        ([[1, 2, 3, 4, 5, 6]], None),
        (RLE, None),
        ({"size": [30, 40], "counts": "X_1P;"}, "counts"),  # of fewer pixels
        ([[1, 2, 3, 4]], "three points"),
        ([[1, 2]], "three points"),
        ([[1, 2, 3, 4, 5, 6, 7]], "half a point"),
        ([1, 2, 3, 4, 5, 6], "polygons"),
        ([[[1, 2], [3, 4], [5, 6]]], "three points"),
        ([[1, 2, 3, float("nan"), 5, 6]], "finite"),
        ([[1, 2, 3, "4", 5, 6]], "finite"),
        ([[1, 2, 1e9, 4, 5, 6]], "far outside"),  # ends the process in pycocotools
        ("mask", "neither polygons nor RLE"),
        ({"a": 1}, "neither polygons nor RLE"),
        ({"counts": [1200]}, "neither polygons nor RLE"),
        (RLE | {"size": [40, 30]}, "another size"),
        (RLE | {"size": [10**12, 40]}, "another size"),
        (RLE | {"counts": [10]}, "counts"),
        (RLE | {"counts": [HALF, HALF, 1]}, "counts"),
        (RLE | {"counts": [-5, 1205]}, "counts"),
        (RLE | {"counts": "garbage"}, "counts"),
    ],
)
def test_faults_of_masks(mask, fault):
    lines = examine(content(segmentation=mask)).errors
    assert [line.split(" ", 1)[0] for line in lines] == ["1"] * (fault is not None)
    assert all(fault in line and line.endswith(" 5") for line in lines)


@pytest.mark.parametrize("changes", [{"iscrowd": 1}, {"ignore": 1}, {"area": 0}])
def test_annotations_of_which_none_counts(changes):
    assert any("none counts" in line for line in examine(content(**changes)).errors)


@pytest.mark.parametrize("value", [0, -3, float("nan"), float("inf")])
def test_images_without_size(value):
    data = content()
    data["images"][1]["width"] = value
    assert any("no width or height above 0: images 8" in line for line in examine(data).errors)


@pytest.mark.parametrize(("kind", "key"), [("categories", "name"), ("images", "file_name")])
def test_names_that_steer_a_terminal(kind, key):
    steering = content()
    steering[kind][0][key] = "\x1b[31mred"
    (line,) = examine(steering).errors
    assert "control characters" in line
    assert str(ConfigError(line)).endswith(r"\x1b[31mred")


@pytest.mark.parametrize("kind", ["images", "annotations", "categories"])
def test_repeated_ids(kind):
    data = content()
    data[kind].append(data[kind][0])
    assert any(line.startswith(f"1 {kind} have the same id") for line in examine(data).errors)


def test_long_lists_of_ids_are_cut():
    data = content()
    data["annotations"] = [dict(content(area=0)["annotations"][0], id=i) for i in range(15)]
    (line,) = examine(data).warnings
    assert line.startswith("15 ")
    assert line.endswith("... 5 more")


@pytest.mark.parametrize(
    ("kind", "key"), [("images", "height"), ("annotations", "area"), ("annotations", "bbox"), ("categories", "name")]
)
def test_missing_key_is_named(write, kind, key):
    data = content()
    del data[kind][0][key]
    with pytest.raises(ConfigError, match=rf"1 of \d {kind} have no '{key}'"):
        read_annotations(write(data))


@pytest.mark.parametrize("text", ["{", "[]", '{"images": []}', "[" * 10**5, json.dumps(content()) + "{}"])
def test_file_that_is_not_coco_is_named(write, text):
    with pytest.raises(ConfigError, match=r"some\.json"):
        read_annotations(write(text))


@pytest.mark.parametrize(
    ("encode", "fits"),
    [
        (lambda text: text.encode("utf-8-sig"), True),
        (lambda text: text.encode("utf-16"), True),  # JSON says which it is
        (lambda text: text.replace("cat", "K\u00e4fer").encode("latin-1"), False),
        (lambda text: gzip.compress(text.encode()), False),
        (lambda text: text.encode()[:-9], False),
    ],
    ids=["BOM", "UTF-16", "Latin-1", "gzip", "cut"],
)
def test_encodings(tmp_path, encode, fits):
    path = tmp_path / "some.json"
    path.write_bytes(encode(json.dumps(content(), ensure_ascii=False)))
    if fits:
        assert len(read_annotations(path)["images"]) == 2
    else:
        with pytest.raises(ConfigError, match=r"some\.json is not JSON in UTF-8"):
            read_annotations(path)


@pytest.mark.parametrize(
    ("kind", "items"), [("annotations", None), ("annotations", {"a": 1}), ("images", ["a"]), ("annotations", [None])]
)
def test_lists_of_something_else_are_named(write, kind, items):
    with pytest.raises(ConfigError, match=f"got {kind} .*expected a list of objects"):
        read_annotations(write(content() | {kind: items}))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("annotations", "area", None), ("annotations", "id", "a"), ("images", "width", "40"), ("categories", "name", 3)],
)
def test_values_of_another_type_are_named(write, kind, key, value):
    data = content()
    data[kind][0][key] = value
    with pytest.raises(ConfigError, match=f"{kind} have no '{key}' of type"):
        read_annotations(write(data))


def test_images_that_are_used_for_training():
    data = content()  # a box in one of two images of 40x30
    assert count_used(data, ["cat"], {}) == 2
    assert count_used(data, ["cat"], {"filter_empty_gt": True}) == 1
    assert count_used(data, ["dog"], {"filter_empty_gt": True}) == 0
    assert count_used(data, ["cat"], {"min_size": 32}) == 0


def test_file_of_test_images_has_no_annotations(write):
    data = content()
    del data["annotations"]
    assert examine(read_annotations(write(data))).annotations == 0


@pytest.mark.parametrize(
    "pipeline",
    [
        [{"type": "LoadAnnotations", "with_mask": True}],
        [{"type": "RandomChoice", "transforms": [[{"type": "LoadAnnotations", "with_mask": True}]]}],
    ],
)
def test_missing_masks_name_the_way_out_if_the_pipeline_loads_them(write, pipeline):
    dataset = {"ann_file": str(write(content())), "pipeline": pipeline}
    with pytest.raises(ConfigError, match=r"train_dataloader: 1 of 1 annotations .*--boxes"):
        check_masks("train_dataloader", dataset)
    check_masks("train_dataloader", dataset | {"pipeline": [{"type": "LoadAnnotations", "with_bbox": True}]})
    write(content(segmentation=[[1, 2, 3, 4, 5, 6]]))
    check_masks("train_dataloader", dataset)
