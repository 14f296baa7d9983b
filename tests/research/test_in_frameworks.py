"""Backbones of research train in Cascade Mask R-CNN and UPerNet on the embedded data set, and are evaluated."""

import math
import re

import pytest
import torch
from contract_rows import MODELS
from mmengine.config import ConfigDict
from research_rows import RESEARCH

from vitdense.mm.config.load import load_config
from vitdense.mm.train.launch import train

changes = pytest.importorskip("vitdense.extensions.swap.changes")

ROWS = {**RESEARCH, "mvit v1": MODELS["mvit v1"]}
QUICK = ("nat", "resnet, SAGAN")  # the others are slow
CONFIGS = ("cascade_swin_nano_shapes", "upernet_swin_nano_shapes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("frameworks")


def config_with(row, name, folder):
    size = {"settings.image_size": 96} if name.startswith("cascade") else {}  # the segmentor's images are as drawn
    cfg = load_config(name, {"data_root": f"{folder}/shapes", "settings.max_iters": 2, **size})
    with torch.device("meta"):
        built = row.kind(row.arch, **row.options)
    for key, change in changes.channel_changes(cfg.model, [32, 64, 128, 256], list(built.out_channels)).items():
        cfg.model[key].update(change)
    if len(set(built.out_strides)) == 1:
        pyramid = dict(type="vitdense.DeconvPyramid", in_channels=list(built.out_channels), design="light")
        cfg.model.neck = [pyramid, cfg.model.neck] if cfg.model.get("neck") else pyramid
    cfg.model.backbone = ConfigDict(row.options, type=f"vitdense.{row.kind.__name__}", arch=row.arch)
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
    "backbone", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ROWS]
)
def test_backbone_trains_and_is_evaluated(backbone, name, folder, capfd):
    train(config_with(ROWS[backbone], name, folder), overwrite=True)
    log = capfd.readouterr().out
    losses = [float(loss) for loss in re.findall(r"  loss: (\S+)", log)]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert ("coco/bbox_mAP" if name.startswith("cascade") else "mIoU") in log
