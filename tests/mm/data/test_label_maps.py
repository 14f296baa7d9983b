from contextlib import nullcontext

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.mm.checks import data
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.data.faults import refuse
from vitdense.mm.errors import ConfigError


def segmentation(root, num_classes, prefixes=("images", "maps"), split="train", head=None, **dataset):
    steps = [{"type": name} for name in ("LoadImageFromFile", "LoadAnnotations", "PackSegInputs")]
    own = {"type": "BaseSegDataset", "data_prefix": dict(zip(("img_path", "seg_map_path"), prefixes))}
    own |= {"metainfo": {"classes": [f"class {i}" for i in range(num_classes)]}, "pipeline": steps, **dataset}
    given = {key: value for key, value in own.items() if value is not None}
    model = {"decode_head": {"num_classes": num_classes, **(head or {})}}
    loader = {"dataset": {"data_root": str(root), **given}}
    return Config({"default_scope": "mmseg", f"{split}_dataloader": loader, "model": model})


def check(cfg, splits):
    """The checks of the data alone: the configs here have nothing to train with."""
    sets = data_sets(cfg, splits)
    refuse((*data.files(cfg, sets), *data.contents(cfg, sets)))


@pytest.fixture
def maps(tmp_path):
    def write(*contents, dtype=np.uint8):
        for folder in ("images", "maps"):
            (tmp_path / folder).mkdir()
        for i, content in enumerate(contents):
            labels = Image.fromarray(np.tile(np.asarray(content, dtype), (4, 4)))
            labels.save(tmp_path / f"maps/{i:04}.png")
            Image.new("RGB", labels.size).save(tmp_path / f"images/{i:04}.jpg")
        return tmp_path

    return write


LOVEDA = dict(type="LoveDADataset", metainfo=None, img_suffix=".jpg")  # classes 1 to 7
RIGHT = [  # values of a label map, number of classes, options
    ([0, 3], 11, {}),  # not every class in the sample
    (range(151), 150, {"reduce_zero_label": True}),
    ([*range(11), 11], 11, {"head": {"ignore_index": 11}}),
    ([0, 1], 1, {"head": {"out_channels": 1}}),
    ([0, 1, 2], 3, {"reduce_zero_label": True, "split": "val"}),  # a validation set may lack the last class
    (range(300), 2, {"pipeline": []}),  # does not load labels
    ([0, 1, 2, 7], 7, LOVEDA),
    ([0, 1, 6, 255], 7, {**LOVEDA, "reduce_zero_label": False}),  # already reduced
]
OUTSIDE = r"hold {} \(first in .*0000.png.* 0 \(.*num_classes={},"
WRONG = [  # the same, and the message
    (range(151), 150, {}, OUTSIDE.format("150", 150)),
    ([*range(14), 255], 11, {"reduce_zero_label": True}, OUTSIDE.format("12, 13", 11)),
    ([0, 1, 255], 2, {"head": {"ignore_index": 9}}, OUTSIDE.format("255", 2)),
    ([0, 1, 300], 45, {}, OUTSIDE.format("300", 45)),  # 44 in the 8 bits that mmseg reads
    (range(11), 11, {"reduce_zero_label": True}, r"Got raw values 0 \(.*reduce_zero_label=False"),
    ([0, 1, 255], 2, {"reduce_zero_label": True, "split": "val"}, r"Got raw values 0 \(.*reduce_zero_label=False"),
    ([0, 1, 2, 7], 7, {**LOVEDA, "reduce_zero_label": False}, r"hold 7 .*Got raw values 0 \("),
    ([0, 1, 2, 6], 7, {**LOVEDA, "reduce_zero_label": False}, r"Got raw values 0 \(.*reduce_zero_label=True"),
    ([0, 0, 0, 4], 4, {}, r"raw values 0 \(75 %\), 4 \(25 %\) in 1 of 1 maps"),
    (range(0, 80, 2), 4, {}, r" 0 \(.*, 38 \(.*, \.\.\. 20 more"),
    ([0, 1], 2, {"seg_map_suffix": "_labels.png"}, r"seg_map_suffix.*0000_labels.png"),
    ([0, 1], 2, {"img_suffix": ".jpeg"}, "img_suffix"),
]


@pytest.mark.parametrize(
    ("values", "num_classes", "options", "message"), [*((*right, None) for right in RIGHT), *WRONG]
)
def test_values_of_label_maps(maps, values, num_classes, options, message):
    cfg = segmentation(maps(values, dtype=np.uint16 if np.max(values) > 255 else np.uint8), num_classes, **options)
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        check(cfg, ("train", "val"))


def test_label_maps_of_a_file_list_and_of_a_subset_of_classes(maps):
    root = maps([0, 1], [150], [0, 149])
    (root / "good.txt").write_text("0000\n0002\n")
    check(segmentation(root, 150, ann_file="good.txt"), ("train",))
    ade = dict(type="ADE20KDataset", ann_file="good.txt")
    check(segmentation(root, 2, **ade, metainfo={"classes": ["wall", "rug"]}), ("train",))  # others are ignored
