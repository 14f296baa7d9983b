"""Every shipped config loads, builds and passes the checks that need no data."""

import ast
import copy
import re
from functools import cache

import mmcv
import numpy as np
import pytest
import torch
from conftest import LARGER, RECIPES, REPO, needs_research, run_python
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, PARAM_SCHEDULERS, init_default_scope

from vitdense.families import MODELS
from vitdense.flops import count
from vitdense.layers.blocks import LayerNorm2d
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import class_counts, nodes

pytestmark = pytest.mark.long
# Those without a head, for pretraining, are in tests/pretraining.
CONFIGS = sorted(path for path in RECIPES if "_base_/pretraining.py" not in path.read_text())


# Read once; what builds from one takes a copy, for mmdet changes it.
read, loaded = cache(Config.fromfile), cache(load_config)


def build_on_meta(cfg):
    with torch.device("meta"):
        return build_model(cfg)


def each(paths):
    """A test of each config, slow of those that differ from another in numbers alone."""
    rows = [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path in LARGER else []) for path in paths]
    return pytest.mark.parametrize("path", rows)


@each(CONFIGS)
def test_config_builds_and_its_parts_fit(path):
    cfg = loaded(path)
    model = build_on_meta(copy.deepcopy(read(path))).eval()  # as its file has it, which mm's own tools read
    image = torch.empty(1, 3, 97, 161, device="meta")
    maps = model.extract_feat(image)
    widths = [x[0].shape[1] if isinstance(x, tuple) else x.shape[1] for x in maps]  # with a class token
    if cfg.default_scope == "mmseg":
        heads = [head for head in (cfg.model.decode_head, cfg.model.get("auxiliary_head")) if head]
        assert {head.num_classes for head in heads} == {num_classes(cfg)}
        wanted = heads[0].in_channels
        if isinstance(wanted, int):
            assert wanted == widths[heads[0].get("in_index", -1)]
        else:
            assert list(wanted) == [widths[i] for i in heads[0].get("in_index", range(len(wanted)))]
        for head in heads[1:]:
            assert head.in_channels == widths[head.in_index]
        if heads[0].type == "UPerHead":
            assert model.decode_head(maps).shape == (1, num_classes(cfg), *maps[0].shape[2:])
    elif "panoptic_head" in cfg.model:
        assert cfg.model.panoptic_head.in_channels == widths
    else:
        necks = cfg.model.neck if isinstance(cfg.model.neck, list) else [cfg.model.neck]
        inputs = necks[0].in_channels
        assert [x.shape[1] for x in model.backbone(image)] == (inputs if isinstance(inputs, list) else [inputs])
        outputs = getattr(model.neck, "out_channels", (1,))
        assert len(maps) == (necks[-1].get("num_outs") or len(outputs))
    if "panoptic_head" not in cfg.model:  # whose numbers mm's tools take from a complete config
        heads = [part for name, part in model.named_modules() if re.search(r"(bbox|mask|decode)_head", name)]
        numbers = {head.num_classes for head in heads if hasattr(head, "num_classes")}
        assert numbers == class_counts(cfg.model)
    assert cfg.custom_imports.imports[0] == "vitdense"  # before anything that imports mmcv.ops


BUILD = """
import sys
import torch
import vitdense
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
for path in sys.argv[1:]:
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        MODELS.build(cfg.model)
    print(path)
"""


def test_types_of_recipes_are_built_by_importing_only_vitdense():
    types, paths = set(), []
    for path in sorted(CONFIGS, key=lambda path: "nano" not in path.stem and "_t_" not in path.stem):  # the small first
        found = {node["type"] for node in nodes(read(path).model) if "type" in node}
        paths += [str(path)] if found - types else []
        types |= found
    printed = run_python(BUILD, *paths).stdout.splitlines()
    assert [line for line in printed if line in paths] == paths


def num_classes(cfg):
    dataset = cfg.train_dataloader.dataset
    with DATASETS.switch_scope_and_registry("mmseg") as registry:
        return len(dataset.get("metainfo", registry.get(dataset.type).METAINFO)["classes"])


@each(sorted(RECIPES))
def test_weights_are_names_of_the_model_table(path):
    """One dialect for them: no addresses, which say neither the licence nor what the weights expect."""
    named = {node.get("checkpoint") for node in nodes(read(path).model)} - {None}
    assert named <= MODELS.keys()


@each(path for path in CONFIGS if path.stem.startswith("cascade_swin"))
def test_cascade_recipe_of_the_swin_authors(path):
    roi_head = loaded(path).model.roi_head
    assert [head.bbox_coder.target_stds[0] for head in roi_head.bbox_head] == [0.1, 0.05, 0.033]
    for head in roi_head.bbox_head:
        assert not head.reg_class_agnostic
        assert head.reg_decoded_bbox
        assert head.loss_bbox == {"type": "GIoULoss", "loss_weight": 10.0}
        assert head.norm_cfg.type == "SyncBN"


def test_rpn_loss_of_mask_and_cascade_mask_rcnn():
    losses = [load_config(f"{name}_swin_t_coco").model.rpn_head.loss_bbox for name in ("mask_rcnn", "cascade")]
    assert losses == [
        {"type": "L1Loss", "loss_weight": 1.0},
        {"type": "SmoothL1Loss", "beta": 1.0 / 9.0, "loss_weight": 1.0},
    ]


BOXES = {
    "faster_rcnn_swin_t_coco": "mask_rcnn_swin_t_coco",
    "cascade_rcnn_swin_t_coco": "cascade_swin_t_coco",
    "cascade_rcnn_swin_nano_shapes": "cascade_swin_nano_shapes",
}


@pytest.mark.parametrize("name", BOXES)
def test_configs_of_boxes_and_masks_differ_only_in_masks(name):
    boxes, masks = (load_config(stem) for stem in (name, BOXES[name]))
    model = build_on_meta(copy.deepcopy(boxes))  # mmdet changes the config that it builds from
    assert not model.with_mask
    assert not any("mask" in key for key in model.state_dict())
    assert type(model).__name__ == masks.model.type.replace("Mask", "Faster")
    boxes, masks = boxes.to_dict(), masks.to_dict()
    assert boxes["val_evaluator"]["metric"] == boxes["test_evaluator"]["metric"] == "bbox"
    for cfg in (boxes, masks):
        for part in (cfg, *(cfg[f"{split}_dataloader"]["dataset"] for split in ("train", "val", "test"))):
            for pipeline in (part.pop(key) for key in ("pipeline", "train_pipeline", "test_pipeline") if key in part):
                (step,) = (step for step in pipeline if step["type"] == "LoadAnnotations")
                assert step == {"type": "LoadAnnotations", "with_bbox": True, "with_mask": cfg is masks}
        del cfg["work_dir"], cfg["model"]["type"]
        del cfg["model"]["roi_head"]["mask_head"], cfg["model"]["roi_head"]["mask_roi_extractor"]
        del cfg["val_evaluator"]["metric"], cfg["test_evaluator"]["metric"]
    assert boxes == masks


def rates_and_decays(model, cfg):
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    settings = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    return {name: settings[id(p)] for name, p in model.named_parameters() if p.requires_grad}


def decays(model, cfg):
    return {name: decay for name, (_, decay) in rates_and_decays(model, cfg).items()}


@pytest.mark.parametrize(
    "name", [f"{name}_t_coco" for name in ("cascade_swin", "cascade_swinv2", "atss_swin", "sparse_rcnn_swin")]
)
def test_schedule_and_decay_of_the_coco_configs(name):
    cfg = load_config(name)
    assert cfg.train_cfg.max_epochs == 36
    warmup, drops = cfg.param_scheduler
    assert (warmup.type, warmup.end, warmup.start_factor) == ("LinearLR", 500, 0.001)
    assert (drops.milestones, drops.end, drops.gamma) == ([27, 33], 36, 0.1)
    assert (cfg.optim_wrapper.optimizer.lr, cfg.optim_wrapper.optimizer.weight_decay) == (1e-4, 0.05)
    assert cfg.auto_scale_lr.base_batch_size == 16
    for name, decay in decays(build_on_meta(cfg), cfg).items():
        exempt = ("norm", "relative_position_bias_table", "cpb_mlp", "logit_scale")
        if name.startswith("backbone."):
            assert decay == (0 if any(key in name for key in exempt) else 0.05), name


@needs_research
def test_swin_mixer_config_has_the_cost_of_the_nano_swin_and_no_decay_of_window_biases():
    cost = {}
    for name in ("swin", "swin_mixer"):
        cfg = load_config(f"upernet_{name}_nano_camvid")
        model = build_on_meta(cfg).eval()
        rows = count(model, (360, 480))
        cost[name] = torch.tensor([rows[0].macs, sum(row.macs for row in rows)], dtype=torch.float64)
    assert (cost["swin_mixer"] / cost["swin"] - 1).abs().max() < 0.03
    found = {key: decay for key, decay in decays(model, cfg).items() if "spatial_mlp" in key}
    assert len(found) == 16
    for key, decay in found.items():
        assert decay == (0 if key.endswith(".bias") else 0.05), key
    still = load_config(REPO / "configs/research/upernet_swin_mixer_nano_camvid.py", {"model.backbone.shift": False})
    assert not any(block.spatial_mlp.top for stage in build_on_meta(still).backbone.stages for block in stage.blocks)


def test_windows_of_the_swin_v2_config_match_its_weights():
    cfg = load_config(REPO / "configs/cascade_swinv2_t_coco.py")
    stages = build_on_meta(cfg).backbone.stages
    specs = [block.spec for stage in stages for block in stage.blocks]
    assert {spec.window for spec in specs} == {(16, 16)}
    assert [spec.pretrained_window for spec in specs] == [(16, 16)] * 10 + [(8, 8)] * 2
    assert cfg.model.backbone.init_cfg.checkpoint.startswith("swinv2_tiny_w16.")


MVIT_COCO = [path for path in CONFIGS if "mvitv2" in path.stem and "dino" not in path.stem and "coco" in path.stem]


def learning_rates(cfg, epoch_length):
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
    for _ in range(cfg.train_cfg.get("max_iters") or cfg.train_cfg.max_epochs * epoch_length):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()


@pytest.mark.parametrize(
    ("name", "epochs", "lr", "epoch_length", "steps"),
    [
        ("cascade_mvitv2_t_coco", 36, 1.6e-4, 375, (10500, 12500)),  # a fifth of the authors' 67500 iterations
        ("cascade_mvitv2_l_coco", 50, 1e-4, 100, (5000 * 163889 // 184375, 5000 * 177546 // 184375)),
        ("cascade_vit_b_coco", 100, 1e-4, 100, (10000 * 163889 // 184375, 10000 * 177546 // 184375)),
    ],
)
def test_schedule_of_the_mvit_and_vitdet_authors(name, epochs, lr, epoch_length, steps):
    cfg = load_config(name)
    assert cfg.train_cfg.max_epochs == epochs
    rates = list(learning_rates(cfg, epoch_length))
    assert rates[0] == pytest.approx(1e-3 * lr)
    assert rates[125] == pytest.approx(lr / 2, rel=0.01)
    first, second = steps
    want = [lr] * (first - 250) + [0.1 * lr] * (second - first) + [0.01 * lr] * (len(rates) - second)
    assert rates[250:] == pytest.approx(want)


@each(path for path in MVIT_COCO if path.stem.startswith("cascade"))
def test_cascade_recipe_of_the_mvit_authors(path):
    cfg = copy.deepcopy(loaded(path))
    assert cfg.model.rpn_head.loss_bbox == {"type": "L1Loss", "loss_weight": 1.0}
    model = build_on_meta(cfg)
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
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)
    assert cfg.auto_scale_lr == {"enable": False, "base_batch_size": 64}
    assert cfg.train_dataloader.batch_size == 8  # on 8 GPUs


def test_mask_rcnn_of_the_mvit_authors_is_detectron2s_plain_one():
    cfg = load_config(REPO / "configs/mask_rcnn_mvitv2_t_coco.py")
    assert cfg.model.rpn_head.get("num_convs", 1) == 1
    assert cfg.model.roi_head.type == "StandardRoIHead"
    assert cfg.model.roi_head.bbox_head.type == "Shared2FCBBoxHead"
    assert not cfg.model.roi_head.bbox_head.reg_class_agnostic
    assert not cfg.model.train_cfg.rcnn.assigner.match_low_quality


@pytest.mark.parametrize("size", [(640, 480), (100, 3000)])
def test_large_scale_jitter_returns_padded_squares(size, tmp_path):
    cfg = load_config(REPO / "configs/cascade_mvitv2_l_coco.py")
    init_default_scope("mmdet")
    w, h = size
    mmcv.imwrite(np.full((h, w, 3), 7, np.uint8), str(tmp_path / "image.png"))
    box, polygon = [2, 3, w - 4, h - 5], [[2, 3, w - 4, 3, w - 4, h - 5, 2, h - 5]]
    sample = {"img_path": str(tmp_path / "image.png"), "img_id": 1, "sample_idx": 0, "height": h, "width": w}
    sample["instances"] = [{"bbox": box, "bbox_label": 0, "mask": polygon, "ignore_flag": 0}]
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


def test_the_two_demos_differ_only_in_their_backbone():
    swin, mvit = (load_config(f"cascade_{name}_nano_shapes") for name in ("swin", "mvitv2"))
    assert mvit.model.backbone.type == "vitdense.MViT"
    swin, mvit = swin.to_dict(), mvit.to_dict()
    for cfg in (swin, mvit):
        del cfg["model"]["backbone"], cfg["optim_wrapper"]["paramwise_cfg"], cfg["work_dir"]
    assert swin == mvit


def test_recipe_of_vitdet():
    """Windows of 14 but for four blocks, a simple pyramid, LayerNorm in the heads, rates that shrink by 0.7 a block."""
    cfg = load_config(REPO / "configs/cascade_vit_b_coco.py")
    model = build_on_meta(cfg)
    blocks = model.backbone.blocks
    assert [i for i, block in enumerate(blocks) if block.spec.window is None] == [2, 5, 8, 11]
    assert {block.spec.window for block in blocks} == {None, (14, 14)}
    assert [len(block.attn.bias.rel_pos_h) for block in blocks[1:3]] == [27, 127]
    assert model.neck.out_channels == (256,) * 5
    heads = [head.shared_convs for head in model.roi_head.bbox_head] + [model.roi_head.mask_head.convs]
    assert all(isinstance(conv.norm, LayerNorm2d) for convs in heads for conv in convs)
    settings = rates_and_decays(model, cfg)
    for name, _ in model.named_parameters():
        block = int(name.split(".")[2]) if name.startswith("backbone.blocks.") else -1 if "backbone" in name else 12
        is_norm = isinstance(model.get_submodule(name.rpartition(".")[0]), torch.nn.LayerNorm)
        decay = 0 if is_norm or "absolute_pos_embed" in name else 0.1
        assert settings[name] == (pytest.approx(1e-4 * 0.7 ** (12 - block)), decay), name
    assert cfg.auto_scale_lr.base_batch_size == 64
    assert {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-6}
    assert cfg.model.data_preprocessor.pad_size_divisor == 1024
    (resize,) = (step for step in cfg.test_dataloader.dataset.pipeline if step.type == "Resize")
    assert resize.scale == (1024, 1024)


def test_recipe_of_mae_for_segmentation():
    cfg = load_config(REPO / "configs/upernet_vit_b_ade20k.py")
    assert cfg.model.test_cfg == {"mode": "slide", "crop_size": (512, 512), "stride": (341, 341)}
    assert cfg.model.backbone.out_indices == (3, 5, 7, 11)
    model = build_on_meta(cfg)
    settings = rates_and_decays(model, cfg)
    for name, parameter in model.named_parameters():
        block = int(name.split(".")[2]) if name.startswith("backbone.blocks.") else -1 if "backbone" in name else 12
        decay = 0 if parameter.ndim == 1 or name.startswith(("backbone.absolute", "backbone.tokens")) else 0.05
        assert settings[name] == (pytest.approx(1e-4 * 0.65 ** (12 - block)), decay), name


TRAINED = {  # trainable parameters in M, in all and in the backbone: as it stands, and with options of the docstring
    "upernet_dinov3_b_ade20k": [(162.5, 85.7), (76.9, 0), (77.3, 0.4)],
    "upernet_adapter_dinov2_b_ade20k": [(134.4, 100.3), (47.8, 13.7)],
    "cascade_dinov3_b_coco": [(140.9, 85.7), (55.3, 0)],
}


@pytest.mark.parametrize("name", TRAINED)
def test_options_in_docstrings_freeze_the_trunk(name):
    path = REPO / f"configs/{name}.py"
    options = re.findall(r"^    (.+)=(\w+)(?:   #.*)?$", ast.get_docstring(ast.parse(path.read_text())), re.M)
    assert all(key.startswith("--cfg-options model.") for key, _ in options)
    found = []
    for given in ({}, *({key.removeprefix("--cfg-options "): value} for key, value in options)):
        model = build_on_meta(load_config(path, given))
        trained = [(key, p.numel() / 1e6) for key, p in model.named_parameters() if p.requires_grad]
        found.append((sum(n for _, n in trained), sum(n for key, n in trained if key.startswith("backbone."))))
    assert found == [pytest.approx(totals, abs=0.051) for totals in TRAINED[name]]


def test_an_adapter_around_a_frozen_trunk_has_the_learning_rate_of_the_heads():
    cfg = load_config(REPO / "configs/mask2former_dinov3_l_ade20k.py")
    model = build_on_meta(cfg)
    settings = rates_and_decays(model, cfg)
    assert {rate for rate, _ in settings.values()} == {1e-4}
    assert not any(name.startswith("backbone.trunk.") for name in settings)
    norms = {name for name, module in model.named_modules() if "Norm" in type(module).__name__}
    for name, (_, decay) in settings.items():
        leaf = name.rpartition(".")[0]
        spared = leaf in norms or any(key in name for key in ("level_embed", "query_embed", "query_feat"))
        assert decay == (0 if spared else 0.05), name
    assert model.backbone.trunk.out_indices == (4, 11, 17, 23)


def test_crops_are_the_map_of_dinov2s_pretraining():
    model = build_on_meta(load_config(REPO / "configs/upernet_adapter_dinov2_b_ade20k.py"))
    trunk = model.backbone.trunk
    size = trunk.patch_embed(torch.empty(1, 3, 512, 512, device="meta")).shape[1:3]
    assert size == trunk.absolute_pos_embed.table.shape[1:3] == (37, 37)


# All but one, whose recipe is MAE's.
OTHERS = ("vit_b", "dinov3_b", "adapter_deit_b", "adapter_dinov2_b")  # with recipes of their own
ADE20K = [path for path in REPO.glob("configs/upernet_*_ade20k.py") if path.stem[8:-7] not in OTHERS]


@each(ADE20K)
def test_recipe_of_the_swin_authors_for_segmentation(path):
    cfg = loaded(path)
    assert cfg.train_cfg == {"type": "IterBasedTrainLoop", "max_iters": 160000, "val_interval": 16000}
    assert cfg.optim_wrapper.optimizer == {"type": "AdamW", "lr": 6e-5, "betas": (0.9, 0.999), "weight_decay": 0.01}
    assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size == 16
    head, auxiliary = cfg.model.decode_head, cfg.model.auxiliary_head
    assert (head.channels, head.dropout_ratio, head.norm_cfg.type, head.align_corners) == (512, 0.1, "SyncBN", False)
    assert (auxiliary.channels, auxiliary.num_convs, auxiliary.loss_decode.loss_weight) == (256, 1, 0.4)
    assert cfg.model.test_cfg == {"mode": "whole"}
    assert cfg.model.data_preprocessor.size == cfg.train_pipeline[4].crop_size == (512, 512)


def test_learning_rate_of_the_segmentation_schedule():
    """On a schedule a hundredth as long."""
    ends = [(step.type, step.begin, step.end) for step in load_config("upernet_swin_t_ade20k").param_scheduler]
    assert ends == [("LinearLR", 0, 1500), ("PolyLR", 1500, 160000)]
    rates = list(learning_rates(load_config("upernet_swin_t_ade20k", {"settings.max_iters": 1600}), 1))
    assert rates[0] == pytest.approx(6e-11)
    assert max(rates) == rates[15] == pytest.approx(6e-5)
    assert rates[15 + 1585 // 2] == pytest.approx(3e-5, rel=2e-3)
    assert rates[-1] == pytest.approx(0, abs=1e-12)


@each([*ADE20K, *MVIT_COCO])
def test_what_decays_in_the_recipe_of_the_authors(path):
    cfg = copy.deepcopy(loaded(path))
    model = build_on_meta(cfg)
    tables = ("absolute_pos_embed", "backbone.tokens.", "relative_position_bias_table", "cpb_mlp", "logit_scale")
    kinds, found = (torch.nn.LayerNorm, torch.nn.modules.batchnorm._BatchNorm), decays(model, cfg)
    names = (name for name, module in model.named_modules() if isinstance(module, kinds))
    norms = {f"{name}.{leaf}" for name in names for leaf in ("weight", "bias")}
    assert norms <= found.keys()
    for name, decay in found.items():
        spared = name in norms or any(key in name for key in (*tables, "rel_pos_"))
        assert decay == (0 if spared else 0.01 if path in ADE20K else 0.1), name
