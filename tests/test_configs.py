"""Every shipped config loads, builds and passes the checks that need no data."""

import pytest
import torch
from conftest import REPO

from vitdense.engine.build import build_model
from vitdense.engine.config import load_config

pytest.importorskip("mmdet")
CONFIGS = sorted(REPO.glob("configs/*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_builds_and_neck_fits_the_backbone(path):
    cfg = load_config(path)
    with torch.device("meta"):
        model = build_model(cfg).eval()
        maps = model.extract_feat(torch.empty(1, 3, 97, 161))
    assert list(model.backbone.out_channels) == cfg.model.neck.in_channels
    assert len(maps) == cfg.model.neck.num_outs
    assert cfg.custom_imports.imports[0] == "vitdense"  # before anything that imports mmcv.ops
    assert cfg.model.data_preprocessor.bgr_to_rgb
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53]


@pytest.mark.parametrize("path", [p for p in CONFIGS if p.stem.startswith("cascade_swin")], ids=lambda path: path.stem)
def test_cascade_recipe_of_the_swin_authors(path):
    roi_head = load_config(path).model.roi_head
    assert [head.bbox_coder.target_stds[0] for head in roi_head.bbox_head] == [0.1, 0.05, 0.033]
    for head in roi_head.bbox_head:
        assert not head.reg_class_agnostic
        assert head.reg_decoded_bbox
        assert head.loss_bbox == {"type": "GIoULoss", "loss_weight": 10.0}
        assert head.norm_cfg.type == "SyncBN"


def test_rpn_loss_of_mask_and_cascade_mask_rcnn():
    losses = [
        load_config(REPO / f"configs/{name}_swin_t_coco.py").model.rpn_head.loss_bbox
        for name in ("mask_rcnn", "cascade")
    ]
    assert losses == [
        {"type": "L1Loss", "loss_weight": 1.0},
        {"type": "SmoothL1Loss", "beta": 1.0 / 9.0, "loss_weight": 1.0},
    ]


@pytest.mark.parametrize("name", ["cascade_swin_t_coco", "cascade_swinv2_t_coco"])
def test_schedule_and_decay_of_the_coco_configs(name):
    from mmengine.optim import build_optim_wrapper

    cfg = load_config(REPO / f"configs/{name}.py")
    assert cfg.train_cfg.max_epochs == 36
    assert cfg.param_scheduler[1].milestones == [27, 33]
    assert cfg.auto_scale_lr.base_batch_size == 16
    model = build_model(cfg)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.backbone.named_parameters():
        exempt = ("norm", "relative_position_bias_table", "cpb_mlp", "logit_scale")
        assert decay[id(p)] == (0 if any(key in name for key in exempt) else 0.05), name


def test_windows_of_the_swin_v2_config_are_those_of_its_weights():
    cfg = load_config(REPO / "configs/cascade_swinv2_t_coco.py")
    with torch.device("meta"):
        stages = build_model(cfg).backbone.stages
    specs = [block.spec for stage in stages for block in stage.blocks]
    assert {spec.window for spec in specs} == {(16, 16)}
    assert [spec.pretrained_window for spec in specs] == [(16, 16)] * 10 + [(8, 8)] * 2
    assert "window16_256" in cfg.model.backbone.init_cfg.checkpoint
