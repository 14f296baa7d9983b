"""A detector of random weights that finds something, for tests of its masks."""

import torch
from mmdet.structures import DetDataSample
from torchvision.ops import box_iou

from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.tasks import Detector, predict
from vitdense.runtime import paste

HEIGHT, WIDTH = 64, 96


def random_detector(recipe):
    cfg = load_config(recipe)
    cfg.model.test_cfg.rcnn.update(score_thr=0.05, max_per_img=8, nms={"type": "nms", "iou_threshold": 0.5})
    torch.manual_seed(3)
    model = build_model(cfg)
    model.init_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "fc_cls" in name or "conv_logits" in name:
                parameter.normal_(std=0.3)
    return cfg, model.state_dict()


def build(detector):
    cfg, weights = detector
    model = build_model(cfg).eval()
    model.load_state_dict(weights)
    return model


def view(image, scale=1, flip=None):
    axes = {None: [], "horizontal": [2], "vertical": [1], "diagonal": [1, 2]}[flip]
    pixels = image.repeat_interleave(scale, 1).repeat_interleave(scale, 2).flip(axes)  # [3, H * scale, W * scale]
    meta = {"img_shape": tuple(pixels.shape[1:]), "ori_shape": tuple(image.shape[1:]), "flip": flip is not None}
    meta |= {"scale_factor": (float(scale), float(scale)), "flip_direction": flip, "img_id": 1}
    return pixels, DetDataSample(metainfo=meta)


def image():
    torch.manual_seed(0)
    return torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8)


def assert_finds_as_predict(model):
    """The form for programs finds what mmdet does in a batch, of sides that no stride divides: random weights leave
    many objects a hair apart."""
    images = torch.randn(2, 3, 129, 171, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = [predict(model, image[None]) for image in images]
        fix(model)
        got = Detector(model).eval()(images)
    for i, want in enumerate(wanted):
        assert len(want) > 20
        order = want.scores.argsort(descending=True, stable=True)
        torch.testing.assert_close(got["scores"][i, : len(want)], want.scores[order], atol=1e-4, rtol=0)
        overlap = box_iou(got["boxes"][i], want.bboxes) * (got["labels"][i][:, None] == want.labels)
        has_area = (want.bboxes[:, 2:] > want.bboxes[:, :2]).all(1)
        assert (overlap.amax(0)[has_area] > 0.99).float().mean() > 0.95
        assert (got["scores"][i, len(want) :] == 0).all()
        assert (got["labels"][i, len(want) :] == -1).all()
        if "masks" in got:
            for j in has_area.nonzero()[:10, 0].tolist():
                k = int(overlap[:, j].argmax())
                pasted = paste(got["masks"][i, k].numpy(), got["boxes"][i, k].numpy(), (129, 171)) >= 0.5
                assert (pasted == want.masks[j].numpy()).mean() > 0.99
