"""Targets of RepPoints V2 against loops over boxes and points in float64, and against mmdet's assigners."""

import pytest
import torch

pytest.importorskip("mmdet")
from mmdet.models.task_modules.assigners import ATSSAssigner, PointAssigner
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator
from mmdet.models.utils import gaussian_radius as radius_of_mmdet
from mmengine.structures import InstanceData

from vitdense.research.reppoints_v2 import targets as targets

STRIDES = (8, 16, 32, 64, 128)


def grid(height, width, pad_shape=None):
    """Points of a batch of this size, their numbers by level, and those in an image of `pad_shape`."""
    generator = MlvlPointGenerator(STRIDES, offset=0)
    sizes = [(-(-height // stride), -(-width // stride)) for stride in STRIDES]
    points = generator.grid_priors(sizes, device="cpu", with_stride=True)
    inside = generator.valid_flags(sizes, pad_shape or (height, width), "cpu")
    return torch.cat(points), [len(x) for x in points], torch.cat(inside)


def random_boxes(n, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(n, 2, 2, generator=generator).sort(1).values * torch.tensor([width - 12.0, height - 12.0])
    ends[:, 1] += 10
    return ends.flatten(1)  # [n, 4]


def iou(a, b):
    w, h = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in range(2))
    shared = max(w, 0) * max(h, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


# ---- first boxes ----


@pytest.mark.parametrize(
    ("size", "stride"),
    [((4, 4), 8), ((31, 31), 8), ((32, 32), 8), ((63, 63), 8), ((64, 64), 16), ((16, 257), 16), ((2000, 1900), 128)],
)
def test_level_of_a_box_follows_its_size(size, stride):
    points, _, inside = grid(2048, 2048)
    assigned = targets.assign_init(points, inside, torch.tensor([[10.0, 20.0, 10.0 + size[0], 20.0 + size[1]]]))
    assert points[assigned == 1, 2].tolist() == [stride]


def test_first_boxes_equal_the_point_assigner():
    points, _, inside = grid(256, 384)
    boxes = random_boxes(40, 256, 384)
    gt = InstanceData(bboxes=boxes, labels=torch.zeros(40, dtype=torch.long))
    want = PointAssigner(scale=4, pos_num=1).assign(InstanceData(priors=points), gt).gt_inds
    got = targets.assign_init(points, inside, boxes)
    assert torch.equal(got, want)
    assert 20 < (got > 0).sum() <= 40  # some boxes share a point


# ---- refined boxes ----


def predictions(points, seed=0):
    """Boxes around the points, some inverted."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(points), 4, generator=generator)
    corners = torch.tensor([-2.0, -2.0, 2.0, 2.0]) + 1.5 * noise
    return points[:, :2].repeat(1, 2) + corners * points[:, 2:3]


def test_refined_boxes_equal_atss():
    points, counts, inside = grid(256, 384)
    boxes, predicted = random_boxes(12, 256, 384), predictions(points)
    gt = InstanceData(bboxes=boxes, labels=torch.zeros(12, dtype=torch.long))
    want = ATSSAssigner(topk=9).assign(InstanceData(priors=predicted), counts, gt).gt_inds
    got = targets.assign_atss(predicted, counts, inside, boxes, topk=9)
    assert torch.equal(got, want)
    assert (got > 0).sum() > 20


# ---- corners ----


def test_gaussian_radius_equals_mmdets():
    sizes = 300 * torch.rand(50, 2) + 1
    want = [radius_of_mmdet(size, 0.7) for size in sizes.double().tolist()]
    assert targets.gaussian_radius(sizes, 0.7).tolist() == pytest.approx(want, rel=1e-3)


def test_trap_07_radius_of_a_corner_is_in_pixels_on_all_levels():
    """Radius 8.2: on coarse levels, only the nearest point is left."""
    points, counts, inside = grid(256, 256)
    corners = torch.tensor([[66.0, 67.0]])
    heatmap, _ = targets.corner_targets(points, counts, inside, corners, torch.tensor([8.1670]))
    found = [(level > 0).sum().item() for level in heatmap.split(counts)]
    assert found == [4, 1, 1, 1, 1]
    fine = heatmap[: counts[0]]
    distances = (points[: counts[0], :2] - corners).norm(dim=1)
    near = (distances < 8.1670) & (fine < 1)
    torch.testing.assert_close(fine[near], (-distances[near].square() / (2 * 2.8890**2)).exp(), rtol=1e-3, atol=0)


# ---- semantic map ----


def test_semantic_weights_by_definition():
    """Every cell that a box touches; the smallest box of a class writes last."""
    points, counts, inside = grid(96, 128, pad_shape=(64, 96))
    boxes = torch.cat([random_boxes(9, 64, 96), torch.tensor([[8.0, 8.0, 24.0, 31.9], [3.0, 50.0, 95.9, 63.9]])])
    labels = torch.arange(11) % 3
    got = targets.semantic_weights(points[: counts[0]], inside[: counts[0]], boxes, labels, 4).T.view(4, 12, 16)
    want = torch.zeros(4, 12, 16)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for g in areas.argsort(descending=True).tolist():
        x1, y1, x2, y2 = (boxes[g] / 8).int().tolist()
        want[labels[g], y1 : min(y2 + 1, 8), x1 : min(x2 + 1, 12)] = 1 / areas[g]
    torch.testing.assert_close(got, want)
    assert not got[3].any()
    assert got[1, 1:4, 1:4].all()


# ---- all ----


def test_no_boxes_are_no_targets():
    points, counts, inside = grid(96, 128)
    none, labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    assert not targets.assign_init(points, inside, none).any()
    assert not targets.assign_atss(predictions(points), counts, inside, none, 9).any()
    heatmap, offset = targets.corner_targets(
        points, counts, inside, none[:, :2], targets.gaussian_radius(none[:, :2], 0.7)
    )
    assert heatmap.shape == (len(points),)
    assert not heatmap.any()
    assert not offset.any()
    assert not targets.semantic_weights(points[:192], inside[:192], none, labels, 4).any()


def test_points_outside_the_image_get_no_targets():
    points, counts, inside = grid(192, 256, pad_shape=(96, 128))
    boxes = torch.tensor([[70.0, 60.0, 128.0, 96.0], [100.0, 20.0, 127.0, 90.0]])  # nearer to points outside
    radii = torch.tensor([30.0, 30.0])
    heatmap, _ = targets.corner_targets(points, counts, inside, boxes[:, 2:], radii)
    found = [targets.assign_init(points, inside, boxes), heatmap]
    found.append(targets.assign_atss(predictions(points), counts, inside, boxes, 9))
    found.append(targets.semantic_weights(points[: counts[0]], inside[: counts[0]], boxes, torch.tensor([0, 1]), 2))
    for values in found:
        assert values.any()
        assert not values[~inside[: len(values)]].any()
