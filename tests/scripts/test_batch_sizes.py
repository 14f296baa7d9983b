"""Sizes of training batches: from the config, by the seed, as real images and mm's data preprocessor have them."""

import json
from collections import Counter

import pytest
import torch
from mmengine import Config
from mmengine.registry import MODELS, init_default_scope

import batch_sizes


@pytest.fixture(scope="module")
def shapes():
    return batch_sizes.draw_batch_sizes(24)


@pytest.mark.long
def test_a_seed_draws_the_same_batches_and_fewer_steps_the_first_of_them(shapes):
    assert batch_sizes.draw_batch_sizes(6) == shapes[:6]
    assert batch_sizes.draw_batch_sizes(6, seed=1) != shapes[:6]


@pytest.mark.long
def test_batches_follow_the_config(shapes):
    """Multiples of 32 from the shortest side on, up to the longest; both orientations; nearly every size is new."""
    assert all(batch == 2 and h % 32 == w % 32 == 0 for batch, h, w in shapes)
    assert all(min(h, w) >= 480 and max(h, w) <= 1344 for _, h, w in shapes)
    assert {h < w for _, h, w in shapes} == {False, True}
    assert len(set(shapes)) > 12


def test_padding_equals_the_data_preprocessor():
    cfg = Config.fromfile(batch_sizes.CONFIG)
    init_default_scope(cfg.default_scope)
    preprocessor = MODELS.build({**cfg.model.data_preprocessor, "pad_mask": False})
    for sizes in ([(33, 65), (40, 31)], [(64, 96), (32, 96)], [(1, 129), (31, 128)]):
        images = [torch.zeros(3, *size, dtype=torch.uint8) for size in sizes]
        shape = preprocessor({"inputs": images, "data_samples": None})["inputs"].shape
        assert batch_sizes.padded(sizes, cfg.model.data_preprocessor.pad_size_divisor) == (shape[0], *shape[2:])


def test_sizes_match_coco(shared_data):
    files = [shared_data / f"coco/annotations/instances_{split}2017.json" for split in ("train", "val")]
    images = [image for file in files for image in json.loads(file.read_text())["images"]]
    assert batch_sizes.size_counts() == Counter((image["height"], image["width"]) for image in images)
