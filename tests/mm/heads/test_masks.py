"""Masks of a detector as RLE: the pixels of mmdet's, for the detections that count."""

import copy

import pytest
import torch
from conftest import needs_research
from pycocotools import mask as rle
from random_detector import HEIGHT, WIDTH, build, image, random_detector, view

from vitdense.mm.config.model import use_rle


@pytest.fixture(scope="module", params=["cascade", pytest.param("htc", marks=needs_research)])
def detector(request):
    return random_detector(f"{request.param}_swin_nano_shapes")


def found_by(detector, score_thr=0.0):
    pixels, sample = view(image(), scale=2)
    sample.set_metainfo({"mask_score_thr": score_thr})
    with torch.no_grad():
        (out,) = build(detector).test_step({"inputs": [pixels], "data_samples": [sample]})
    return out.pred_instances


def as_rle(detector):
    cfg = copy.deepcopy(detector[0])
    use_rle(cfg.model)
    return cfg, detector[1]


def test_masks_as_rle_equal_mmdet(detector):
    want, got = found_by(detector), found_by(as_rle(detector))
    assert len(want) > 2
    assert want.masks.any()
    for key in ("bboxes", "scores", "labels"):
        assert torch.equal(got[key], want[key])
    assert [rle.decode(mask).tolist() for mask in got.masks] == want.masks.int().tolist()


def test_masks_as_rle_are_not_made_below_the_score(detector):
    want = found_by(detector)
    threshold = want.scores.median().item()
    got = found_by(as_rle(detector), threshold)
    assert torch.equal(got.bboxes, want.bboxes)
    assert [mask is not None for mask in got.masks] == (want.scores >= threshold).tolist()
    kept = got[got.scores >= threshold]
    assert [mask["size"] for mask in kept.masks] == [[HEIGHT, WIDTH]] * len(kept)
