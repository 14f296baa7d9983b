"""Targets of RepPoints V2 against loops over boxes and points in float64, and against mmdet's assigners."""

import math

import pytest
import torch

pytest.importorskip("mmdet")
from mmdet.models.task_modules.assigners import ATSSAssigner, PointAssigner
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator
from mmdet.models.utils import gaussian_radius as radius_of_mmdet
from mmdet.structures.bbox import bbox_overlaps
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


def test_first_boxes_equal_those_of_the_point_assigner():
    points, _, inside = grid(256, 384)
    boxes = random_boxes(40, 256, 384)
    gt = InstanceData(bboxes=boxes, labels=torch.zeros(40, dtype=torch.long))
    want = PointAssigner(scale=4, pos_num=1).assign(InstanceData(priors=points), gt).gt_inds
    got = targets.assign_init(points, inside, boxes)
    assert torch.equal(got, want)
    assert 20 < (got > 0).sum() <= 40  # some boxes share a point


def test_first_box_of_a_shared_point_is_the_nearest():
    points, _, inside = grid(128, 128)
    boxes = torch.tensor([[13.0, 12.0, 53.0, 52.0], [12.5, 12.0, 52.5, 52.0], [14.0, 12.0, 54.0, 52.0]])
    assigned = targets.assign_init(points, inside, boxes)
    assert assigned[assigned > 0].tolist() == [2]


# ---- refined boxes ----


def predictions(points, seed=0):
    """Boxes around the points, some inverted."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(points), 4, generator=generator)
    corners = torch.tensor([-2.0, -2.0, 2.0, 2.0]) + 1.5 * noise
    return points[:, :2].repeat(1, 2) + corners * points[:, 2:3]


def test_refined_boxes_equal_those_of_atss():
    points, counts, inside = grid(256, 384)
    boxes, predicted = random_boxes(12, 256, 384), predictions(points)
    gt = InstanceData(bboxes=boxes, labels=torch.zeros(12, dtype=torch.long))
    want = ATSSAssigner(topk=9).assign(InstanceData(priors=predicted), counts, gt).gt_inds
    got = targets.assign_atss(predicted, counts, inside, boxes, topk=9)
    assert torch.equal(got, want)
    assert (got > 0).sum() > 20


def test_refined_boxes_by_definition_with_few_points_in_the_image():
    """Per level the nearest 9 points in the image, or all; statistics over those alone."""
    points, counts, inside = grid(192, 256, pad_shape=(96, 160))
    boxes, predicted = random_boxes(6, 96, 160), predictions(points)
    predicted[~inside] = boxes[0]  # they would be positive
    got = targets.assign_atss(predicted, counts, inside, boxes, topk=9)
    best = [(-1.0, 0)] * len(points)
    for g, box in enumerate(boxes.double().tolist()):
        center = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]
        candidates, start = [], 0
        at = [((p[0] + p[2]) / 2, (p[1] + p[3]) / 2) for p in predicted.double().tolist()]
        for count in counts:
            level = [n for n in range(start, start + count) if inside[n]]
            candidates += sorted(level, key=lambda n: math.dist(at[n], center))[:9]
            start += count
        overlaps = {n: max(0.0, iou(predicted[n].double().tolist(), box)) for n in candidates}
        values = torch.tensor(list(overlaps.values()), dtype=torch.float64)
        for n, overlap in overlaps.items():
            (x, y), margin = at[n], 0.01
            is_inside = min(x - box[0], y - box[1], box[2] - x, box[3] - y) > margin
            if is_inside and overlap >= values.mean() + values.std() and overlap > best[n][0]:
                best[n] = (overlap, g + 1)
    assert len(candidates) < 45  # not all levels have nine
    assert got.tolist() == [g for _, g in best]
    assert got.any()


# ---- corners ----


@pytest.mark.parametrize(("size", "radius"), [((100, 100), 8.1670), ((50, 100), 5.3869)])
def test_gaussian_radius(size, radius):
    assert targets.gaussian_radius(torch.tensor([size, size[::-1]]), 0.7).tolist() == pytest.approx(
        [radius] * 2, abs=1e-4
    )


def test_gaussian_radius_is_the_least_of_three_cases():
    """CornerNet: both corners move into the box, one in and one out, both out. The first never allows more."""
    torch.manual_seed(0)
    sizes = torch.exp(torch.empty(4000, 2, dtype=torch.float64).uniform_(-3, 8))
    sizes[:1000, 1] = sizes[:1000, 0]  # where the three are nearest to each other
    total, area = sizes.sum(1), sizes.prod(1)
    for iou in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        shrunk = (total - (total**2 - 4 * area * (1 - iou)).sqrt()) / 4
        mixed = (total - (total**2 - 4 * area * (1 - iou) / (1 + iou)).sqrt()) / 2
        grown = ((total**2 + 4 * area * (1 - iou) / iou).sqrt() - total) / 4
        least = torch.stack([shrunk, mixed, grown]).amin(0)
        torch.testing.assert_close(targets.gaussian_radius(sizes, iou), least, rtol=1e-9, atol=0)


def test_gaussian_radius_equals_mmdets():
    sizes = 300 * torch.rand(50, 2) + 1
    want = [radius_of_mmdet(size, 0.7) for size in sizes.double().tolist()]
    assert targets.gaussian_radius(sizes, 0.7).tolist() == pytest.approx(want, rel=1e-3)


def test_corner_targets_by_definition():
    points, counts, inside = grid(192, 256, pad_shape=(160, 224))
    boxes = random_boxes(7, 160, 224)
    corners = boxes[:, :2].contiguous()
    radii = targets.gaussian_radius((boxes[:, 2:] - boxes[:, :2]).flip(1), 0.7)
    heatmap, offset = targets.corner_targets(points, counts, inside, corners, radii)
    want, owners, start = torch.zeros(len(points), dtype=torch.float64), [set() for _ in points], 0
    for count in counts:
        level = [n for n in range(start, start + count) if inside[n]]
        for g, (corner, radius) in enumerate(zip(corners.double().tolist(), radii.double().tolist())):
            sigma = (2 * radius + 1) / 6
            far = {n: math.dist(points[n, :2].tolist(), corner) for n in level}
            for n, distance in far.items():
                if distance < radius:
                    want[n] = max(want[n], math.exp(-(distance**2) / (2 * sigma**2)))
            nearest = min(far, key=far.get)
            want[nearest] = 1
            owners[nearest].add(g)
        start += count
    torch.testing.assert_close(heatmap.double(), want, rtol=1e-5, atol=1e-6)
    assert (heatmap == 1).tolist() == [bool(owner) for owner in owners]
    for n, owner in enumerate(owners):
        target = (corners[max(owner)] - points[n, :2]) / points[n, 2] if owner else torch.zeros(2)
        torch.testing.assert_close(offset[n], target, msg=f"point {n} of boxes {owner}")
    assert max(map(len, owners)) > 1  # some share a point: that of the last box


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


def test_iou_of_inverted_boxes_is_zero():
    """What `assign_atss` and the targets of classes rely on."""
    inverted = torch.tensor([[50.0, 50.0, 20.0, 20.0], [50.0, 20.0, 20.0, 50.0], [30.0, 30.0, 30.0, 40.0]])
    assert not bbox_overlaps(inverted, torch.tensor([[10.0, 10.0, 60.0, 60.0]])).any()
