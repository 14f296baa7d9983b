"""Backbones without configs of their own, in Cascade Mask R-CNN and UPerNet on the embedded data set.

Two iterations of training, and an evaluation.
"""

import math
import re

import pytest
import torch
from mmengine.config import ConfigDict

import vitdense
from vitdense.families import backbone_class
from vitdense.mm.config.load import load_config
from vitdense.mm.train.launch import train

changes = pytest.importorskip("vitdense.extensions.swap.changes")
pytest.importorskip("mmdet")
pytest.importorskip("mmseg")

NANO = dict(embed_dims=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8))
PLAIN = dict(embed_dims=32, depth=4, num_heads=2)
CONV = dict(embed_dims=16, depths=(1, 1, 2, 1))
QUICK = ("nat", "resnet")  # the others are slow
CONFIGS = ("cascade_swin_nano_shapes", "upernet_swin_nano_shapes")
BACKBONES = {
    "swin, sliding windows": dict(type="SlidingSwin", arch=NANO),
    "swin, positions alone": dict(type="PositionSwin", arch=NANO),
    "swin-mixer": dict(type="SwinMixer", arch=NANO),
    "nat": dict(type="NAT", arch={**NANO, "mlp_ratio": 2.0, "layer_scale": 1e-5}),
    "resnet": dict(type="ResNet", arch=CONV, norm_eval=False),
    "resnet, non-local": dict(
        type="NonLocalResNet", arch=CONV, attention=dict(kind="nonlocal", after=((2, 0),)), norm_eval=False
    ),
    "resnet, SAGAN": dict(
        type="NonLocalResNet", arch=CONV, attention=dict(kind="sagan", after=((2, 0),)), norm_eval=False
    ),
    "sasa": dict(type="SASA", arch={**CONV, "num_heads": 4, "kernel": 5}, norm_eval=False),
    "mvit v1": dict(
        type="MViT",
        arch=dict(
            embed_dims=16, depths=(1, 1, 2, 1), num_heads=1, growth="mlp", pool="max", relative_position=False,
            absolute_position=True, residual_pooling=False,
        ),
        pretrain_img_size=128,
    ),
    "mixer, windows": dict(type="Mixer", arch=dict(embed_dims=32, depth=4), pretrain_img_size=128),
    "resmlp, resize": dict(
        type="Mixer",
        arch=dict(embed_dims=32, depth=4, block="resmlp", layer_scale=0.1),
        pretrain_img_size=128,
        transfer="resize",
    ),
    "swin, Performer": dict(type="PerformerSwin", arch=NANO),
    "cait": dict(type="CaiT", arch={**PLAIN, "class_blocks": 1}, pretrain_img_size=128),
    "hybrid": dict(type="HybridViT", arch=PLAIN, stem="r50_s16", pretrain_img_size=128),
    "vit, conv stem, 4 branches": dict(type="ParallelViT", arch=PLAIN, stem="conv", parallel=4, pretrain_img_size=128),
}  # fmt: skip
BACKBONES = {name: cfg for name, cfg in BACKBONES.items() if cfg["type"] in vitdense.__all__}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the data set is drawn."""
    return tmp_path_factory.mktemp("frameworks")


def config_with(backbone, name, folder):
    """The config with this backbone, few images and two iterations. One stride becomes four by a DeconvPyramid."""
    size = {"settings.image_size": 96} if name.startswith("cascade") else {}  # the segmentor's images are as drawn
    cfg = load_config(name, {"data_root": f"{folder}/shapes", "settings.max_iters": 2, **size})
    options = {key: value for key, value in backbone.items() if key != "type"}
    with torch.device("meta"):
        built = backbone_class(backbone["type"])(**options)
    for key, change in changes.channel_changes(cfg.model, [32, 64, 128, 256], list(built.out_channels)).items():
        cfg.model[key].update(change)
    if len(set(built.out_strides)) == 1:
        pyramid = dict(type="vitdense.DeconvPyramid", in_channels=list(built.out_channels), design="light")
        cfg.model.neck = [pyramid, cfg.model.neck] if cfg.model.get("neck") else pyramid
    cfg.model.backbone = ConfigDict(**options, type=f"vitdense.{backbone['type']}")
    for split in ("train", "val", "test"):
        loader = cfg[f"{split}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        loader.dataset.draw = dict(num_train=4, num_val=2, image_size=(96, 128), workers=1)
    cfg.default_hooks.logger.interval = 1
    cfg.work_dir = f"{folder}/{name}"
    return cfg


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "backbone", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in BACKBONES]
)
def test_backbone_trains_and_is_evaluated(backbone, name, folder, capfd):
    train(config_with(BACKBONES[backbone], name, folder), overwrite=True)
    log = capfd.readouterr().out
    losses = [float(loss) for loss in re.findall(r"  loss: (\S+)", log)]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert ("coco/bbox_mAP" if name.startswith("cascade") else "mIoU") in log
