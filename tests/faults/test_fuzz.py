"""Damaged files and odd options: every outcome is success or an error of ours.

``make test WHAT=faults EXAMPLES=10000``.
"""

import copy
import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset
from mmdet.datasets.transforms import LoadAnnotations
from safetensors.torch import save_file

from vitdense import ConvNeXt
from vitdense.checkpoint.load import load_pretrained
from vitdense.errors import OptionError
from vitdense.mm.checks import findings
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.load import load_config
from vitdense.mm.data.coco import examine, forget, read
from vitdense.mm.data.faults import Fault

pytestmark = pytest.mark.slow
fuzz = settings(
    max_examples=int(os.environ.get("EXAMPLES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["7", 1e300, -1e9, 2**64, [], {}, [[]], [1, 2], "{{$HOME:x}}", float("nan"), "\x1b[31m", "../.."]),
)
BOXES = [
    {"id": i, "image_id": i, "category_id": 1, "iscrowd": 0, "area": 80.0, "bbox": [1, 2, 10, 8], "segmentation": mask}
    for i, mask in enumerate(([[1, 2, 11, 2, 11, 10]], {"size": [30, 40], "counts": [100, 10, 1090]}), 1)
]
CONTENT = {
    "images": [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in (1, 2)],
    "annotations": BOXES,
    "categories": [{"id": 1, "name": "owl"}, {"id": 2, "name": "fox"}],
}


def places(node, path=()):
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = list(places(CONTENT))[1:]


def changed(changes):
    content = copy.deepcopy(CONTENT)
    for path, value in changes:
        node = content
        for key in path[:-1]:
            inside = isinstance(node, dict) and key in node
            inside = inside or (isinstance(node, list) and isinstance(key, int) and key < len(node))
            node = node[key] if inside else None
        if isinstance(node, dict):
            node[path[-1]] = value
            if value is ...:
                del node[path[-1]]
        elif isinstance(node, list) and path[-1] in range(len(node)) and value is not ...:
            node[path[-1]] = value
    return content


@fuzz
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.one_of(st.just(...), ODD)), min_size=1, max_size=3))
def test_annotations_that_pass_are_loaded(tmp_path, changes):
    path = tmp_path / "all.json"
    path.write_text(json.dumps(changed(changes)))
    forget()  # the last file may be as old and as long
    try:
        found = examine(read(path))
    except OptionError:
        return
    if any(fault.grave for fault in found.faults):
        return
    options = {"metainfo": {"classes": ("owl",)}, "data_prefix": {"img": ""}, "pipeline": []}
    dataset = CocoDataset(ann_file=str(path), **options)
    load = LoadAnnotations(with_bbox=True, with_mask=not found.without_mask)  # another check compares
    for i in range(len(dataset)):
        load({**dataset.get_data_info(i), "ori_shape": (30, 40)})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("checkpoints"), ConvNeXt({"embed_dims": 4, "depths": (1, 1, 1, 1)})
    torch.save({"state_dict": model.state_dict(), "meta": {"epoch": 3}}, folder / "of.pth")
    save_file(model.state_dict(), folder / "of.safetensors")
    return model, folder


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@fuzz
@given(data=st.data())
def test_damaged_checkpoints_are_refused_or_read(checkpoints, suffix, data):
    model, folder = checkpoints
    content = bytearray((folder / f"of{suffix}").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path = folder / f"damaged{suffix}"
    path.write_bytes(content)
    try:
        load_pretrained(model, path)
    except OptionError:
        return
    assert all(x.isfinite().all() for x in model.state_dict().values())


@pytest.fixture(scope="module")
def keys():
    cfg = load_config("cascade_swin_nano_shapes")
    return [".".join(map(str, path)) for path in places(cfg.to_dict()) if path]


@settings(fuzz, max_examples=fuzz.max_examples // 4)
@given(data=st.data())
def test_odd_options_are_refused_or_checked(keys, data):
    options = data.draw(st.dictionaries(st.sampled_from(keys), ODD, min_size=1, max_size=2))
    try:
        cfg = load_config("cascade_swin_nano_shapes", options)
    except OptionError:
        return
    assert all(isinstance(found, Fault) for found in findings(cfg, ("train", "val"), data_sets(cfg, ("train", "val"))))
