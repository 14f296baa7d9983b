import pytest
import torch
from conftest import REPO

from vitdense.mm.config.load import load_config

pytest.importorskip("mmdet")
from mmdet.datasets import CocoDataset
from mmdet.models.losses import FocalLoss, GIoULoss
from mmdet.models.roi_heads.bbox_heads import dii_head
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


def test_sparse_rcnn_beside_a_rank_without_objects_has_twice_the_losses(monkeypatch):
    """They are divided by the mean number of objects of the ranks. None is negative."""
    head = sparse_rcnn_head().eval()
    alone = sparse_rcnn_losses(head, TRUTH)
    monkeypatch.setattr(dii_head, "reduce_mean", lambda number: number / 2)  # the other of two ranks has 0
    beside = sparse_rcnn_losses(head, TRUTH)
    assert len(alone) == 18
    for name, value in alone.items():
        assert value > 0
        assert beside[name].item() == pytest.approx(2 * value.item(), rel=1e-5), name


def test_iou_loss_is_negative_only_where_corners_of_the_truth_are_swapped():
    """Data sets of mmdet leave such boxes out: their width or height is negative."""
    torch.manual_seed(0)
    scale = 10 ** torch.empty(20000, 1).uniform_(-1, 6)
    boxes = [scale * torch.rand(20000, 2, 2).sort(1).values.flatten(1) for _ in range(2)]  # [n, 4] each
    losses = GIoULoss(reduction="none")(*boxes)
    assert losses.min() > -1e-4
    assert losses.max() < 2 + 1e-4
    inside, swapped = torch.tensor([[38.0, 28, 42, 32]]), torch.tensor([[60.0, 50, 20, 10]])
    assert GIoULoss()(inside, swapped).item() == pytest.approx(-99)
    image = {"height": 64, "width": 64, "img_id": 1, "file_name": "1.jpg"}
    annotation = {"bbox": [60, 50, -40, -40], "area": 1600, "category_id": 1}
    dataset = CocoDataset(lazy_init=True, test_mode=True, data_prefix={"img": ""})
    dataset.cat_ids, dataset.cat2label = [1], {1: 0}
    info = {"raw_img_info": image, "raw_ann_info": [annotation, {**annotation, "bbox": [20, 10, 40, 40]}]}
    assert [x["bbox"] for x in dataset.parse_data_info(info)["instances"]] == [[20, 10, 60, 50]]
