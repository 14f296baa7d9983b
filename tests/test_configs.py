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


def decays(model, cfg):
    """Weight decay of every trained parameter, by name."""
    from mmengine.optim import build_optim_wrapper

    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    return {name: decay[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["cascade_swin_t_coco", "cascade_swinv2_t_coco"])
def test_schedule_and_decay_of_the_coco_configs(name):
    cfg = load_config(REPO / f"configs/{name}.py")
    assert cfg.train_cfg.max_epochs == 36
    assert cfg.param_scheduler[1].milestones == [27, 33]
    assert cfg.auto_scale_lr.base_batch_size == 16
    for name, decay in decays(build_model(cfg), cfg).items():
        exempt = ("norm", "relative_position_bias_table", "cpb_mlp", "logit_scale")
        if name.startswith("backbone."):
            assert decay == (0 if any(key in name for key in exempt) else 0.05), name


def test_windows_of_the_swin_v2_config_are_those_of_its_weights():
    cfg = load_config(REPO / "configs/cascade_swinv2_t_coco.py")
    with torch.device("meta"):
        stages = build_model(cfg).backbone.stages
    specs = [block.spec for stage in stages for block in stage.blocks]
    assert {spec.window for spec in specs} == {(16, 16)}
    assert [spec.pretrained_window for spec in specs] == [(16, 16)] * 10 + [(8, 8)] * 2
    assert "window16_256" in cfg.model.backbone.init_cfg.checkpoint


MVIT_COCO = [path for path in CONFIGS if "mvitv2" in path.stem and path.stem.endswith("_coco")]


@pytest.mark.parametrize("path", MVIT_COCO, ids=lambda path: path.stem)
def test_what_decays_in_the_recipe_of_the_mvit_authors(path):
    cfg = load_config(path)
    with torch.device("meta"):
        model = build_model(cfg)
    norms = {
        f"{name}.{leaf}"
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.modules.batchnorm._BatchNorm))
        for leaf in ("weight", "bias")
    }
    found = decays(model, cfg)
    for name, decay in found.items():  # biases decay, those of norms do not
        assert decay == (0 if name in norms or "rel_pos_" in name else 0.1), name
    rows = ("backbone.stages.1.blocks.0.attn.bias.rel_pos_w", "neck.fpn_convs.0.conv.bias", "backbone.norm3.bias")
    assert [found[name] for name in rows] == [0, 0.1, 0]
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)
    assert cfg.auto_scale_lr == {"enable": False, "base_batch_size": 64}
    assert cfg.train_dataloader.batch_size == 8  # on 8 GPUs


def learning_rates(cfg, epoch_length):
    """The learning rate of every iteration, from the schedulers as mmengine builds them."""
    from mmengine.registry import PARAM_SCHEDULERS

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = []
    for item in cfg.param_scheduler:
        item = dict(item)
        kind = PARAM_SCHEDULERS.get(item.pop("type"))
        if item.pop("convert_to_iter_based", False):
            schedulers.append(kind.build_iter_from_epoch(optimizer=optimizer, epoch_length=epoch_length, **item))
        else:
            assert not item["by_epoch"]
            schedulers.append(kind(optimizer=optimizer, **item))
    for _ in range(cfg.train_cfg.max_epochs * epoch_length):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()


@pytest.mark.parametrize(
    ("name", "epochs", "lr", "epoch_length", "steps"),
    [
        ("cascade_mvitv2_t_coco", 36, 1.6e-4, 1875, (52500, 62500)),  # the authors' 67500 iterations
        ("cascade_mvitv2_l_coco", 50, 1e-4, 100, (5000 * 163889 // 184375, 5000 * 177546 // 184375)),
    ],
)
def test_schedule_of_the_mvit_authors(name, epochs, lr, epoch_length, steps):
    cfg = load_config(REPO / f"configs/{name}.py")
    assert cfg.train_cfg.max_epochs == epochs
    rates = list(learning_rates(cfg, epoch_length))
    assert rates[0] == pytest.approx(1e-3 * lr)
    assert rates[125] == pytest.approx(lr / 2, rel=0.01)
    first, second = steps
    want = [lr] * (first - 250) + [0.1 * lr] * (second - first) + [0.01 * lr] * (len(rates) - second)
    assert rates[250:] == pytest.approx(want)


@pytest.mark.parametrize("path", [p for p in MVIT_COCO if p.stem.startswith("cascade")], ids=lambda path: path.stem)
def test_cascade_recipe_of_the_mvit_authors(path):
    cfg = load_config(path)
    assert cfg.model.rpn_head.loss_bbox == {"type": "L1Loss", "loss_weight": 1.0}
    with torch.device("meta"):
        model = build_model(cfg)
    assert len(model.rpn_head.rpn_conv) == 2
    assert [len(conv.conv.weight) for conv in model.rpn_head.rpn_conv] == [256, 256]
    roi_head = model.roi_head
    for head, xy in zip(roi_head.bbox_head, (10, 20, 30)):
        assert head.fc_reg.out_features == 4  # one box for all classes
        assert not head.reg_decoded_bbox
        assert head.bbox_coder.stds == pytest.approx([1 / xy, 1 / xy, 2 / xy, 2 / xy])
        assert type(head.loss_bbox).__name__ == "L1Loss"
        assert [type(conv.norm).__name__ for conv in head.shared_convs] == ["_BatchNormXd"] * 4  # SyncBN of one process
    assert type(roi_head.mask_head).__name__ == "FCNMaskHead"  # one, not one per stage
    assert len(roi_head.mask_head.convs) == 4
    assert not any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.neck.modules())
    assert roi_head.stage_loss_weights == [1, 1, 1]
    assert [stage.assigner.pos_iou_thr for stage in cfg.model.train_cfg.rcnn] == [0.5, 0.6, 0.7]
    assert [stage.sampler.type for stage in cfg.model.train_cfg.rcnn] == ["RandomSampler"] + 2 * ["PseudoSampler"]
    assert cfg.model.train_cfg.rpn_proposal.max_per_img == cfg.model.test_cfg.rpn.max_per_img == 1000


def test_mask_rcnn_of_the_mvit_authors_is_detectron2s_plain_one():
    cfg = load_config(REPO / "configs/mask_rcnn_mvitv2_t_coco.py")
    assert cfg.model.rpn_head.get("num_convs", 1) == 1
    assert cfg.model.roi_head.type == "StandardRoIHead"
    assert cfg.model.roi_head.bbox_head.type == "Shared2FCBBoxHead"
    assert not cfg.model.roi_head.bbox_head.reg_class_agnostic
    assert not cfg.model.train_cfg.rcnn.assigner.match_low_quality


def test_weights_and_drop_path_of_the_mvit_configs():
    found = {
        path.stem: (backbone.arch, backbone.drop_path_rate, backbone.init_cfg.checkpoint)
        for path in MVIT_COCO
        for backbone in [load_config(path).model.backbone]
    }
    assert found == {
        "cascade_mvitv2_t_coco": ("v2_tiny", 0.2, "timm://mvitv2_tiny.fb_in1k"),
        "cascade_mvitv2_s_coco": ("v2_small", 0.2, "timm://mvitv2_small.fb_in1k"),
        "cascade_mvitv2_b_coco": ("v2_base", 0.4, "timm://mvitv2_base.fb_in1k"),
        "cascade_mvitv2_l_coco": ("v2_large", 0.5, "timm://mvitv2_large_cls.fb_inw21k"),
        "mask_rcnn_mvitv2_t_coco": ("v2_tiny", 0.2, "timm://mvitv2_tiny.fb_in1k"),
    }


@pytest.mark.parametrize("size", [(640, 480), (100, 3000)])
def test_large_scale_jitter_gives_padded_squares(size, tmp_path):
    import mmcv
    import numpy as np
    from mmengine.dataset import Compose
    from mmengine.registry import init_default_scope

    cfg = load_config(REPO / "configs/cascade_mvitv2_l_coco.py")
    init_default_scope("mmdet")
    w, h = size
    mmcv.imwrite(np.full((h, w, 3), 7, np.uint8), str(tmp_path / "image.png"))
    box, polygon = [2, 3, w - 4, h - 5], [[2, 3, w - 4, 3, w - 4, h - 5, 2, h - 5]]
    sample = {
        "img_path": str(tmp_path / "image.png"),
        "img_id": 1,
        "sample_idx": 0,
        "height": h,
        "width": w,
        "instances": [{"bbox": box, "bbox_label": 0, "mask": polygon, "ignore_flag": 0}],
    }
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline)
    for _ in range(4):
        out = pipeline(dict(sample))
        assert out["inputs"].shape == (3, 1024, 1024)
        assert set(out["inputs"].unique().tolist()) <= {7, 128}
        truth = out["data_samples"].gt_instances  # empty where the crop missed the object
        assert truth.masks.masks.shape == (len(truth), 1024, 1024)
        for mask, box in zip(truth.masks.masks, truth.bboxes.tensor.tolist()):
            rows, columns = mask.any(axis=1).nonzero()[0], mask.any(axis=0).nonzero()[0]
            assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]  # around what the crop left


def test_the_two_demos_differ_in_their_backbone_alone():
    swin, mvit = (load_config(REPO / f"configs/cascade_{name}_nano_shapes.py") for name in ("swin", "mvitv2"))
    assert mvit.model.backbone.type == "vitdense.MViT"
    swin, mvit = swin.to_dict(), mvit.to_dict()
    for cfg in (swin, mvit):
        del cfg["model"]["backbone"], cfg["optim_wrapper"]["paramwise_cfg"], cfg["work_dir"]
    assert swin == mvit
