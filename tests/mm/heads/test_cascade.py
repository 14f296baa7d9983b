"""The cascade of detectron2 against its definition, on random maps, boxes and masks."""

import pytest
import torch
from conftest import REPO
from mmdet.models.roi_heads import CascadeRoIHead
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from vitdense.mm.config.load import load_config

SIDE, WIDTH, CLASSES = 128, 8, 3


@pytest.fixture
def head():
    cfg = load_config(REPO / "configs/cascade_mvitv2_t_coco.py")
    init_default_scope("mmdet")
    part = cfg.model.roi_head
    for extractor in (part.bbox_roi_extractor, part.mask_roi_extractor):
        extractor.out_channels = WIDTH
    small = {"in_channels": WIDTH, "conv_out_channels": WIDTH, "num_classes": CLASSES, "norm_cfg": {"type": "BN"}}
    for box_head in part.bbox_head:
        box_head.update(small, fc_out_channels=16)
    part.mask_head.update(small)
    part.update(train_cfg=cfg.model.train_cfg.rcnn, test_cfg=cfg.model.test_cfg.rcnn)
    head = MODELS.build(part)
    head.init_weights()
    for box_head in head.bbox_head:  # boxes that move, and scores that differ
        torch.nn.init.normal_(box_head.fc_reg.weight, std=0.2)
        torch.nn.init.normal_(box_head.fc_cls.weight, std=2.0)
    return head


def boxes(n):
    corners = torch.rand(n, 2) * (SIDE - 50)
    return torch.cat([corners, corners + 10 + 40 * torch.rand(n, 2)], dim=1)  # [n, 4]


def maps():
    return [torch.randn(2, WIDTH, SIDE // s, SIDE // s, requires_grad=True) for s in (4, 8, 16, 32, 64)]


def samples(objects):
    images, proposals = [], []
    for n in objects:
        shape = (SIDE, SIDE)
        image = DetDataSample(metainfo={"img_shape": shape, "ori_shape": shape, "scale_factor": (1.0, 1.0)})
        truth = boxes(n)
        masks = BitmapMasks(torch.ones(n, SIDE, SIDE).numpy().astype("uint8"), SIDE, SIDE)
        image.gt_instances = InstanceData(bboxes=truth, labels=torch.arange(n) % CLASSES, masks=masks)
        images.append(image)
        proposals.append(InstanceData(bboxes=torch.cat([truth + 2 * torch.rand(n, 4), boxes(20)])))
    return proposals, images


def test_gradient_into_the_maps_is_scaled_and_into_the_head_is_not(head):
    x, rois = maps(), bbox2roi([boxes(5), boxes(5)])
    parameters = list(head.bbox_head[1].shared_convs.parameters())
    gradients = []
    for forward in (head._bbox_forward, CascadeRoIHead._bbox_forward.__get__(head)):
        results = forward(1, x, rois)
        total = results["cls_score"].square().sum() + results["bbox_pred"].square().sum()
        gradients.append(torch.autograd.grad(total, [*x[:2], *parameters]))
    for i, (ours, whole) in enumerate(zip(*gradients)):
        torch.testing.assert_close(ours, whole / 3 if i < 2 else whole)
    assert gradients[0][0].abs().max() > 0


def test_mask_loss_uses_positives_of_the_first_stage(head):
    x, (proposals, images) = maps(), samples([3, 2])
    seen = []
    head.mask_head.register_forward_hook(lambda module, args, result: seen.append(args[0].shape[0]))
    torch.manual_seed(1)
    losses = head.loss(x, proposals, images)
    assert {name for name in losses if "mask" in name} == {"s0.loss_mask"}
    assert {name for name in losses if "bbox" in name} == {f"s{stage}.loss_bbox" for stage in range(3)}
    assert len(seen) == 1
    assert seen[0] >= 5  # the true boxes are among them
    sum(value for name, value in losses.items() if "loss" in name).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None] == []


def test_every_sampled_box_is_refined_including_ground_truth(head, monkeypatch):
    proposals, images = samples([3, 2])
    rois = []
    plain = CascadeRoIHead.bbox_loss

    def spy(self, stage, x, sampling_results):
        rois.append([sampled.priors for sampled in sampling_results])
        return plain(self, stage, x, sampling_results)

    monkeypatch.setattr(CascadeRoIHead, "bbox_loss", spy)
    truth = [image.gt_instances.bboxes for image in images]
    head.loss(maps(), proposals, images)
    assert [[len(of_image) for of_image in stage] for stage in rois] == [[20 + 2 * 3, 20 + 2 * 2]] * 3
    for stage, of_images in enumerate(rois):
        for found, true in zip(of_images, truth):
            included = [(found == box).all(dim=1).any().item() for box in true]
            assert all(included) if stage == 0 else not any(included)  # refined, not added again


@pytest.mark.parametrize("objects", [[2, 0], [0, 0]])
def test_images_without_objects_train(head, objects):
    losses = head.loss(maps(), *samples(objects))
    total = sum(value for name, value in losses.items() if "loss" in name)
    total.backward()
    assert torch.isfinite(total)
    # Every parameter needs a gradient: DDP waits for all of them.
    assert [name for name, p in head.mask_head.named_parameters() if p.grad is None] == []
    assert all(torch.isfinite(p.grad).all() for p in head.mask_head.parameters())
    assert all(torch.isfinite(buffer).all() for buffer in head.buffers())


@torch.no_grad()
def test_scores_are_mean_probabilities_and_masks_use_the_final_boxes(head):
    head.eval()
    head.test_cfg.score_thr = 0.0
    x, (proposals, images) = maps(), samples([3, 2])
    metas = [image.metainfo for image in images]
    rois = bbox2roi([p.bboxes for p in proposals])
    scores = []
    for stage, box_head in enumerate(head.bbox_head):
        logits, deltas = box_head(head.bbox_roi_extractor[stage](x[:4], rois))
        scores.append(logits.softmax(dim=1))
        if stage < 2:
            refined = box_head.regress_by_class(rois[:, 1:], None, deltas, metas[0])
            rois = torch.cat([rois[:, :1], refined], dim=1)
    want = torch.stack(scores).mean(dim=0)  # [N, classes + 1]
    sizes = tuple(len(p) for p in proposals)
    got_rois, got, _ = head._refine_roi(x, bbox2roi([p.bboxes for p in proposals]), metas, sizes)
    torch.testing.assert_close(torch.cat(got).softmax(dim=1), want)
    torch.testing.assert_close(torch.cat(got_rois), rois)

    seen = []
    head.mask_head.register_forward_hook(lambda module, args, result: seen.append((args[0], result)))
    results = head.predict(x, proposals, images)
    [(features, masks)] = seen  # once for both images
    torch.testing.assert_close(features, head.mask_roi_extractor(x[:4], bbox2roi([r.bboxes for r in results])))
    assert [len(r.masks) for r in results] == [len(r) for r in results]
    assert masks.shape == (sum(map(len, results)), CLASSES, 28, 28)
