"""mmcv's ops for oriented boxes on ours: arguments, orders and conventions as in its compiled extension."""

import importlib
import math

import pytest
import torch
from conftest import run_python
from torch.autograd import gradcheck

from vitdense.extensions.oriented import EXTENSION, ops
from vitdense.extensions.oriented.boxes import corners, from_corners
from vitdense.ops import ops_in_use

mm = pytest.importorskip("mmcv.ops")
pytestmark = pytest.mark.skipif(ops_in_use().kind != "stand-in", reason="a compiled mmcv is in use")
QUARTER = math.pi / 2


def random_boxes(count: int) -> torch.Tensor:  # in radians
    return torch.cat([torch.rand(count, 2) * 60, torch.rand(count, 2) * 40 + 1, torch.rand(count, 1) * 6 - 3], 1)


def degrees(boxes: torch.Tensor) -> torch.Tensor:
    return torch.cat([boxes[:, :4], boxes[:, 4:].rad2deg()], 1)


@pytest.mark.long
def test_every_declared_op_exists_and_is_imported_when_called():
    for name, module in EXTENSION.ops.items():
        assert callable(getattr(importlib.import_module(module), name))
    code = """
import sys, torch, vitdense, mmcv.ops
assert "vitdense.extensions.oriented.stand_in" not in sys.modules
box = torch.tensor([[5.0, 5, 4, 2, 0.3]])
print(mmcv.ops.box_iou_rotated(box, box).item())
"""
    assert float(run_python(code).stdout.splitlines()[-1]) == pytest.approx(1)


@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_box_iou(mode):
    a, b = random_boxes(8), random_boxes(6)
    want = ops.box_iou_rotated(degrees(a), degrees(b), mode=mode)
    torch.testing.assert_close(mm.box_iou_rotated(a, b, mode), want)
    turned = a * torch.tensor([1, 1, 1, 1, -1]), b * torch.tensor([1, 1, 1, 1, -1])
    torch.testing.assert_close(mm.box_iou_rotated(*turned, mode, clockwise=False), want)
    torch.testing.assert_close(mm.box_iou_rotated(a[:6], b, mode, aligned=True), want[:6].diagonal())
    quads = corners(degrees(a)).flatten(1), corners(degrees(b)).flatten(1)
    torch.testing.assert_close(mm.box_iou_quadri(*quads, mode), want)
    torch.testing.assert_close(mm.box_iou_quadri(quads[0][:6], quads[1], mode, aligned=True), want[:6].diagonal())
    assert (want > 0.05).any()


def test_nms():
    boxes, scores, labels = random_boxes(60), torch.rand(60), torch.randint(0, 2, (60,))
    kept = ops.nms_rotated(degrees(boxes), scores, 0.2)
    dets, index = mm.nms_rotated(boxes, scores, 0.2)
    assert torch.equal(index, kept)
    assert torch.equal(dets, torch.cat([boxes[kept], scores[kept, None]], 1))
    turned = mm.nms_rotated(boxes * torch.tensor([1, 1, 1, 1, -1]), scores, 0.2, clockwise=False)[1]
    assert torch.equal(turned, kept)
    quads = corners(degrees(boxes)).flatten(1)
    assert torch.equal(mm.nms_quadri(quads, scores, 0.2)[1], kept)
    for labelled in (mm.nms_rotated(boxes, scores, 0.2, labels), mm.nms_quadri(quads, scores, 0.2, labels)):
        assert torch.equal(labelled[1], kept)  # mmcv's own ops do not look at the labels
    by_class = ops.nms_rotated(degrees(boxes), scores, 0.2, labels)
    same = mm.batched_nms(boxes, scores, labels, {"type": "nms_rotated", "iou_threshold": 0.2})[1]
    assert torch.equal(same, by_class)
    assert len(kept) < len(by_class) < 60


def test_values_of_the_tests_of_mmcv():
    a = torch.tensor([[1.0, 1, 3, 4, 0.5], [2, 2, 3, 4, 0.6], [7, 7, 8, 8, 0.4]])
    b = torch.tensor([[0.0, 2, 2, 5, 0.3], [2, 1, 3, 3, 0.5], [5, 5, 6, 7, 0.4]])
    iou = torch.tensor([[0.3708, 0.4351, 0], [0.1104, 0.4487, 0.0424], [0, 0, 0.3622]])
    iof = torch.tensor([[0.4959, 0.5306, 0], [0.1823, 0.5420, 0.1832], [0, 0, 0.4404]])
    torch.testing.assert_close(mm.box_iou_rotated(a, b), iou, atol=1e-4, rtol=0)
    torch.testing.assert_close(mm.box_iou_rotated(a, b, "iof"), iof, atol=1e-4, rtol=0)
    boxes = torch.tensor([[6.0, 3, 8, 7, 0.5], [3, 6, 9, 11, 0.6], [3, 7, 10, 12, 0.3], [1, 4, 13, 7, 0.6]])
    scores, labels = torch.tensor([0.7, 0.8, 0.5, 0.9]), torch.tensor([1.0, 0, 1, 0])
    for given in (None, labels):
        assert mm.nms_rotated(boxes, scores, 0.5, given)[1].tolist() == [3, 1, 0]
    points = torch.tensor([[1.0, 1, 2, 2, 1, 2, 2, 1, 1, 3, 3, 1, 2, 3, 3, 2, 1.5, 1.5]])
    torch.testing.assert_close(mm.min_area_polygons(points), torch.tensor([[3.0, 1, 1, 1, 1, 3, 3, 3]]))


# Two maps, and what RoIAlignRotated gives in mmcv's own tests for 2 x 2 bins with four samples each.
SMALL, LARGE = [[1.0, 2], [3, 4]], [[1.0, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]]
PUBLISHED = [
    (SMALL, [0, 0.5, 0.5, 1, 1, 0], [[1, 1.25], [1.5, 1.75]]),
    (SMALL, [0, 0.5, 0.5, 1, 1, QUARTER], [[1.5, 1], [1.75, 1.25]]),
    (LARGE, [0, 1.5, 1.5, 3, 3, 0], [[1.9375, 4.75], [7.5625, 10.375]]),
    (LARGE, [0, 1.5, 1.5, 3, 3, QUARTER], [[7.5625, 1.9375], [10.375, 4.75]]),
]


@pytest.mark.parametrize(("plane", "roi", "want"), PUBLISHED)
def test_roi_align_gives_the_published_values(plane, roi, want):
    features, rois = torch.tensor([[plane]], requires_grad=True), torch.tensor([roi])
    got = mm.roi_align_rotated(features, rois, (2, 2), 1.0, 2, True, True)
    other = mm.RoIAlignRotated(2, 1.0, 2, clockwise=False)(features, rois * torch.tensor([1, 1, 1, 1, 1, -1]))
    torch.testing.assert_close(got, other)
    expected = torch.tensor([[want]])
    if roi[-1]:  # mmcv's tests turn counterclockwise
        got = mm.RoIAlignRotated(2, 1.0, 2)(features, rois)
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    corner = 3.0625 if plane is SMALL else 0.47265625
    assert features.grad[0, 0, 0, 0].item() == pytest.approx(corner)
    assert features.grad.sum().item() == pytest.approx(4, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_roi_align_types_and_gradient(dtype):
    rois = torch.tensor([[0, 9.3, 7.1, 14.5, 6.2, 0.6], [1, -1, 13, 20, 9, -1.2]])
    layer = mm.RoIAlignRotated((3, 2), 0.5, 0)
    assert gradcheck(lambda x: layer(x, rois.double()), torch.randn(2, 2, 7, 9).double().requires_grad_())
    x = torch.randn(2, 3, 7, 9).to(dtype).requires_grad_()
    out = layer(x, rois)
    out.sum().backward()
    reference = x.detach().double().requires_grad_()
    want = layer(reference, rois.double())
    want.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(x.grad.double(), reference.grad, atol=tolerance, rtol=tolerance)


def test_differentiable_iou():
    one = torch.tensor([0.5, 0.5, 1, 1, 0]).expand(1, 6, 5).clone().requires_grad_()
    other = one.detach().clone()
    other[0, 1:3, 4] = torch.tensor([QUARTER, QUARTER / 2])
    other[0, 3:5, :2] = torch.tensor([[1.0, 1], [1.5, 1.5]])
    other[0, 5, 2:] = torch.tensor([0.5, 0.5, 0.2])
    octagon = 2 * 2**0.5 - 2  # shared by a unit square and the same turned by 45 degrees
    want = torch.tensor([[1, 1, octagon / (2 - octagon), 1 / 7, 0, 0.25]])
    got = mm.diff_iou_rotated_2d(one, other)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert one.grad.isfinite().all()


def test_differentiable_iou_equals_ours_with_its_gradient():
    a, b = random_boxes(200).double(), random_boxes(200).double()
    values, grads = [], []
    for one in (
        lambda a: mm.diff_iou_rotated_2d(a[None], b[None])[0],
        lambda a: ops.box_iou_rotated(degrees(a), degrees(b), aligned=True),
    ):
        boxes = a.clone().requires_grad_()
        values.append(one(boxes))
        values[-1].sum().backward()
        grads.append(boxes.grad)
    torch.testing.assert_close(*values, atol=1e-7, rtol=0)
    torch.testing.assert_close(*grads, atol=1e-6, rtol=1e-5)
    assert (values[0] > 0.1).sum() > 20


def test_vertices_that_coincide_are_taken_once():
    """Equal boxes have eight valid corners, with rounding sixteen vertices more."""
    square = torch.tensor([[1.0, 1], [-1, 1], [-1, -1], [1, -1]])
    vertices = torch.cat([square, square, *[square + 1e-7] * 4])[None, None]
    mask = torch.ones(1, 1, 24, dtype=torch.bool)
    mask[..., 20:] = False
    ext = importlib.import_module("mmcv._ext")
    index = ext.diff_iou_rotated_sort_vertices_forward(vertices, mask, mask.sum(-1).int())
    assert index.dtype == torch.int32
    x, y = vertices[0, 0, index[0, 0].long()].unbind(-1)
    area = (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2
    assert area.item() == pytest.approx(4)
    mask[..., 2:] = False
    few = ext.diff_iou_rotated_sort_vertices_forward(vertices, mask, mask.sum(-1).int())
    assert few.unique().tolist() == [8]


def test_min_area_polygons():
    points = torch.rand(20, 9, 2, dtype=torch.float64) * torch.tensor([30, 10])
    got = mm.min_area_polygons(points.flatten(1)).unflatten(1, (4, 2))
    torch.testing.assert_close(from_corners(got)[:, 2:4], from_corners(points)[:, 2:4])
    (right, up), (left, down) = (got[:, 0] - got[:, 1]).unbind(-1), (got[:, 2] - got[:, 1]).unbind(-1)
    assert (right >= 0).all()  # the frame is turned by 0 to 90 degrees
    assert (up >= -1e-9).all()
    assert (left <= 1e-9).all()
    assert (down >= 0).all()


def test_points_in_polygons():
    points = torch.rand(300, 2) * 70
    boxes = random_boxes(7)
    quads = corners(degrees(boxes))
    away = points[:, None] - boxes[:, :2]
    cos, sin = boxes[:, 4].cos(), boxes[:, 4].sin()
    along, across = away[..., 0] * cos + away[..., 1] * sin, away[..., 1] * cos - away[..., 0] * sin
    want = (along.abs() < boxes[:, 2] / 2) & (across.abs() < boxes[:, 3] / 2)
    for corner in (quads, quads.flip(1)):
        assert torch.equal(mm.points_in_polygons(points, corner.flatten(1)).bool(), want)
    assert want.any(0).all()
