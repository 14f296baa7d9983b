"""Operations on oriented boxes against brute force in float64, and their gradients against finite differences."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from vitdense.errors import OptionError
from vitdense.extensions.oriented import ops
from vitdense.extensions.oriented.boxes import DEGREE, corners, enclosing, from_corners, regular
from vitdense.extensions.oriented.ops import (
    box_iou_rotated,
    gaussian,
    kl_divergence,
    nms_rotated,
    roi_align_rotated,
    wasserstein,
)


def random_boxes(count: int, extent: float = 60, dtype=torch.float64) -> torch.Tensor:
    parts = torch.rand(count, 2) * extent, torch.rand(count, 2) * 50 + 0.5, torch.rand(count, 1) * 360 - 180
    return torch.cat(parts, 1).to(dtype)


def clip(subject: list, clipper: list) -> float:
    """Area of two convex polygons in clockwise order (Sutherland and Hodgman 1974)."""
    for (ax, ay), (bx, by) in zip(clipper, clipper[1:] + clipper[:1]):
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in subject]
        kept = []
        for i, (x, y) in enumerate(subject):
            (u, v), before = subject[i - 1], sides[i - 1]
            if (sides[i] >= 0) != (before >= 0):
                t = before / (before - sides[i])
                kept.append((u + t * (x - u), v + t * (y - v)))
            if sides[i] >= 0:
                kept.append((x, y))
        subject = kept
    pairs = zip(subject, subject[1:] + subject[:1])
    return sum(x * v - u * y for (x, y), (u, v) in pairs) / 2


def reference_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """IoU of a [N, 5] and b [N, 5] row by row, around the centre of a."""
    a, b = a.clone(), b.clone()
    b[:, :2] -= a[:, :2]
    a[:, :2] = 0
    shared = [clip(*pair) for pair in zip(corners(a).tolist(), corners(b).tolist())]
    shared = torch.tensor(shared, dtype=torch.float64)
    return shared / (a[:, 2] * a[:, 3] + b[:, 2] * b[:, 3] - shared)


def hard_pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten kinds of pairs, `count` of each: far, equal, turned by 90 degrees, nested, touching, slivers, squares, ..."""
    a, b = random_boxes(10 * count), random_boxes(10 * count)
    one, other = a.view(10, count, 5), b.view(10, count, 5)
    other[0, :, :2] += 1e4 * (torch.rand(count, 2) > 0.5)
    other[1] = one[1]
    other[2] = one[2][:, [0, 1, 3, 2, 4]] + torch.tensor([0, 0, 0, 0, 90.0])
    other[3] = one[3] * torch.tensor([1, 1, 0.1, 0.1, 1])
    other[4] = one[4]  # touches along a whole side
    side = one[4, :, 4] * DEGREE
    other[4, :, :2] += torch.stack([side.cos(), side.sin()], 1) * one[4, :, 2:3]
    one[5, :, 3] = other[5, :, 3] = 1e-3  # slivers, some of one direction
    other[5, ::2, 4] = one[5, ::2, 4]
    other[5, ::2, :2] = one[5, ::2, :2] + 1e-4
    one[6, :, 3] = one[6, :, 2]  # a square and the same at another angle
    other[6, :, :4] = one[6, :, :4]
    one[7], other[7] = one[7].round(), other[7].round()  # sides and corners that meet
    one[7, :, 4], other[7, :, 4] = torch.randint(-4, 5, (2, count)) * 45.0
    one[8, :, :2] += 1e6  # far from the origin
    other[8, :, :2] += 1e6
    return a, b


def test_iou_of_100_000_pairs_against_clipping():
    count = 10_000
    a, b = hard_pairs(count)
    want = reference_iou(a, b)
    assert (box_iou_rotated(a, b, aligned=True) - want).abs().max() <= 1e-9
    b[:, :2] -= a[:, :2]  # polygons know no centre
    a[:, :2] = 0
    polygons = box_iou_rotated(corners(a), corners(b).flip(-2), aligned=True)
    assert (polygons - want).abs().max() <= 1e-9
    assert (want > 0.1).sum() > 2 * count
    near = torch.cat([a, b], 1)[: 8 * count].chunk(2, 1)
    single = box_iou_rotated(*(one.float() for one in near), aligned=True)
    assert (single - want[: 8 * count]).abs().max() <= 1e-4


def test_iou_of_all_pairs(monkeypatch):
    a, b = random_boxes(40, 200), random_boxes(30, 200)
    rows, columns = (one.flatten() for one in torch.meshgrid(torch.arange(40), torch.arange(30), indexing="ij"))
    want = box_iou_rotated(a[rows], b[columns], aligned=True).view(40, 30)
    whole = box_iou_rotated(a, b)
    torch.testing.assert_close(whole, want, atol=1e-12, rtol=0)
    monkeypatch.setattr(ops, "PAIRS", 7)
    monkeypatch.setattr(ops, "CELLS", 64)
    torch.testing.assert_close(box_iou_rotated(a, b), whole, atol=1e-12, rtol=0)
    assert 0 < (want > 0).sum() < 600
    share = box_iou_rotated(a, b, mode="iof")
    areas = [one[:, 2] * one[:, 3] for one in (a, b)]
    union = areas[0][:, None] + areas[1] - share * areas[0][:, None]
    torch.testing.assert_close(share * areas[0][:, None] / union, want)
    assert box_iou_rotated(a[:0], b).shape == (0, 30)
    assert box_iou_rotated(a, b[:0]).shape == (40, 0)
    flat = torch.tensor([[5.0, 5, 0, 0, 30]])
    assert box_iou_rotated(flat, flat).item() == 0
    with pytest.raises(OptionError, match="giou"):
        box_iou_rotated(a, b, mode="giou")


def test_gradients_of_iou():
    torch.manual_seed(1)
    a, b = random_boxes(40, 20), random_boxes(40, 20)
    a[:5, 4], b[:5, 4] = 0, torch.tensor([0.0, 90, 0, -90, 30])  # parallel sides
    inputs = a.requires_grad_(), b.requires_grad_()
    assert gradcheck(lambda a, b: box_iou_rotated(a, b, aligned=True), inputs)
    assert gradcheck(lambda a, b: box_iou_rotated(a, b, mode="iof"), inputs, fast_mode=True)
    polygons = corners(a).detach().requires_grad_(), corners(b).detach().requires_grad_()
    rows = slice(5, None)  # a polygon has no gradient of vertical sides
    assert gradcheck(lambda a, b: box_iou_rotated(a[rows], b[rows], aligned=True), polygons)


def test_gradients_are_finite_where_boxes_coincide():
    boxes = torch.tensor([[5.0, 5, 4, 2, 0], [5, 5, 4, 4, 45], [5, 5, 0, 0, 0]], requires_grad=True)
    box_iou_rotated(boxes, boxes).sum().backward()
    assert boxes.grad.isfinite().all()


def test_quadrangles_need_not_be_rectangles():
    one = torch.tensor([[[0.0, 0], [4, 0], [4, 4], [0, 4]]])
    triangles = [[[2.0, 0], [6, 2], [2, 4], [2, 2]], [[0, 0], [4, 4], [0, 4], [0, 2]]]
    other = torch.tensor([*triangles, [[9, 9], [9, 8], [8, 8], [8, 9]]])
    shared, areas = torch.tensor([6.0, 8, 0]), torch.tensor([8.0, 8, 1])
    torch.testing.assert_close(box_iou_rotated(one, other)[0], shared / (16 + areas - shared))


def reference_nms(boxes, scores, threshold, labels):
    iou, kept = box_iou_rotated(boxes, boxes), []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(iou[i, j] <= threshold or labels[i] != labels[j] for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("threshold", [0.1, 0.5])
def test_nms(threshold):
    boxes, scores, labels = random_boxes(150, 90), torch.rand(150).round(decimals=1), torch.randint(0, 3, (150,))
    assert nms_rotated(boxes, scores, threshold, labels).tolist() == reference_nms(boxes, scores, threshold, labels)
    kept = nms_rotated(boxes, scores, threshold).tolist()
    assert kept == reference_nms(boxes, scores, threshold, torch.zeros(150))
    assert len(kept) < 140
    assert nms_rotated(corners(boxes), scores, threshold).tolist() == kept
    assert nms_rotated(boxes[:0], scores[:0], threshold).tolist() == []


def test_nms_of_a_chain():
    """Each box suppresses the next only: the second goes, so the third stays."""
    boxes = torch.tensor([[4.0 * i, 4 * i, 10, 4, 45] for i in range(9)])
    assert nms_rotated(boxes, torch.arange(9.0, 0, -1), 0.2).tolist() == [0, 2, 4, 6, 8]


def bilinear(plane: torch.Tensor, y: float, x: float) -> torch.Tensor:
    h, w = plane.shape[1:]
    if not (-1 <= y <= h and -1 <= x <= w):
        return plane.new_zeros(len(plane))
    y, x = min(max(y, 0.0), h - 1.0), min(max(x, 0.0), w - 1.0)
    rows = [(int(y), 1 - y % 1), (min(int(y) + 1, h - 1), y % 1)]
    columns = [(int(x), 1 - x % 1), (min(int(x) + 1, w - 1), x % 1)]
    return sum(p * q * plane[:, i, j] for i, p in rows for j, q in columns)


def reference_roi_align(features, rois, size, scale, ratio, aligned, clockwise):
    out = features.new_zeros(len(rois), features.shape[1], *size)
    for k, (image, cx, cy, w, h, angle) in enumerate(rois.tolist()):
        cx, cy, w, h = cx * scale, cy * scale, w * scale, h * scale
        cx, cy, w, h = (cx - 0.5, cy - 0.5, w, h) if aligned else (cx, cy, max(w, 1), max(h, 1))
        turn = math.radians(angle if clockwise else -angle)
        ny, nx = (ratio, ratio) if ratio > 0 else (math.ceil(h / size[0]), math.ceil(w / size[1]))
        for i in range(size[0]):
            for j in range(size[1]):
                for m in range(ny):
                    for n in range(nx):
                        v = ((i + (m + 0.5) / ny) / size[0] - 0.5) * h
                        u = ((j + (n + 0.5) / nx) / size[1] - 0.5) * w
                        x = cx + math.cos(turn) * u - math.sin(turn) * v
                        y = cy + math.sin(turn) * u + math.cos(turn) * v
                        out[k, :, i, j] += bilinear(features[int(image)], y, x) / (ny * nx)
    return out


# Inside, across a corner, much larger than the map, outside, without area, upright.
ROIS = torch.tensor(
    [
        [0, 9.3, 7.1, 14.5, 6.2, 33],
        [1, -1.0, 13.0, 20.0, 9.0, -71],
        [0, 9.0, 6.0, 70.0, 51.0, 45],
        [1, 95.0, 90.0, 9.0, 4.0, 10],
        [1, 7.3, 6.1, 0.0, 0.0, 12],
        [0, 8.0, 8.0, 6.0, 4.0, -90],
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(ratio, aligned, clockwise):
    features = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    options = ((3, 2), 0.5, ratio, aligned, clockwise)
    want = reference_roi_align(features.detach(), ROIS, *options)
    torch.testing.assert_close(roi_align_rotated(features, ROIS, *options), want)
    assert gradcheck(lambda x: roi_align_rotated(x, ROIS, *options), features)
    assert want[3].abs().sum() == 0 < want[1].abs().sum()


def test_roi_align_of_places_and_of_no_rois():
    features, rois = torch.randn(2, 2, 9, 9, dtype=torch.float64), ROIS[:1].clone().requires_grad_()
    assert gradcheck(lambda rois: roi_align_rotated(features, rois, 2, 0.5, 2), rois)
    features.requires_grad_()
    none = roi_align_rotated(features, ROIS[:0], 2)
    none.sum().backward()
    assert none.shape == (0, 2, 2, 2)
    assert features.grad.abs().sum() == 0
    large, many = torch.randn(1, 8, 200, 256), torch.rand(300, 6) * torch.tensor([0, 1024, 800, 60, 60, 360])
    want = roi_align_rotated(large.double(), many.double(), 7, 0.25)
    torch.testing.assert_close(roi_align_rotated(large, many, 7, 0.25).double(), want, atol=1e-5, rtol=0)


def matrix_root(matrix: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag_embed(values.clamp(min=0).sqrt()) @ vectors.mT


def test_gaussian_distances_against_their_definitions():
    a, b = random_boxes(50), random_boxes(50)
    rows = [gaussian(corners(one)) for one in (a, b)]
    (mean_a, cov_a), (mean_b, cov_b) = ((x[:, :2], x[:, [2, 4, 4, 3]].unflatten(1, (2, 2))) for x in rows)
    root = matrix_root(cov_a)
    cross = cov_a + cov_b - 2 * matrix_root(root @ cov_b @ root)
    away = mean_a - mean_b
    want = away.square().sum(-1) + cross.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(wasserstein(a, b), want)
    normal = torch.distributions.MultivariateNormal
    want = torch.distributions.kl_divergence(normal(mean_a, cov_a), normal(mean_b, cov_b))
    torch.testing.assert_close(kl_divergence(a, b), want, rtol=1e-6, atol=1e-6)  # of the least variance
    side = torch.stack([(a[:, 4] * DEGREE).cos(), (a[:, 4] * DEGREE).sin()], 1)
    torch.testing.assert_close(torch.einsum("nx,nxy,ny->n", side, cov_a, side), (a[:, 2] / 2).square())


@pytest.mark.parametrize("distance", [wasserstein, kl_divergence])
def test_gaussian_distances(distance):
    a, b = random_boxes(30).requires_grad_(), random_boxes(30).requires_grad_()
    assert gradcheck(distance, (a, b))
    assert distance(a[:, None], b).shape == (30, 30)
    same = distance(a, a)
    assert same.abs().max() <= 1e-9
    square = torch.tensor([5.0, 6, 4, 4, 0]).expand(5, 5).clone()
    square[:, 4] = torch.tensor([0.0, 30, -45, 89, -90])
    other = torch.tensor([8.0, 7, 9, 2, 20])
    for one, two in ((square, other), (other, square)):
        values = distance(one, two)
        torch.testing.assert_close(values, values[:1].expand(5))
    upright = torch.tensor([[5.0, 6, 7, 3, 90], [5, 6, 7, 3, -90], [5, 6, 3, 7, 0]])
    values = distance(upright, other)
    torch.testing.assert_close(values, values[:1].expand(3))
    flat = torch.tensor([[5.0, 5, 4, 0, 0], [5, 5, 0, 0, 0]], requires_grad=True)
    distance(flat, other).sum().backward()
    assert flat.grad.isfinite().all()


class Operations(torch.nn.Module):
    def forward(self, a, b):
        shapes = corners(regular(a)), enclosing(a), from_corners(corners(a))
        return *shapes, box_iou_rotated(a, b, aligned=True), wasserstein(a, b), kl_divergence(a, b)


def test_conventions_and_aligned_operations_trace_with_a_free_number_of_boxes():
    count = torch.export.Dim("count", min=2, max=1000)
    inputs = random_boxes(4), random_boxes(4)
    program = torch.export.export(Operations(), inputs, dynamic_shapes=({0: count}, {0: count}))
    inputs = random_boxes(9), random_boxes(9)
    for got, want in zip(program.module()(*inputs), Operations()(*inputs)):
        torch.testing.assert_close(got, want)
