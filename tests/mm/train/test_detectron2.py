"""Whole detectors of detectron2, of ViTDet and EVA-02, in mmdet's model: every name written out, random weights."""

import math
from dataclasses import replace

import pytest
import torch
from conftest import REPO

from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.models.vit.sizes import VIT

NANO = {"embed_dims": 32, "depth": 4, "num_heads": 2}
TRUNKS = {"eva02": {"ffn_dims": 85}, "vit": {}}


def detector(kind):
    cfg = load_config(f"cascade_{kind}_b_coco")
    backbone = cfg.model.backbone
    backbone.arch = vars(replace(VIT[backbone.arch], **NANO, **TRUNKS[kind], patch_size=16))
    backbone.update(window_size=4, global_indices=(1, 3), out_indices=(3,), img_size=160, init_cfg=None)
    cfg.model.neck.update(in_channels=32, out_channels=16)
    for head in cfg.model.roi_head.bbox_head:
        head.update(in_channels=16, conv_out_channels=16, fc_out_channels=24)
    for part in (cfg.model.rpn_head, cfg.model.roi_head.mask_head):
        part.in_channels = 16
    cfg.model.rpn_head.feat_channels = cfg.model.roi_head.mask_head.conv_out_channels = 16
    for extractor in (cfg.model.roi_head.bbox_roi_extractor, cfg.model.roi_head.mask_roi_extractor):
        extractor.out_channels = 16
    model = build_model(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def names():
    both = ("weight", "bias")
    found = {f"backbone.simfp_2.{i}.{x}": f"neck.levels.0.{i}.{x}" for i in (0, 1, 3) for x in both}
    found |= {f"backbone.simfp_3.0.{x}": f"neck.levels.1.0.{x}" for x in both}
    convs = {"2.4": "0.0", "2.5": "0.2", "3.1": "1.0", "3.2": "1.2", "4.0": "2.0", "4.1": "2.2", "5.1": "3.0"}
    for theirs, ours in (convs | {"5.2": "3.2"}).items():
        level, n = ours.split(".")
        found[f"backbone.simfp_{theirs}.weight"] = f"neck.convs.{ours}.weight"
        found |= {f"backbone.simfp_{theirs}.norm.{x}": f"neck.convs.{level}.{int(n) + 1}.{x}" for x in both}
    for x in both:
        for theirs, ours in {
            **{f"proposal_generator.rpn_head.conv.conv{i}": f"rpn_head.rpn_conv.{i}.conv" for i in (0, 1)},
            "proposal_generator.rpn_head.objectness_logits": "rpn_head.rpn_cls",
            "proposal_generator.rpn_head.anchor_deltas": "rpn_head.rpn_reg",
            **{f"roi_heads.box_head.{k}.fc1": f"roi_head.bbox_head.{k}.shared_fcs.0" for k in range(3)},
            **{f"roi_heads.box_predictor.{k}.cls_score": f"roi_head.bbox_head.{k}.fc_cls" for k in range(3)},
            **{f"roi_heads.box_predictor.{k}.bbox_pred": f"roi_head.bbox_head.{k}.fc_reg" for k in range(3)},
            "roi_heads.mask_head.deconv": "roi_head.mask_head.upsample",
            "roi_heads.mask_head.predictor": "roi_head.mask_head.conv_logits",
        }.items():
            found[f"{theirs}.{x}"] = f"{ours}.{x}"
    heads = {f"roi_heads.box_head.{k}.conv": f"roi_head.bbox_head.{k}.shared_convs" for k in range(3)}
    for theirs, ours in (heads | {"roi_heads.mask_head.mask_fcn": "roi_head.mask_head.convs"}).items():
        for i in range(4):
            found[f"{theirs}{i + 1}.weight"] = f"{ours}.{i}.conv.weight"
            found |= {f"{theirs}{i + 1}.norm.{x}": f"{ours}.{i}.ln.{x}" for x in both}
    return found


def file_of(model, kind):
    ours = model.state_dict()
    slot = {"tokens.cls_position": torch.randn(1, 1, 32)}
    file = convert(model.backbone.state_dict() | slot, "detectron2").state
    file |= {theirs: ours[name] for theirs, name in names().items()}
    if kind == "eva02":
        sizes = {"rope_win": 16, "rope_glb": 100, **{f"blocks.{i}.attn.rope": (16, 100)[i % 2] for i in range(4)}}
        file |= {f"backbone.net.{x}.freqs_{y}": torch.randn(n, 16) for x, n in sizes.items() for y in ("cos", "sin")}
    return file


@pytest.mark.parametrize("kind", TRUNKS)
def test_whole_detectors_of_detectron2_load(kind):
    model = detector(kind)
    ours, file = model.state_dict(), file_of(model, kind)
    state, report = fit_whole(model, {"model": file, "iteration": 1})
    assert (report.scheme, report.share, report.kept_at_init) == ("detectron2", 1, [])
    assert state.keys() == ours.keys()
    assert all(torch.equal(state[key], value) for key, value in ours.items())
    tables = {key.replace(".net", "") for key in file if ".freqs_" in key}
    assert set(report.ignored) == {"backbone.tokens.cls_position", *tables}
    assert len(tables) == 12 * (kind == "eva02")
    lacking = dict(list(names().items())[::20])  # of every part one
    for gone, name in (lacking | {"backbone.net.blocks.2.norm1.weight": "backbone.blocks.2.norm1.weight"}).items():
        with pytest.raises(CheckpointMismatchError, match=rf"missing keys \(1\): {name}$"):
            fit_whole(model, {key: value for key, value in file.items() if key != gone})
    with pytest.raises(CheckpointMismatchError, match=r"box_head\.0\.conv1\.bias"):  # of heads without norms
        fit_whole(model, file | {"roi_heads.box_head.0.conv1.bias": torch.ones(16)})


def test_anchors_are_in_the_order_of_detectron2():
    with torch.device("meta"):
        model = build_model(load_config(REPO / "configs/cascade_eva02_b_coco.py"))
    priors = model.rpn_head.prior_generator.grid_priors([(2, 3)] * 5, device="cpu")
    for level, boxes in enumerate(priors):
        side, want = 32 * 2**level, []
        for y, x in ((y, x) for y in (0, 1) for x in (0, 1, 2)):
            for ratio in (0.5, 1.0, 2.0):  # height over width
                w, h = side / math.sqrt(ratio), side * math.sqrt(ratio)
                want.append([x * side / 8 - w / 2, y * side / 8 - h / 2, x * side / 8 + w / 2, y * side / 8 + h / 2])
        torch.testing.assert_close(boxes, torch.tensor(want))
