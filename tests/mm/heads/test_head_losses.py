import pytest
import torch
from conftest import REPO

from vitdense.mm.config.load import load_config

pytest.importorskip("mmdet")
from mmdet.models.losses import FocalLoss
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from vitdense.mm.heads.detection import ClampedFocalLoss

TRUTH = torch.tensor([[4.0, 4, 40, 50], [20, 10, 60, 30]])


def test_clamped_focal_loss_divides_by_at_least_one():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 3, 4, 4, 1, 4])  # 4 is background
    options = {"use_sigmoid": True, "gamma": 2.0, "alpha": 0.25, "loss_weight": 2.0}
    ours, theirs = ClampedFocalLoss(**options), FocalLoss(**options)
    for count in (3.0, 1.0):
        assert torch.equal(
            ours(logits, labels, avg_factor=torch.tensor(count)), theirs(logits, labels, avg_factor=count)
        )
    background = torch.full_like(labels, 4)
    p = logits.double().sigmoid()
    want = 2 * (0.75 * p**2 * -(1 - p).log()).sum()
    for none in (0.0, torch.tensor(0.0)):
        torch.testing.assert_close(ours(logits, background, avg_factor=none), want.float())
    assert theirs(logits, background, avg_factor=0.0) > 1e6 * want


def sparse_rcnn_head():
    """The six stages of the config, narrow, with 4 proposals."""
    cfg = load_config(REPO / "configs/sparse_rcnn_swin_t_coco.py")
    init_default_scope("mmdet")
    part = cfg.model.roi_head
    part.proposal_feature_channel = part.bbox_roi_extractor.out_channels = 8
    for head in part.bbox_head:
        head.update(in_channels=8, feedforward_channels=16, num_classes=3)
        head.dynamic_conv_cfg.update(in_channels=8, feat_channels=4, out_channels=8)
    part.update(train_cfg=cfg.model.train_cfg.rcnn, test_cfg=cfg.model.test_cfg.rcnn)
    torch.manual_seed(0)
    head = MODELS.build(part)
    head.init_weights()
    return head


def sparse_rcnn_losses(head, truth):
    """The losses of an image of 64 x 64 pixels with boxes [objects, 4]."""
    torch.manual_seed(1)
    sample = DetDataSample(metainfo={"img_shape": (64, 64), "ori_shape": (64, 64), "scale_factor": (1.0, 1.0)})
    sample.gt_instances = InstanceData(bboxes=truth, labels=torch.zeros(len(truth), dtype=torch.long))
    sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4))
    image = torch.tensor([[0.0, 0, 64, 64]]).repeat(4, 1)  # [4, 4]
    proposals = InstanceData(bboxes=image, imgs_whwh=image[:, [2, 3, 2, 3]], features=torch.randn(4, 8))
    maps = [torch.randn(1, 8, 64 // s, 64 // s) for s in (4, 8, 16, 32)]
    losses = head.loss(maps, [proposals], [sample])
    return {name: value for name, value in losses.items() if "loss" in name}


@pytest.mark.parametrize("objects", [0, 2])
def test_losses_of_sparse_rcnn_without_objects_are_of_their_usual_size(objects):
    head = sparse_rcnn_head()
    losses = sparse_rcnn_losses(head, TRUTH[:objects])
    classification = [value for name, value in losses.items() if name.endswith("loss_cls")]
    assert len(classification) == 6
    assert all(0 <= value < 10 for value in classification)
    sum(losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)
