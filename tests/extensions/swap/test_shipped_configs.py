"""Every config that mmdet and mmseg ship with a Swin backbone, with ours in its place: the table of docs/parity.md."""

import re
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import mmdet.testing
import pytest
import torch
from conftest import REPO, relative_error
from mmdet.models.roi_heads.mask_heads import fcn_mask_head
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from vitdense.checkpoint.whole_models import fit_whole
from vitdense.extensions.swap.changes import channel_changes, model_changes
from vitdense.mm.config.base import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.query import nodes

pytestmark = pytest.mark.long

FOLDERS = {package: Path(find_spec(package).origin).parent / ".mim/configs" for package in ("mmdet", "mmseg")}
LANGUAGE = {"glip", "grounding_dino", "mm_grounding_dino"}  # folders: models with a language model
SHIPPED = [
    f"{package}::{path.relative_to(folder).as_posix()}"
    for package, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
    if not {"_base_", *LANGUAGE} & {*path.parts} and re.search("swin", path.read_text(), re.I)
]
BOXES = {"pred_instances.bboxes", "pred_instances.scores", "pred_instances.labels"}
MASKS = {*BOXES, "pred_instances.masks"}
CLASSES = {"seg_logits.data", "pred_sem_seg.data"}
QUICK = {  # and what they predict
    "mmdet::dino/dino-5scale_swin-l_8xb2-12e_coco.py": BOXES,
    "mmdet::mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco.py": MASKS,
    "mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py": MASKS,
    "mmseg::mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py": CLASSES,
    "mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py": CLASSES,
}
SIDE = 64  # of square images, in pixels
NANO = {"embed_dims": 32, "depths": [2] * 5, "num_heads": [1, 2, 4, 8, 16]}  # of the first stages
# Sizes on which no other part of a model depends, and their upper limits.
LIMITS = {
    "num_layers": 2,
    "num_queries": 50,
    "nms_pre": 100,
    "max_per_img": 20,
    "num": 64,
    "num_classes": 200,
    "fc_out_channels": 64,
}
LIMITS |= dict.fromkeys(("score_thr", "object_mask_thr", "iou_thr"), 0.0)  # random weights are unsure
OUTPUTS = ("pred_instances", "pred_panoptic_seg", "pred_track_instances", "pred_sem_seg", "seg_logits")

every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SHIPPED]
)


def config_of(name):
    cfg = Config.fromfile(find_config(name))
    for node in (cfg.model, cfg.model.backbone):
        node.init_cfg = None  # no downloads
        node.pop("pretrained", None)
    # Two of them do not build with mmdet 3.5.1 and mmseg 1.4.2, whatever the backbone.
    if "fcos_swinb" in name:  # FPN has no force_grad_on_level, which is for the unused first map
        del cfg.model.neck.force_grad_on_level
        cfg.model.backbone.out_indices = (1, 2, 3)
        cfg.model.neck.update(in_channels=cfg.model.neck.in_channels[1:], start_level=0)
    if "levir" in name:
        cfg.model.data_preprocessor.update(mean=None, std=None)  # six values; one or three are allowed
    return cfg


def reduced(cfg):
    backbone = cfg.model.backbone
    sizes = {key: value[: len(backbone.depths)] if isinstance(value, list) else value for key, value in NANO.items()}
    old, new = (
        [dims * 2**i for i in backbone.get("out_indices", range(4))]
        for dims in (backbone.embed_dims, sizes["embed_dims"])
    )
    # Without drop path, which leaves out blocks in training: they would have no gradient.
    cfg.merge_from_dict(
        {"model": {**channel_changes(cfg.model, old, new), "backbone": {**sizes, "drop_path_rate": 0.0}}}
    )
    for node in nodes(cfg.model):
        numbers = [key for key in LIMITS if isinstance(node.get(key), (int, float))]
        node.update({key: min(node[key], LIMITS[key]) for key in numbers})
    for node in nodes(cfg.model.data_preprocessor):
        if "size" in node:  # of images in training
            node["size"] = (SIDE, SIDE)
    return cfg


def twins(cfg):
    theirs = build_model(deepcopy(cfg))
    theirs.init_weights()
    with torch.no_grad():
        for name, value in theirs.state_dict().items():
            if value.is_floating_point():  # norms and biases too: 1 and 0 would hide a swap
                noise = torch.rand_like(value) if name.endswith("running_var") else torch.randn_like(value)
                value.add_(noise, alpha=0.02)
    cfg.merge_from_dict({"model": model_changes(cfg)})
    assert cfg.model.backbone.type == "vitdense.Swin"
    ours = build_model(deepcopy(cfg))
    state, report = fit_whole(ours, {"state_dict": theirs.state_dict()})
    assert report.scheme == "mmdet"
    assert report.share == 1
    assert not report.resized
    assert all(key.endswith(".attn.bias.index") for key in report.ignored)
    ours.load_state_dict(state, strict=True)
    return theirs.eval(), ours.eval()


def feature_error(theirs, ours, cfg):
    x = torch.randn(1, cfg.model.backbone.get("in_channels", 3), 97, 131)
    with torch.no_grad():
        return max(relative_error(a, b) for a, b in zip(ours.backbone(x), theirs.backbone(x), strict=True))


def batch(cfg, num_images):
    if cfg.model.type == "Mask2FormerVideo":
        return mmdet.testing.demo_track_inputs(1, 2, image_shapes=(3, SIDE, SIDE), num_classes=10, with_mask=True)
    if cfg.default_scope == "mmdet":
        has_masks = any("mask" in key for node in nodes(cfg.model) for key in node)
        return mmdet.testing.demo_mm_inputs(
            num_images, (3, SIDE, SIDE), num_items=[3, 2][:num_images], with_mask=has_masks, with_semantic=has_masks
        )
    channels = cfg.model.backbone.get("in_channels", 3)
    samples = []
    for _ in range(num_images):
        meta = {"img_shape": (SIDE, SIDE), "ori_shape": (SIDE, SIDE)}
        samples.append(SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=torch.randint(2, (1, SIDE, SIDE)))))
    images = [torch.randint(256, (channels, SIDE, SIDE), dtype=torch.uint8) for _ in samples]
    return {"inputs": images, "data_samples": samples}


def predictions(model, data):
    """The final outputs, by name. In float64, so that rounding does not swap the places of equal scores."""
    data = model.data_preprocessor(deepcopy(data), False)
    with torch.no_grad():
        samples = model.double()(data["inputs"].double(), data["data_samples"], mode="predict")
    model.float()
    samples = samples[0].video_data_samples if hasattr(samples[0], "video_data_samples") else samples
    found = {}
    for i, sample in enumerate(samples):
        for field in (field for field in OUTPUTS if field in sample):
            for key, value in sample.get(field).items():
                found[f"{i}.{field}.{key}"] = value
    return found


@every
def test_reduced_model_predicts_the_same_and_trains(name, monkeypatch):
    paste = fcn_mask_head._do_paste_mask  # of float32 only
    monkeypatch.setattr(
        fcn_mask_head,
        "_do_paste_mask",
        lambda masks, boxes, *args, **kw: paste(masks.float(), boxes.float(), *args, **kw),
    )
    cfg = reduced(config_of(name))
    theirs, ours = twins(cfg)
    features = feature_error(theirs, ours, cfg)
    assert features < 1e-5
    data = batch(cfg, 1)
    got, expected = predictions(ours, data), predictions(theirs, data)
    assert got.keys() == expected.keys()
    assert QUICK.get(name, set()) <= {key.partition(".")[2] for key in expected}
    assert any(torch.as_tensor(value).unique().numel() > 1 for value in expected.values())
    errors = {}
    for key, value in expected.items():
        a, b = torch.as_tensor(got[key]).double(), torch.as_tensor(value).double()
        assert a.shape == b.shape, key
        errors[key.partition(".")[2]] = error = float((a - b).abs().max()) if b.numel() else 0.0
        bound = 1e-6 if getattr(value, "dtype", None) == torch.float32 else 1e-8  # K-Net ends in float32
        assert error < bound, key
    ours.train()
    data = ours.data_preprocessor(batch(cfg, 2), True)
    loss, _ = ours.parse_losses(ours(**data, mode="loss"))
    loss.backward()
    assert loss.isfinite()
    for parameter, value in ours.backbone.named_parameters():
        assert value.grad.isfinite().all(), parameter
        assert value.grad.any(), parameter
    shown = ", ".join(f"{key} {error:.1e}" for key, error in errors.items())
    print(f"| {name} | features {features:.1e} | {shown} | loss {loss.item():.2f} |")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_full_model_has_the_same_features(name):
    cfg = config_of(name)
    error = feature_error(*twins(cfg), cfg)
    print(f"| {name} | full features {error:.1e} |")
    assert error < 1e-5


def test_docs_have_every_shipped_config():
    text = (REPO / "docs/parity.md").read_text()
    assert [name for name in SHIPPED if f"`{name.partition('::')[2].removesuffix('.py')}`" not in text] == []
