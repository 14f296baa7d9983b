"""Test-time augmentation of masks: a view gives what the detector gives, in the size and sides of the file."""

import copy

import pytest
import torch
from conftest import REPO
from mmengine.config import ConfigDict
from random_detector import HEIGHT, WIDTH, build, image, random_detector, view

from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.research.htcpp.tta import InstanceTTAModel


@pytest.fixture(scope="module", params=["cascade", "htc"])
def detector(request):
    return random_detector(f"{request.param}_swin_nano_shapes")


def build_tta(detector, nms="nms"):
    tta_cfg = {"nms": {"type": nms, "iou_threshold": 0.5}, "max_per_img": 8}
    return InstanceTTAModel(tta_cfg, module=build(detector)).eval()


def batch(*views):
    return {"inputs": [[pixels] for pixels, _ in views], "data_samples": [[sample] for _, sample in views]}


def run(detector, *views):
    (sample,) = build_tta(detector).test_step(batch(*views))
    return sample.pred_instances


def predict(detector, one_view):
    pixels, sample = one_view
    model = build(detector)
    model.roi_head.test_cfg = ConfigDict(model.roi_head.test_cfg, mask_thr_binary=-1)
    with torch.no_grad():
        (out,) = model.test_step({"inputs": [pixels], "data_samples": [sample]})
    found = out.pred_instances
    assert len(found) > 2
    found.masks = found.masks / 255 >= 0.5
    assert found.masks.any(dim=(1, 2)).sum() > 1
    return found


def assert_same(got, want):
    torch.testing.assert_close(got.bboxes, want.bboxes)
    torch.testing.assert_close(got.scores, want.scores)
    assert torch.equal(got.labels, want.labels)
    assert torch.equal(got.masks, want.masks)


@pytest.mark.parametrize("scale", [1, 2])
def test_one_view_equals_the_detector(detector, scale):
    one = view(image(), scale)
    assert_same(run(detector, one), predict(detector, one))


@pytest.mark.parametrize(("flip", "axes"), [("horizontal", [2]), ("vertical", [1]), ("diagonal", [1, 2])])
def test_a_flipped_view_is_flipped_back(detector, flip, axes):
    """The view of an image is the plain view of the flipped image."""
    want = predict(detector, view(image().flip(axes)))
    x1, y1, x2, y2 = want.bboxes.unbind(1)
    if 2 in axes:
        x1, x2 = WIDTH - x2, WIDTH - x1
    if 1 in axes:
        y1, y2 = HEIGHT - y2, HEIGHT - y1
    want.bboxes, want.masks = torch.stack([x1, y1, x2, y2], dim=1), want.masks.flip(axes)
    assert_same(run(detector, view(image(), flip=flip)), want)


def test_masks_of_views_are_averaged_and_boxes_merged(detector, monkeypatch):
    views = [view(image()), view(image()), view(image(), scale=2, flip="horizontal")]
    levels = iter((255, 0, 200))  # mean 151.7

    def masks(self, x, samples, semantic, merged):
        (sample,) = merged
        return [torch.full((len(sample.pred_instances), HEIGHT, WIDTH), next(levels), dtype=torch.uint8)]

    monkeypatch.setattr("vitdense.research.htcpp.tta.InstanceTTAModel._predict_masks", masks)
    assert run(detector, *views).masks.all()
    levels = iter((255, 0, 100))  # mean 118.3
    found = run(detector, *views)
    assert not found.masks.any()
    alone = predict(detector, views[0])
    assert len(found) == 8  # max_per_img
    assert found.scores[0] >= alone.scores.max() - 1e-6


def test_an_image_without_detections(detector):
    cfg, weights = copy.deepcopy(detector)
    cfg.model.test_cfg.rcnn.score_thr = 2.0
    found = run((cfg, weights), view(image()), view(image(), flip="horizontal"))
    assert len(found) == 0
    assert found.masks.shape == (0, HEIGHT, WIDTH)


def test_images_of_a_batch_are_independent(detector):
    first, second = image(), image().flip(0)
    views = [[view(x), view(x, flip="horizontal")] for x in (first, second)]
    data = {
        "inputs": [[one[i][0] for one in views] for i in range(2)],
        "data_samples": [[one[i][1] for one in views] for i in range(2)],
    }
    together = build_tta(detector, "soft_nms").test_step(data)
    for x, got in zip((first, second), together, strict=True):
        (want,) = build_tta(detector, "soft_nms").test_step(batch(view(x), view(x, flip="horizontal")))
        torch.testing.assert_close(got.pred_instances.bboxes, want.pred_instances.bboxes)
        assert (got.pred_instances.masks == want.pred_instances.masks).float().mean() > 0.999


def test_other_detectors_are_refused():
    cfg = load_config(REPO / "configs/atss_swin_t_coco.py")
    with torch.device("meta"), pytest.raises(ValueError, match="roi_head"):
        build_model(ConfigDict(model={"type": "vitdense.InstanceTTAModel", "tta_cfg": {}, "module": cfg.model}))
