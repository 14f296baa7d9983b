"""The recipes of the other frameworks of Swin's Table 2, and of Mask2Former and DINO."""

import pytest
import torch
from conftest import needs_research
from mmdet.models.losses import FocalLoss
from test_configs import build_on_meta, rates_and_decays

from vitdense.mm.config.load import load_config
from vitdense.mm.heads.detection import ClampedFocalLoss

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("atss_swin_t_coco", [192, 384, 768]),
        pytest.param("atss_r50_coco", [512, 1024, 2048], marks=needs_research),
    ],
)
def test_atss_has_no_unused_output_and_extra_levels_from_the_last(name, widths):
    cfg = load_config(name)
    assert tuple(cfg.model.backbone.out_indices) == (1, 2, 3)
    assert (cfg.model.neck.in_channels, cfg.model.neck.start_level) == (widths, 0)
    assert cfg.model.neck.add_extra_convs == "on_output"
    options = cfg.model.test_cfg
    assert (options.nms.iou_threshold, options.nms_pre, options.score_thr) == (0.6, 1000, 0.05)
    anchors = cfg.model.bbox_head.anchor_generator
    assert (anchors.ratios, anchors.octave_base_scale, anchors.scales_per_octave) == ([1.0], 8, 1)
    model = build_on_meta(cfg)
    used = {name for name, _ in model.backbone.named_parameters() if name.startswith("norm")}
    assert used == ({f"norm{i}.{leaf}" for i in (1, 2, 3) for leaf in ("weight", "bias")} if "swin" in name else set())
    found = rates_and_decays(model, cfg)
    assert found["bbox_head.cls_convs.0.gn.weight"] == (1e-4, 0.05)  # GroupNorms are named gn: they decay


def test_proposals_of_sparse_rcnn():
    cfg = load_config("sparse_rcnn_swin_t_coco")
    assert cfg.model.rpn_head.num_proposals == cfg.model.test_cfg.rcnn.max_per_img == 300
    assert cfg.optim_wrapper.clip_grad.max_norm == 1.0
    assert cfg.model.neck.num_outs == len(cfg.model.neck.in_channels) == 4
    assert "init_cfg" not in cfg.model.rpn_head
    found = rates_and_decays(build_on_meta(cfg), cfg)
    for name in ("init_proposal_bboxes", "init_proposal_features"):
        assert found[f"rpn_head.{name}.weight"] == pytest.approx((0.25e-4, 1e-4))
    assert found["roi_head.bbox_head.0.attention_norm.weight"] == (1e-4, 0)
    assert found["roi_head.bbox_head.0.cls_fcs.1.weight"] == (1e-4, 0.05)  # a LayerNorm without "norm" in its name
    assert {head.loss_cls.type for head in cfg.model.roi_head.bbox_head} == {"vitdense.ClampedFocalLoss"}


@pytest.mark.parametrize("name", ["mask2former_swin_t_coco", "mask2former_swin_t_ade20k"])
def test_rates_and_decays_of_mask2former(name):
    cfg = load_config(name)
    model = build_on_meta(cfg)
    kinds = torch.nn.LayerNorm, torch.nn.GroupNorm
    parts = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    norms = {f"{name}.{leaf}" for name in parts for leaf in ("weight", "bias")}
    exempt = ("relative_position_bias_table", "query_embed", "query_feat", "level_embed")
    for name, (rate, decay) in rates_and_decays(model, cfg).items():
        assert rate == pytest.approx(1e-5 if name.startswith("backbone.") else 1e-4), name
        assert decay == (0 if name in norms or any(key in name for key in exempt) else 0.05), name
    assert cfg.optim_wrapper.clip_grad.max_norm == 0.01
    assert cfg.auto_scale_lr.base_batch_size == 16


def test_length_of_mask2formers_schedule():
    cfg = load_config("mask2former_swin_t_coco")
    assert cfg.train_cfg.max_epochs == 50
    begins = [step.begin * 368750 / 50 for step in cfg.param_scheduler]
    assert begins == pytest.approx([327778, 355092])
    poly = load_config("mask2former_swin_t_ade20k")
    assert poly.train_cfg.max_iters == 160000
    (step,) = poly.param_scheduler
    assert (step.type, step.power, step.begin, step.end) == ("PolyLR", 0.9, 0, 160000)


@pytest.mark.parametrize("name", ["dino_swin_t_coco", "dino_mvitv2_t_coco"])
def test_recipe_of_dino(name):
    cfg = load_config(name)
    assert cfg.train_cfg.max_epochs == 12
    assert [(step.type, step.milestones) for step in cfg.param_scheduler] == [("MultiStepLR", [11])]
    for name, (rate, decay) in rates_and_decays(build_on_meta(cfg), cfg).items():
        assert rate == pytest.approx(1e-5 if name.startswith("backbone.") else 1e-4), name
        assert decay == 1e-4, name
    assert cfg.optim_wrapper.clip_grad.max_norm == 0.1
    assert not cfg.train_dataloader.dataset.filter_cfg.filter_empty_gt
    assert tuple(cfg.model.backbone.out_indices) == (1, 2, 3)


def test_clamped_focal_loss_divides_by_at_least_one():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 3, 4, 4, 1, 4])  # 4 is background
    options = {"use_sigmoid": True, "gamma": 2.0, "alpha": 0.25, "loss_weight": 2.0}
    ours, theirs = ClampedFocalLoss(**options), FocalLoss(**options)
    for count in (3.0, 1.0):
        got = ours(logits, labels, avg_factor=torch.tensor(count))
        assert torch.equal(got, theirs(logits, labels, avg_factor=count))
    background = torch.full_like(labels, 4)
    p = logits.double().sigmoid()
    want = 2 * (0.75 * p**2 * -(1 - p).log()).sum()
    for none in (0.0, torch.tensor(0.0)):
        torch.testing.assert_close(ours(logits, background, avg_factor=none), want.float())
    assert theirs(logits, background, avg_factor=0.0) > 1e6 * want
