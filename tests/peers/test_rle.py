"""Masks are written and read as pycocotools does."""

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData
from pycocotools import mask as rle

from vitdense.mm.data.coco import outline
from vitdense.mm.heads.rle_masks import fields_of
from vitdense.results.result import Result, codes_of


def masks(rng, size):
    made = np.zeros((6, *size), bool)
    made[1] = True
    made[2, -1, -1] = True
    made[3, :, ::2] = True
    made[4, size[0] // 3 :, : size[1] // 2 + 1] = True
    made[5] = rng.random(size) < 0.5
    return made


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (13, 8), (40, 65)])
def test_codes(size):
    drawn = masks(np.random.default_rng(0), size)
    want = [rle.encode(np.asfortranarray(mask, np.uint8)) for mask in drawn]
    boxes, scores, labels = torch.zeros(6, 4), torch.ones(6), torch.zeros(6, dtype=torch.long)
    instances = InstanceData(bboxes=boxes, scores=scores, labels=labels, masks=torch.from_numpy(drawn))
    for codes in (
        fields_of(instances)["rle"],
        codes_of(Result(image=None, names=("a",), palette=[(0, 0, 0)], boxes=boxes.numpy(), masks=drawn)),
    ):
        assert [one["counts"].encode() for one in codes] == [one["counts"] for one in want]
        assert [one["size"] for one in codes] == [list(size)] * 6
        read = Result(image=None, names=("a",), palette=[(0, 0, 0)], boxes=boxes.numpy(), rle=codes)
        np.testing.assert_array_equal([read.mask(i) for i in range(6)], drawn)
        for code in codes:
            assert outline(code) == (rle.toBbox(code).tolist(), rle.area(code))
