"""`vitdense new ... --val 0.2`: which images validate."""

import random
from collections import Counter

import pytest

from vitdense.mm.data.split import split_images
from vitdense.mm.errors import ConfigError

CLASSES = {1: 40, 2: 12, 3: 5, 4: 2, 5: 1}  # category -> images, of which each has one or two categories


def file_of(images):
    pairs = [(i, kind) for i, kinds in enumerate(images) for kind in kinds]
    return {
        "info": "kept",
        "images": [{"id": i, "file_name": f"{i:03}.jpg"} for i in range(len(images))],
        "annotations": [{"id": n, "image_id": i, "category_id": kind} for n, (i, kind) in enumerate(pairs)],
        "categories": [{"id": kind, "name": f"class {kind}"} for kind in CLASSES],
    }


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_each_class_has_its_share_in_both_parts(share, capsys):
    rare = [(kind, 1) if kind % 2 else (kind,) for kind in (2, 3, 4, 5) for _ in range(CLASSES[kind])]
    content = file_of([*rare, *[(1,)] * (CLASSES[1] - 6), *[()] * 10])
    train, val = split_images(content, share)
    assert "class 5" in capsys.readouterr().out
    names = [{one["file_name"] for one in part["images"]} for part in (train, val)]
    assert sorted(names[0] | names[1]) == [one["file_name"] for one in content["images"]]
    assert not names[0] & names[1]
    assert train["info"] == val["info"] == "kept"
    assert train["categories"] == val["categories"] == content["categories"]
    for part in (train, val):
        assert {one["image_id"] for one in part["annotations"]} <= {one["id"] for one in part["images"]}
    found = Counter(kind for _, kind in {(one["image_id"], one["category_id"]) for one in val["annotations"]})
    for kind, total in CLASSES.items():
        expected = min(max(round(share * total), 1), total - 1)
        assert abs(found[kind] - expected) <= 1, kind
        assert found[kind] < total
        assert found[kind] or total == 1
    shuffled = {**content, "images": random.Random(1).sample(content["images"], len(content["images"]))}
    assert {one["file_name"] for one in split_images(shuffled, share)[1]["images"]} == names[1]


def test_images_without_an_object():
    train, val = split_images(file_of([()] * 10), 0.2)
    assert (len(train["images"]), len(val["images"])) == (8, 2)


@pytest.mark.parametrize("images", [[(1,)], [()], [(1,), (2,)]])
def test_without_an_image_to_spare(images):
    with pytest.raises(ConfigError, match=r"--val 0\.2"):
        split_images(file_of(images), 0.2)
