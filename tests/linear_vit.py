"""A linear head on a small ViT with random weights, for tests of exported files."""

import torch

from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES

HEAD = dict(type="vitdense.LinearHead", in_channels=24, num_classes=9, align_corners=False)
HEAD["loss_decode"] = dict(type="CrossEntropyLoss")
TRUNK = dict(type="vitdense.ViT", arch=dict(embed_dims=24, depth=2, num_heads=2), img_size=96, patch_size=8)
TRUNK.update(out_indices=(1,), out_norm="final")


def make(folder):
    cfg = load_config("upernet_swin_nano_shapes", work_dir=str(folder / "work"))
    cfg.model.backbone, cfg.model.decode_head = TRUNK, HEAD
    cfg.model.neck = cfg.model.auxiliary_head = None
    draw = dict(num_train=4, num_val=3, image_size=(96, 80))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False, batch_size=1)
        loader.dataset.update(data_root=str(folder / "shapes"), draw=draw)
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type="Resize", scale=(128, 128), keep_ratio=True))
    return cfg


def save_random(folder):
    torch.manual_seed(0)
    model = build_model(make(folder))
    model.init_weights()
    torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    meta = {"dataset_meta": {"classes": ("background", *CLASSES)}}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, folder / "random.pth")
    return folder
