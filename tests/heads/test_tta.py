"""Test-time augmentation of masks: a view gives what the detector gives, in the size and sides of the file."""

import pytest
import torch
from conftest import REPO

from vitdense.engine.config import build_model, load_config

pytest.importorskip("mmdet")
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict

from vitdense.heads import InstanceTTAModel

HEIGHT, WIDTH = 64, 96
DETECTORS = {"cascade": "cascade_swin_nano_shapes"}


@pytest.fixture(scope="module", params=DETECTORS.values(), ids=DETECTORS)
def detector(request):
    """A detector of random weights that finds something, as a config part and a state dict."""
    cfg = load_config(REPO / f"configs/{request.param}.py")
    cfg.model.test_cfg.rcnn.update(score_thr=0.05, max_per_img=8, nms={"type": "nms", "iou_threshold": 0.5})
    torch.manual_seed(3)
    model = build_model(cfg)
    model.init_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "fc_cls" in name or "conv_logits" in name:
                parameter.normal_(std=0.3)
    return cfg, model.state_dict()


def build(detector, with_tta):
    cfg, weights = detector
    model = build_model(cfg).eval()
    model.load_state_dict(weights)
    if not with_tta:
        return model
    tta_cfg = ConfigDict(nms={"type": "nms", "iou_threshold": 0.5}, max_per_img=8)
    return InstanceTTAModel(tta_cfg, module=model).eval()


def view(image, scale=1, flip=None):
    """A resized and flipped view as the pipeline makes it."""
    axes = {None: [], "horizontal": [2], "vertical": [1], "diagonal": [1, 2]}[flip]
    pixels = image.repeat_interleave(scale, 1).repeat_interleave(scale, 2).flip(axes)  # [3, H * scale, W * scale]
    meta = {"img_shape": tuple(pixels.shape[1:]), "ori_shape": tuple(image.shape[1:]), "flip": flip is not None}
    meta |= {"scale_factor": (float(scale), float(scale)), "flip_direction": flip, "img_id": 1}
    return pixels, DetDataSample(metainfo=meta)


def batch(*views):
    return {"inputs": [[pixels] for pixels, _ in views], "data_samples": [[sample] for _, sample in views]}


def image():
    torch.manual_seed(0)
    return torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8)


def run(detector, *views):
    (sample,) = build(detector, with_tta=True).test_step(batch(*views))
    return sample.pred_instances


def predict(detector, one_view):
    """What the detector itself gives for a view."""
    pixels, sample = one_view
    with torch.no_grad():
        (out,) = build(detector, with_tta=False).test_step({"inputs": [pixels], "data_samples": [sample]})
    assert len(out.pred_instances) > 2
    return out.pred_instances


def assert_same(got, want):
    torch.testing.assert_close(got.bboxes, want.bboxes)
    torch.testing.assert_close(got.scores, want.scores)
    assert torch.equal(got.labels, want.labels)
    assert got.masks.shape == want.masks.shape
    differ = (got.masks != want.masks).sum() / want.masks.sum()
    assert differ < 0.1  # probabilities are in steps of 1/255, and near 0.5 without training


@pytest.mark.parametrize("scale", [1, 2])
def test_one_view_gives_what_the_detector_gives(detector, scale):
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

    def masks(self, x, samples, merged):
        (sample,) = merged
        return [torch.full((len(sample.pred_instances), HEIGHT, WIDTH), next(levels), dtype=torch.uint8)]

    monkeypatch.setattr(InstanceTTAModel, "_predict_masks", masks)
    assert run(detector, *views).masks.all()
    levels = iter((255, 0, 100))  # mean 118.3
    found = run(detector, *views)
    assert not found.masks.any()
    alone = predict(detector, views[0])
    assert len(found) == 8  # max_per_img
    assert found.scores[0] >= alone.scores.max() - 1e-6


def test_an_image_without_detections(detector, monkeypatch):
    cfg, _ = detector
    monkeypatch.setattr(cfg.model.test_cfg.rcnn, "score_thr", 2.0)
    found = run(detector, view(image()), view(image(), flip="horizontal"))
    assert len(found) == 0
    assert found.masks.shape == (0, HEIGHT, WIDTH)
