"""The stand-in for mmcv's compiled ops: against plain definitions written here, through the functions users call."""

import importlib.util
import math
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

ROOT = Path(__file__).parents[1]


def python(code: str, *paths: Path) -> str:
    """Output (both streams) of `code` in a fresh interpreter that finds `paths` first."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# ---- the import system ----


@pytest.fixture
def fake_mmcv(tmp_path: Path) -> Path:
    """A path with an empty package `mmcv`: what decides is `mmcv._ext`, and the real mmcv takes seconds to import."""
    (tmp_path / "mmcv").mkdir()
    (tmp_path / "mmcv" / "__init__.py").touch()
    return tmp_path


def test_import_vitdense_imports_no_framework():
    out = python(
        "import sys, vitdense\n"
        "vitdense._finder.install()\n"
        "print([m for m in ('torch', 'torchvision', 'mmcv', 'mmengine', 'mmdet', 'mmseg') if m in sys.modules])\n"
        "print(sum(type(f).__module__ == 'vitdense._finder' for f in sys.meta_path))"
    )
    assert out.split() == ["[]", "1"]


def test_import_vitdense_without_mmcv():
    out = python(
        "import sys; sys.modules['mmcv'] = None\n"
        "import vitdense\nfrom vitdense._finder import ops_in_use\nprint(ops_in_use().kind)"
    )
    assert out.strip() == "mmcv not installed"


def test_stand_in_is_a_real_module(fake_mmcv):
    out = python(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import importlib, importlib.util as u, sys\n"
        "import vitdense\nprint(u.find_spec('mmcv._ext') is not None)\n"
        "import mmcv._ext as ext\n"
        "same = sys.modules['mmcv._ext'] is ext\n"
        "print(u.find_spec('mmcv._ext') is not None, ext.__name__, ext.__spec__.name, same)\n"
        "print(importlib.reload(ext) is ext, callable(ext.nms), hasattr(ext, '__path__'), hasattr(ext, '__file__'))\n"
        "from vitdense.ops import ops_in_use; print(ops_in_use().kind)",
        fake_mmcv,
    )
    lines = out.splitlines()
    assert lines[:4] == ["True", "True mmcv._ext mmcv._ext True", "True True False False", "stand-in"]
    assert any(line.startswith("INFO:vitdense:mmcv ops: stand-in") for line in lines)


@pytest.mark.parametrize("broken", ["garbage.so", "raises.py"])
def test_broken_compiled_falls_back_with_a_warning(fake_mmcv, broken):
    if broken == "garbage.so":
        (fake_mmcv / "mmcv" / f"_ext{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"not a shared library")
    else:
        (fake_mmcv / "mmcv" / "_ext.py").write_text("left = 1\nraise ImportError('undefined symbol: _ZN2at')")
    out = python(
        "import vitdense, mmcv._ext as ext\n"
        "from vitdense.ops import ops_in_use\n"
        "print(ops_in_use().kind, hasattr(ext, '__file__'), 'left' in vars(ext), callable(ext.nms))",
        fake_mmcv,
    )
    assert "stand-in False False True" in out
    assert "does not load" in out
    assert "--no-build-isolation" in out


def test_compiled_that_loads_wins(fake_mmcv):
    (fake_mmcv / "mmcv" / "_ext.py").write_text("nms = 'compiled'")
    out = python(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import sys, vitdense, mmcv._ext as ext\n"
        "from vitdense._finder import ops_in_use\n"
        "print(ext.nms, ops_in_use().kind, ext.__spec__.loader is ext.__loader__, 'vitdense.ops' in sys.modules)",
        fake_mmcv,
    )
    assert "compiled compiled True False" in out
    assert "INFO:vitdense:mmcv ops: compiled, " in out


def test_loaded_extension_is_left_alone(fake_mmcv):
    out = python(
        "import sys, types; sys.modules['mmcv._ext'] = mine = types.ModuleType('mmcv._ext')\n"
        "import vitdense, mmcv._ext\n"
        "print(sys.modules['mmcv._ext'] is mine, vitdense._finder.ops_in_use().kind)",
        fake_mmcv,
    )
    assert out.split() == ["True", "compiled"]


# ---- the ops: everything below goes through mmcv.ops ----

pytest.importorskip("mmcv")
import vitdense  # noqa: E402  (first: it installs the finder)
from vitdense.ops import OpNotAvailableError, ops_in_use  # noqa: E402

if ops_in_use().kind != "stand-in":
    pytest.skip("a compiled mmcv is in use", allow_module_level=True)

import mmcv.ops as mm  # noqa: E402
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction  # noqa: E402


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_find_spec_in_process():
    assert vitdense.__version__
    assert importlib.util.find_spec("mmcv._ext") is not None


def test_unknown_op_says_which_and_how():
    ext = importlib.import_module("mmcv._ext")
    assert callable(ext.psamask_forward)
    with pytest.raises(AttributeError):
        ext.__nothing__  # noqa: B018
    with pytest.raises(OpNotAvailableError, match=r"'psamask_forward'.*--no-build-isolation"):
        mm.PSAMask("collect", (3, 3))(torch.rand(1, 9, 3, 3))
    assert issubclass(OpNotAvailableError, NotImplementedError)


def test_environment_report_and_sync_bn_of_mmengine():
    pytest.importorskip("mmengine")
    from mmengine.model import revert_sync_batchnorm

    assert "stand-in" in mm.get_compiler_version()  # mmcv's collect_env calls these
    assert "stand-in" in mm.get_compiling_cuda_version()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.SyncBatchNorm(4))
    with torch.no_grad():
        net[1].weight.uniform_()
    reverted = revert_sync_batchnorm(net)
    assert not any(isinstance(m, torch.nn.SyncBatchNorm) for m in reverted.modules())
    assert reverted(torch.rand(2, 3, 5, 5)).shape == (2, 4, 5, 5)
    assert torch.equal(reverted[1].weight, net[1].weight)


# ---- boxes ----


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


def test_nms_of_nothing_numpy_and_batched():
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


def soft_nms_by_hand(boxes, scores, threshold, sigma, min_score, method, offset):
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
    want, want_index = soft_nms_by_hand(boxes, scores, 0.3, 0.4, 0.05, method, offset)
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
    # Candidate 0 is dropped in the first round and its place taken by the last one, 3, which then wins the tie with 2.
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


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_bbox_overlaps(mode, offset):
    a, b = random_boxes(5), random_boxes(4)

    def one(p, q):
        p, q = p.tolist(), q.tolist()
        areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (p, q)]
        value = iou(p, q, offset)
        shared = value * sum(areas) / (1 + value)
        return value if mode == "iou" else shared / areas[0]

    table = torch.tensor([[one(p, q) for q in b] for p in a])
    torch.testing.assert_close(mm.bbox_overlaps(a, b, mode, offset=offset), table)
    torch.testing.assert_close(mm.bbox_overlaps(a[:4], b, mode, aligned=True, offset=offset), table.diagonal())
    assert mm.bbox_overlaps(a[:0], b).shape == (0, 4)


# ---- RoIs ----


def bilinear(plane: torch.Tensor, y: float, x: float) -> float:
    h, w = plane.shape
    if not (-1 <= y <= h and -1 <= x <= w):
        return 0.0
    y, x = min(max(y, 0.0), h - 1.0), min(max(x, 0.0), w - 1.0)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
    top = plane[y0, x0] * (1 - x + x0) + plane[y0, x1] * (x - x0)
    low = plane[y1, x0] * (1 - x + x0) + plane[y1, x1] * (x - x0)
    return float(top * (1 - y + y0) + low * (y - y0))


def roi_align_by_hand(x, rois, bins, scale, ratio, mode, aligned):
    out = x.new_zeros(len(rois), x.shape[1], *bins)
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale - (0.5 if aligned else 0) for v in box)
        width, height = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1), max(y2 - y1, 1))
        step_y, step_x = height / bins[0], width / bins[1]
        ny, nx = (ratio, ratio) if ratio > 0 else (math.ceil(step_y), math.ceil(step_x))
        for c in range(x.shape[1]):
            for i in range(bins[0]):
                for j in range(bins[1]):
                    values = [
                        bilinear(
                            x[int(image), c],
                            y1 + i * step_y + (a + 0.5) * step_y / ny,
                            x1 + j * step_x + (b + 0.5) * step_x / nx,
                        )
                        for a in range(ny)
                        for b in range(nx)
                    ]
                    if values:
                        out[k, c, i, j] = max(values) if mode == "max" else sum(values) / len(values)
    return out


# Inside, over an edge, much larger than the map, wholly outside, of no size; two images.
ROIS = torch.tensor(
    [
        [0, 3.0, 2.2, 17.5, 13.1],
        [1, -6.3, 5.0, 8.0, 30.7],
        [0, -40.0, -30.0, 60.0, 55.0],
        [1, 90.0, 90.0, 99.0, 99.0],
        [1, 7.3, 6.1, 7.3, 6.1],
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode, ratio, aligned):
    x = torch.randn(2, 2, 7, 9, dtype=torch.float64)
    layer = mm.RoIAlign((3, 2), 0.5, ratio, mode, aligned)
    want = roi_align_by_hand(x, ROIS, (3, 2), 0.5, ratio, mode, aligned)
    torch.testing.assert_close(layer(x, ROIS), want)
    assert gradcheck(lambda t: layer(t, ROIS), x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_types(mode, dtype):
    x, rois = torch.randn(2, 3, 7, 9).to(dtype).requires_grad_(), ROIS.to(dtype)
    layer = mm.RoIAlign(2, 0.5, 2, mode)
    out = layer(x, rois)
    out.sum().backward()
    reference = x.detach().double().requires_grad_()
    want = layer(reference, rois.double())
    want.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    # The place of a maximum is kept in the type of the input, as in the compiled op: its weights are that inexact.
    torch.testing.assert_close(x.grad.double(), reference.grad, atol=16 * tolerance, rtol=16 * tolerance)


@pytest.mark.parametrize("layer", [mm.RoIAlign(3), mm.RoIAlign(3, pool_mode="max"), mm.RoIPool(3)], ids=str)
def test_no_rois(layer):
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    out = layer(x, torch.zeros(0, 5))
    out.sum().backward()
    assert out.shape == (0, 4, 3, 3)
    assert x.grad.abs().sum() == 0


def test_roi_align_argmax_is_where_the_sample_was():
    x, rois = torch.randn(1, 1, 8, 8), torch.tensor([[0, 1.0, 1, 6, 6], [0, 3, 3, 3, 3]])
    out, y, x_ = (torch.zeros(2, 1, 2, 2) for _ in range(3))
    importlib.import_module("mmcv._ext").roi_align_forward(
        x, rois, out, y, x_, aligned_height=2, aligned_width=2, spatial_scale=1.0, sampling_ratio=0, pool_mode=0,
        aligned=True,
    )  # fmt: skip
    places = torch.stack([y[0], x_[0]], -1).reshape(-1, 2).tolist()
    torch.testing.assert_close(torch.tensor([bilinear(x[0, 0], *place) for place in places]), out[0].flatten())
    assert (out[1] == 0).all()
    assert (y[1] == -1).all()
    assert (x_[1] == -1).all()


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align_deterministic_body_equals_torchvision(ratio, aligned):
    """CUDA uses this body only when torch is asked for deterministic algorithms; here it runs on the CPU."""
    from vitdense import ops

    grad, args = torch.randn(5, 3, 3, 2, dtype=torch.float64), ((3, 2), 0.5, ratio, aligned)
    total = ops._align_mean_backward(grad, ROIS, *ops._align_samples(ROIS, *args), torch.Size((2, 3, 7, 9)))
    want = torch.ops.torchvision._roi_align_backward(grad, ROIS, 0.5, 3, 2, 2, 3, 7, 9, ratio, aligned)
    torch.testing.assert_close(total, want)
    assert total.abs().sum() > 0


def test_roi_pool():
    x = torch.randn(2, 2, 7, 9, dtype=torch.float64)
    bins, scale = (3, 2), 0.5
    # All corners inclusive: the fifth is one pixel; the sixth is malformed.
    rois = torch.cat([ROIS[:4], torch.tensor([[0, 4.0, 4.0, 4.0, 4.0], [1, 9.0, 9.0, 3.0, 3.0]])])
    want = torch.zeros(6, 2, *bins, dtype=torch.float64)
    for k, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = x1 * scale, y1 * scale, (x2 + 1) * scale, (y2 + 1) * scale
        if x2 <= x1 or y2 <= y1:
            continue
        for i in range(bins[0]):
            for j in range(bins[1]):
                top, low = (y1 + (y2 - y1) * e / bins[0] for e in (i, i + 1))
                left, right = (x1 + (x2 - x1) * e / bins[1] for e in (j, j + 1))
                rows = slice(max(math.floor(top), 0), max(math.ceil(low), 0))
                cols = slice(max(math.floor(left), 0), max(math.ceil(right), 0))
                cells = x[int(image), :, rows, cols].flatten(1)
                if cells.shape[1]:
                    want[k, :, i, j] = cells.max(1).values
    layer = mm.RoIPool(bins, scale)
    torch.testing.assert_close(layer(x, rois), want)
    assert gradcheck(lambda t: layer(t, rois), x.requires_grad_(), fast_mode=True)
    half = layer(x.detach().half(), rois.half())
    torch.testing.assert_close(half.double(), layer(x.detach().half().double(), rois.half().double()))


# ---- losses ----


@pytest.mark.parametrize("gamma", [0.0, 1.5, 2.0])
@pytest.mark.parametrize("weighted", [True, False])
def test_sigmoid_focal_loss(gamma, weighted):
    x = (3 * torch.randn(6, 4)).double()
    target = torch.tensor([0, 3, 4, 1, 4, 2])  # 4 is background
    weight = torch.rand(4).double() if weighted else None
    want = torch.zeros_like(x)
    for n, t in enumerate(target.tolist()):
        for c in range(4):
            p = 1 / (1 + math.exp(-x[n, c]))
            own = -0.3 * (1 - p) ** gamma * math.log(p)
            other = -0.7 * p**gamma * math.log(1 - p)
            want[n, c] = (own if t == c else other) * (weight[t] if weighted and t < 4 else 1)
    args = (target, gamma, 0.3, weight)
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "none"), want)
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "sum"), want.sum())
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "mean"), want.sum() / 6)
    assert gradcheck(lambda t: mm.sigmoid_focal_loss(t, *args, "none"), x.requires_grad_())


@pytest.mark.parametrize("gamma", [0.0, 1.5, 2.0])
@pytest.mark.parametrize("weighted", [True, False])
def test_softmax_focal_loss(gamma, weighted):
    x = (3 * torch.randn(5, 4)).double()
    target = torch.tensor([0, 3, -1, 1, 2])  # -1 is ignored
    weight = torch.rand(4).double() if weighted else None
    want = torch.zeros(5).double()
    for n, t in enumerate(target.tolist()):
        if t >= 0:
            p = math.exp(x[n, t]) / sum(math.exp(v) for v in x[n])
            want[n] = -0.3 * (1 - p) ** gamma * math.log(p) * (weight[t] if weighted else 1)
    args = (target, gamma, 0.3, weight)
    torch.testing.assert_close(mm.softmax_focal_loss(x, *args, "none"), want)
    assert gradcheck(lambda t: mm.softmax_focal_loss(t, *args, "sum"), x.requires_grad_())


@pytest.mark.parametrize("loss", [mm.sigmoid_focal_loss, mm.softmax_focal_loss])
def test_focal_losses_extremes_types_and_nothing(loss):
    x = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    value = loss(x, torch.tensor([0, 0]), 2.0, 0.25, None, "sum")
    value.backward()
    assert torch.isfinite(x.grad).all()
    assert 10 < value < 1e3
    half = torch.randn(3, 2).bfloat16().requires_grad_()
    want = loss(half.detach().float(), torch.tensor([0, 1, 1]), 2.0, 0.25, None, "sum")
    value = loss(half, torch.tensor([0, 1, 1]), 2.0, 0.25, None, "sum")
    value.backward()
    assert value.dtype == half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.float(), want, rtol=0.05, atol=0)
    assert loss(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 2.0, 0.25, None, "sum") == 0


# ---- deformable convolution ----

# stride, padding, dilation, groups, deformable groups
CONVOLUTIONS = [(1, 0, 1, 1, 1), (2, 1, 1, 2, 1), ((1, 2), (2, 1), (2, 1), 1, 2), (1, 1, 1, 2, 4)]


def conv_inputs(stride, padding, dilation, groups, deform_groups, batch=2):
    pair = [(v, v) if isinstance(v, int) else v for v in (stride, padding, dilation)]
    size, kernel = (5, 6), (3, 2)
    h, w = ((size[a] + 2 * pair[1][a] - pair[2][a] * (kernel[a] - 1) - 1) // pair[0][a] + 1 for a in (0, 1))
    x = torch.randn(batch, 4, *size).double()
    weight = torch.randn(6, 4 // groups, *kernel).double()
    # Away from whole pixels, where bilinear sampling has no derivative to check.
    offset = torch.randint(-2, 2, (batch, 2 * deform_groups * 6, h, w)).double()
    offset = offset + 0.2 + 0.6 * torch.rand_like(offset)
    mask = torch.rand(batch, deform_groups * 6, h, w).double()
    return x, offset, mask, weight, torch.randn(6).double(), pair


def zero_padded(plane: torch.Tensor, y: float, x: float) -> float:
    """Bilinear sample of a plane that continues as zeros; unlike RoIAlign's, which repeats the border."""
    h, w = plane.shape
    y0, x0 = math.floor(y), math.floor(x)
    total = 0.0
    for r, wr in ((y0, 1 - y + y0), (y0 + 1, y - y0)):
        for c, wc in ((x0, 1 - x + x0), (x0 + 1, x - x0)):
            if 0 <= r < h and 0 <= c < w:
                total += float(plane[r, c]) * wr * wc
    return total


def conv_by_hand(x, offset, mask, weight, bias, pair, groups, deform_groups):
    (sh, sw), (ph, pw), (dh, dw) = pair
    out_channels, per_group, kh, kw = weight.shape
    out = x.new_zeros(len(x), out_channels, *offset.shape[-2:])
    for b, i, j in [(b, i, j) for b in range(len(x)) for i in range(out.shape[2]) for j in range(out.shape[3])]:
        taps = x.new_zeros(x.shape[1], kh, kw)
        for c in range(x.shape[1]):
            group = c // (x.shape[1] // deform_groups)
            for u in range(kh):
                for v in range(kw):
                    tap = group * kh * kw + u * kw + v
                    dy, dx = offset[b, 2 * tap, i, j].item(), offset[b, 2 * tap + 1, i, j].item()
                    value = zero_padded(x[b, c], i * sh - ph + u * dh + dy, j * sw - pw + v * dw + dx)
                    taps[c, u, v] = value * (1 if mask is None else mask[b, tap, i, j])
        for o in range(out_channels):
            start = o // (out_channels // groups) * per_group
            out[b, o, i, j] = (weight[o] * taps[start : start + per_group]).sum()
    return out if bias is None else out + bias[:, None, None]


@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
def test_deform_conv2d(settings):
    x, offset, _, weight, _, pair = conv_inputs(*settings)
    want = conv_by_hand(x, offset, None, weight, None, pair, *settings[3:])
    torch.testing.assert_close(mm.deform_conv2d(x, offset, weight, *settings), want)
    tensors = [t[:1].requires_grad_() for t in (x, offset)] + [weight.requires_grad_()]
    assert gradcheck(lambda *t: mm.deform_conv2d(*t, *settings), tensors, fast_mode=True)
    (only,) = torch.autograd.grad(mm.deform_conv2d(x.detach(), offset.detach(), weight, *settings).sum(), weight)
    assert only.abs().sum() > 0  # the weight's gradient alone


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
def test_modulated_deform_conv2d(settings, with_bias):
    x, offset, mask, weight, bias, pair = conv_inputs(*settings)
    bias = bias if with_bias else None
    want = conv_by_hand(x, offset, mask, weight, bias, pair, *settings[3:])
    torch.testing.assert_close(mm.modulated_deform_conv2d(x, offset, mask, weight, bias, *settings), want)
    tensors = [t[:1].requires_grad_() for t in (x, offset, mask)] + [weight.requires_grad_()]
    if with_bias:
        tensors.append(bias.requires_grad_())
        assert gradcheck(lambda *t: mm.modulated_deform_conv2d(*t, *settings), tensors, fast_mode=True)
    else:
        assert gradcheck(lambda *t: mm.modulated_deform_conv2d(*t, None, *settings), tensors, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deformable_convolutions_half_and_layers(dtype):
    x, offset, mask, weight, bias, _ = (t.to(dtype) if torch.is_tensor(t) else t for t in conv_inputs(1, 1, 1, 1, 1))
    weight.requires_grad_()
    out = mm.modulated_deform_conv2d(x, offset, mask, weight, bias, 1, 1)
    out.sum().backward()
    want = mm.modulated_deform_conv2d(*(t.float() for t in (x, offset, mask, weight, bias)), 1, 1)
    assert out.dtype == weight.grad.dtype == dtype
    torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.01)
    assert mm.deform_conv2d(x, offset, weight, 1, 1).dtype == dtype
    for pack in (mm.DeformConv2dPack, mm.ModulatedDeformConv2dPack):
        image = torch.randn(2, 4, 5, 5, requires_grad=True)
        result = pack(4, 3, 3, padding=1)(image)
        result.sum().backward()
        assert result.shape == (2, 3, 5, 5)
        assert image.grad.abs().sum() > 0


# ---- multi-scale deformable attention ----


def attention_inputs(batch=2, heads=2, dim=3, queries=4, points=2, dtype=torch.float64):
    sizes = torch.tensor([[4, 5], [2, 3]])
    starts = torch.tensor([0, 20])
    value = torch.randn(batch, 26, heads, dim).to(dtype)
    # Some samples fall outside of the map.
    locations = (torch.rand(batch, queries, heads, 2, points, 2) * 1.4 - 0.2).to(dtype)
    weights = torch.rand(batch, queries, heads, 2, points).to(dtype)
    return value, sizes, starts, locations, weights


def test_multi_scale_deformable_attention():
    value, sizes, starts, locations, weights = attention_inputs()
    want = torch.zeros(2, 4, 2, 3).double()
    for b, q, m, level, p in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        h, w = sizes[level].tolist()
        planes = value[b, starts[level] : starts[level] + h * w, m].reshape(h, w, 3)
        x, y = (locations[b, q, m, level, p] * torch.tensor([w, h]) - 0.5).tolist()
        for d in range(3):
            want[b, q, m, d] += weights[b, q, m, level, p] * zero_padded(planes[..., d], y, x)
    run = MultiScaleDeformableAttnFunction.apply
    torch.testing.assert_close(run(value, sizes, starts, locations, weights, 64), want.flatten(2))
    tensors = [t.requires_grad_() for t in (value, locations, weights)]
    assert gradcheck(lambda v, s, a: run(v, sizes, starts, s, a, 64), tensors)


def test_multi_scale_deformable_attention_half_nothing_and_layer():
    value, sizes, starts, locations, weights = attention_inputs(dtype=torch.float16)
    value.requires_grad_()
    run = MultiScaleDeformableAttnFunction.apply
    out = run(value, sizes, starts, locations, weights, 64)
    out.sum().backward()
    want = run(*(t.float() if t.is_floating_point() else t for t in (value, sizes, starts, locations, weights)), 64)
    assert out.dtype == value.grad.dtype == torch.float16
    torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.01)
    assert run(value, sizes, starts, locations[:, :0], weights[:, :0], 64).shape == (2, 0, 6)
    layer = mm.MultiScaleDeformableAttention(embed_dims=8, num_heads=2, num_levels=2, num_points=2, batch_first=True)
    out = layer(
        torch.randn(1, 5, 8),
        value=torch.randn(1, 26, 8),
        reference_points=torch.rand(1, 5, 2, 2),
        spatial_shapes=sizes,
        level_start_index=starts,
    )
    assert out.shape == (1, 5, 8)
