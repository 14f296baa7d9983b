"""NMS, soft-NMS and nms_match of mmcv on the stand-in, against reference implementations."""

import math

import pytest
import torch

from vitdense.ops import ops_in_use

mm = pytest.importorskip("mmcv.ops")
pytestmark = pytest.mark.skipif(ops_in_use().kind != "stand-in", reason="a compiled mmcv is in use")


def random_boxes(n: int) -> torch.Tensor:
    xy = torch.rand(n, 2) * 8
    return torch.cat([xy, xy + torch.rand(n, 2) * 15 + 1], 1)


def iou(a: list, b: list, offset: int) -> float:
    w = min(a[2], b[2]) - max(a[0], b[0]) + offset
    h = min(a[3], b[3]) - max(a[1], b[1]) + offset
    shared = max(w, 0) * max(h, 0)
    total = sum((c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)) - shared
    return shared / total if total else 0.0


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_nms(offset, threshold):
    boxes, scores = random_boxes(60), torch.rand(60)
    kept = []
    for i in scores.argsort(descending=True).tolist():
        if all(iou(boxes[i].tolist(), boxes[j].tolist(), offset) <= threshold for j in kept):
            kept.append(i)
    dets, index = mm.nms(boxes, scores, threshold, offset=offset)
    assert index.tolist() == kept
    assert torch.equal(dets, torch.cat([boxes[kept], scores[kept, None]], 1))
    assert len(kept) < 60
    half, _ = mm.nms(boxes.half(), scores.half(), threshold, offset=offset)
    assert half.dtype == torch.float16
    assert 0 < len(half) < 60


def test_nms_offset_matters():
    # Touching pixel boxes: no shared area at offset 0; at offset 1 they share a column, 10 / (40 + 40 - 10).
    boxes, scores = torch.tensor([[0.0, 0, 3, 9], [3.0, 0, 6, 9]]), torch.tensor([0.9, 0.8])
    assert [len(mm.nms(boxes, scores, 0.1, offset=offset)[1]) for offset in (0, 1)] == [2, 1]


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_nms_keeps_an_overlap_of_exactly_the_threshold(threshold):
    boxes = torch.tensor([[0, 0, 10, 1], [0, 0, 10 * threshold, 1]])
    assert mm.nms(boxes, torch.tensor([0.9, 0.8]), threshold)[1].tolist() == [0, 1]


def test_nms_empty_numpy_and_batched():
    empty = torch.zeros(0, 4)
    dets, index = mm.nms(empty, torch.zeros(0), 0.5)
    assert dets.shape == (0, 5)
    assert index.shape == (0,)
    boxes, scores = random_boxes(8), torch.rand(8)
    assert (mm.nms(boxes.numpy(), scores.numpy(), 0.5)[1] == mm.nms(boxes, scores, 0.5)[1].numpy()).all()
    same = boxes[:1].repeat(3, 1)
    dets, index = mm.batched_nms(same, scores[:3], torch.tensor([0, 1, 1]), {"type": "nms", "iou_threshold": 0.5})
    assert len(index) == 2  # one of each class
    for cfg in ({"type": "nms", "iou_threshold": 0.5}, {"type": "soft_nms", "iou_threshold": 0.5}):
        assert mm.batched_nms(boxes, scores, torch.zeros(8), cfg)[0].shape[1] == 5


def reference_soft_nms(boxes, scores, threshold, sigma, min_score, method, offset):
    pool = [[*box, score, i] for i, (box, score) in enumerate(zip(boxes.double().tolist(), scores.double().tolist()))]
    out = []
    while pool:
        best = max(pool, key=lambda row: row[4])
        pool.remove(best)
        out.append(best)
        for row in pool:
            o = iou(best, row, offset)
            row[4] *= {
                "naive": float(o < threshold),
                "linear": 1 - o if o >= threshold else 1.0,
                "gaussian": math.exp(-o * o / sigma),
            }[method]
        pool = [row for row in pool if row[4] >= min_score]
    return torch.tensor([row[:5] for row in out]), [row[5] for row in out]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
def test_soft_nms(method, offset):
    boxes, scores = random_boxes(40), torch.rand(40)
    want, want_index = reference_soft_nms(boxes, scores, 0.3, 0.4, 0.05, method, offset)
    dets, index = mm.soft_nms(boxes, scores, 0.3, 0.4, 0.05, method, offset)
    assert index.tolist() == want_index
    torch.testing.assert_close(dets, want.float())
    assert len(want_index) < 40
    assert mm.soft_nms(boxes[:0], scores[:0], method=method)[0].shape == (0, 5)


def test_soft_nms_ties_and_boxes_without_area():
    # The example of mmcv's docstring: equal scores and boxes of area 0, five of six survive min_score.
    boxes = torch.tensor([[4.0, 3, 5, 3], [4, 3, 5, 4], *[[3.0, 1, 3, 1]] * 4])
    scores = torch.tensor([0.9, 0.9, 0.5, 0.5, 0.4, 0.0])
    for method in ("linear", "gaussian"):
        dets, index = mm.soft_nms(boxes, scores, 0.6, sigma=0.5, method=method)
        assert index.tolist() == [0, 1, 2, 3, 4]
        assert torch.isfinite(dets).all()
    # Candidate 0 is dropped first and replaced by the last one, 3, which then wins the tie with 2.
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]])
    assert mm.soft_nms(boxes, torch.tensor([0.6, 0.9, 0.5, 0.5]), 0.5, method="naive")[1].tolist() == [1, 3, 2]
    # Two dropped at once: the last one moves up first.
    scores = torch.tensor([0.9, 0.6, 0.6, 0.5, 0.5])
    assert mm.soft_nms(boxes[[0, 0, 0, 2, 3]], scores, 0.5, method="naive")[1].tolist() == [0, 4, 3]


def test_nms_match():
    dets = torch.cat([random_boxes(40), torch.rand(40, 1)], 1)
    left, want = dets[:, 4].argsort(descending=True).tolist(), []
    while left:
        hit = [i for i in left[1:] if iou(dets[left[0]].tolist(), dets[i].tolist(), 0) >= 0.3]
        want.append([left[0], *hit])
        left = [i for i in left[1:] if i not in hit]
    assert [m.tolist() for m in mm.nms_match(dets, 0.3)] == want
    assert [m.tolist() for m in mm.nms_match(dets.numpy(), 0.3)] == want
    assert any(len(group) > 1 for group in want)
    assert mm.nms_match(dets[:0], 0.3) == []
    half = torch.tensor([[0.0, 0, 10, 1, 0.9], [0, 0, 5, 1, 0.8]])  # unlike nms, it groups at exactly the threshold
    assert [m.tolist() for m in mm.nms_match(half, 0.5)] == [[0, 1]]
    flat = torch.tensor([[1.0, 1, 1, 1, 0.5], [1, 1, 1, 1, 0.4]])  # no area, overlap 0 / 0
    assert [m.tolist() for m in mm.nms_match(flat, 0.3)] == [[0], [1]]
