"""HTC's RoI head against its definition: masks flow from stage to stage, and are averaged in tests."""

import mmcv
import numpy as np
import pytest
import torch
from mmdet.models.roi_heads import HybridTaskCascadeRoIHead
from mmdet.registry import MODELS
from mmdet.structures.bbox import bbox2roi
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from vitdense.mm.config.load import load_config

SIDE, WIDTH, CLASSES = 128, 8, 3


def build(name, **changes):
    cfg = load_config(name)
    init_default_scope("mmdet")
    part = cfg.model.roi_head
    small = {"in_channels": WIDTH, "conv_out_channels": WIDTH, "num_classes": CLASSES}
    for extractor in ("bbox_roi_extractor", "mask_roi_extractor", "semantic_roi_extractor"):
        if extractor in part:
            part[extractor].out_channels = WIDTH
    for head in [*part.bbox_head, *part.mask_head]:
        head.update(small)
    for head in part.bbox_head:
        head.update(fc_out_channels=16, norm_cfg={"type": "BN"})
    if "semantic_head" in part:
        part.semantic_head.update(in_channels=WIDTH, conv_out_channels=WIDTH, num_classes=CLASSES)
    part.update(train_cfg=cfg.model.train_cfg.rcnn, test_cfg=cfg.model.test_cfg.rcnn, **changes)
    torch.manual_seed(0)
    head = MODELS.build(part).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return head


def inputs():
    torch.manual_seed(1)
    maps = [torch.randn(2, WIDTH, SIDE // s, SIDE // s) for s in (4, 8, 16, 32, 64)]
    corners = torch.rand(5, 2) * (SIDE - 60)
    boxes = torch.cat([corners, corners + 20 + 40 * torch.rand(5, 2)], dim=1)  # [5, 4]
    return maps, [boxes[:3], boxes[3:]]


@pytest.mark.parametrize("flow", [True, False])
@pytest.mark.parametrize("name", ["htcpp_swin_b_coco", "htcpp_without_semantic_swin_b_coco"])
@torch.no_grad()
def test_masks_of_a_test_are_the_mean_of_all_stages(name, flow):
    head = build(name, mask_info_flow=flow)
    maps, boxes = inputs()
    rois = bbox2roi(boxes)
    features = head.mask_roi_extractor[0](maps[:4], rois)  # [5, C, 14, 14]
    semantic = head.semantic_head(maps)[1] if head.with_semantic else None
    if semantic is not None:
        features = features + head.semantic_roi_extractor([semantic], rois)
    want, previous = [], None
    for mask_head in head.mask_head:  # section 3.1
        x = features if previous is None else features + mask_head.conv_res(previous)
        for conv in mask_head.convs:
            x = conv(x)
        previous = x if flow else None
        want.append(mask_head.conv_logits(mask_head.upsample(x).relu()))
    got = head._mask_forward(-1, maps, rois, semantic, training=False)["mask_preds"]
    torch.testing.assert_close(got, want)
    if flow:  # mmdet's own result is the last stage alone
        upstream = HybridTaskCascadeRoIHead._mask_forward(head, -1, maps, rois, semantic, training=False)["mask_preds"]
        torch.testing.assert_close(upstream, want[-1:])

    seen = []
    predict = head.mask_head[-1].predict_by_feat
    head.mask_head[-1].predict_by_feat = lambda mask_preds, **rest: (
        seen.extend(mask_preds) or predict(mask_preds, **rest)
    )
    metas = 2 * [{"img_shape": (SIDE, SIDE), "ori_shape": (SIDE, SIDE), "scale_factor": (1.0, 1.0)}]
    results = [
        InstanceData(bboxes=part, scores=torch.ones(len(part)), labels=torch.zeros(len(part), dtype=torch.long))
        for part in boxes
    ]
    out = head.predict_mask(maps, semantic, metas, results, rescale=True)
    torch.testing.assert_close(torch.cat(seen), torch.stack(want).sigmoid().mean(0))
    assert [result.masks.shape for result in out] == [(3, SIDE, SIDE), (2, SIDE, SIDE)]


def test_first_mask_head_has_no_residual_convolution():
    """It would have no gradient, which distributed training refuses."""
    head = build("htcpp_swin_b_coco")
    assert [mask_head.with_conv_res for mask_head in head.mask_head] == [False, True, True]


def test_semantic_branch_is_removed_completely():
    full, without = (load_config(name) for name in ("htcpp_swin_b_coco", "htcpp_without_semantic_swin_b_coco"))
    assert full.model.data_preprocessor.pad_seg
    assert full.train_dataloader.dataset.data_prefix.seg
    steps = [step for step in full.train_dataloader.dataset.pipeline if step.type == "LoadAnnotations"]
    assert [step.with_seg for step in steps] == [True]
    text = without.pretty_text
    assert not any(word in text for word in ("with_seg", "pad_seg", "semantic_head", "semantic_roi_extractor", "stuff"))
    del full.model.roi_head["semantic_head"], full.model.roi_head["semantic_roi_extractor"]
    del full.model.data_preprocessor["pad_seg"]
    assert full.model == without.model


@pytest.mark.parametrize("name", ["htcpp_swin_b_coco", "htcpp_swin_l_coco", "htcpp_without_semantic_swin_b_coco"])
def test_recipe_of_htcpp(name):
    cfg = load_config(name)
    for head in cfg.model.roi_head.bbox_head:
        assert head.reg_class_agnostic
        assert (head.num_shared_convs, head.num_shared_fcs) == (4, 1)
    block, fpn = cfg.model.neck
    assert block.type == "vitdense.GlobalBlock"
    assert block.in_channels == fpn.in_channels
    assert block.in_channels[-1] == 32 * block.num_heads
    rcnn = cfg.model.test_cfg.rcnn
    assert (rcnn.nms.type, rcnn.nms.iou_threshold, rcnn.score_thr) == ("soft_nms", 0.5, 0.001)
    assert cfg.model.backbone.with_cp
    assert cfg.train_dataloader.batch_size == 1
    assert cfg.auto_scale_lr.base_batch_size == 16
    epochs = 36 if "_l_" in name else 72
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].end) == (epochs, epochs)
    assert cfg.param_scheduler[1].milestones == ([27, 33] if epochs == 36 else [63, 69])


def test_labels_of_the_semantic_branch_are_scaled_once_and_padded(tmp_path):
    """From a file to what the loss reads, through the pipeline and the data preprocessor."""
    cfg = load_config("htcpp_swin_b_coco")
    init_default_scope("mmdet")
    mmcv.imwrite(np.full((60, 100, 3), 7, np.uint8), str(tmp_path / "image.png"))
    mmcv.imwrite(np.full((60, 100), 156, np.uint8), str(tmp_path / "labels.png"))
    polygon = [[10, 10, 90, 10, 90, 50, 10, 50]]
    sample = {"img_path": str(tmp_path / "image.png"), "seg_map_path": str(tmp_path / "labels.png"), "img_id": 1}
    sample |= {"sample_idx": 0, "height": 60, "width": 100}
    sample["instances"] = [{"bbox": [10, 10, 90, 50], "bbox_label": 0, "mask": polygon, "ignore_flag": 0}]
    packed = Compose(cfg.train_dataloader.dataset.pipeline)(sample)
    height, width = packed["inputs"].shape[1:]
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    batch = preprocessor({"inputs": [packed["inputs"]], "data_samples": [packed["data_samples"]]}, training=True)
    labels = batch["data_samples"][0].gt_sem_seg.sem_seg  # [1, H, W]
    assert labels.shape[1:] == batch["inputs"].shape[2:]
    assert (labels[:, :height, :width] == 156).all()
    rest = labels.clone()
    rest[:, :height, :width] = 255
    assert (rest == 255).all()
    assert cfg.model.roi_head.semantic_head.seg_scale_factor == 1 / 8
    assert cfg.model.roi_head.semantic_head.num_classes == 183
