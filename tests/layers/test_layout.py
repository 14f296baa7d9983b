import copy
import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from conftest import relative_error
from test_contract import BACKBONES
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from cost import CostCounter
from vitdense.layers import layout
from vitdense.layers.layout import MASK_VALUE, ShiftedWindows, window_layout

# Map, window, shift.
CASES = [
    ((7, 7), (7, 7), (3, 3)),  # a map that is one window still shifts
    ((8, 13), (4, 4), (2, 2)),
    ((5, 9), (4, 3), (2, 1)),  # window and padding differ by axis
    ((6, 6), (3, 3), (0, 0)),  # exact multiples: views
    ((8, 12), (4, 4), (2, 2)),
    ((5, 8), (4, 4), (0, 0)),  # padding without shift, along one axis
    ((8, 9), (4, 3), (0, 1)),  # shift along one axis
    ((9, 9), (7, 7), (3, 3)),  # more padding than window - shift: in the last but one window too
    ((2, 3), (7, 7), (3, 3)),  # smaller than the shift
    ((1, 9), (4, 4), (2, 2)),
    ((9, 1), (4, 4), (2, 2)),
    ((1, 1), (1, 1), (0, 0)),
]
SMALL = [((5, 4), (4, 2), (2, 1)), ((4, 4), (2, 2), (0, 0)), ((3, 4), (2, 3), (0, 0))]
SHIFTED = [case for case in CASES if any(case[2])]
TRACED = pytest.mark.parametrize("traced", [False, True])


@pytest.fixture
def compiling(monkeypatch):
    return lambda on=True: monkeypatch.setattr(torch.compiler, "is_compiling", lambda: on)


def slots_of_windows(size, window, shift):
    """Slot by slot, the place of every window's tokens in the padded map: ``[[(row, column), ...], ...]``."""
    (h, w), (wh, ww), (sh, sw) = size, window, shift
    nh, nw = -(-h // wh), -(-w // ww)
    return [
        [((i * wh + r + sh) % (nh * wh), (j * ww + c + sw) % (nw * ww)) for r in range(wh) for c in range(ww)]
        for i in range(nh)
        for j in range(nw)
    ]


def is_token(place, size):
    return place[0] < size[0] and place[1] < size[1]


def brute_force_windows(x, window, shift):
    """Token by token, zero in the padding: ``[B, nW, N, C]``."""
    size = x.shape[1:3]
    places = slots_of_windows(size, window, shift)
    out = x.new_zeros(x.shape[0], len(places), len(places[0]), x.shape[3])
    for n, of_window in enumerate(places):
        for slot, place in enumerate(of_window):
            if is_token(place, size):
                out[:, n, slot] = x[:, place[0], place[1]]
    return out


def brute_force_mask(size, window, shift):
    """Two tokens of a window may meet iff they were as far apart before the roll, on the padded map, as after it."""
    ww = window[1]
    places = slots_of_windows(size, window, shift)
    mask = torch.zeros(len(places), len(places[0]), len(places[0]))
    for n, at in enumerate(places):
        for p, (py, px) in enumerate(at):
            for q, (qy, qx) in enumerate(at):
                if (py - qy, px - qx) != (p // ww - q // ww, p % ww - q % ww):
                    mask[n, p, q] = MASK_VALUE
    return mask


def in_order(size, window, shift):
    """Numbers of the windows as a layout with a shift has them: the others, the last column, the last row, its corner;
    and how many come before those."""
    nh, nw = (-(-n // side) for n, side in zip(size, window))
    parts = [[], [], [], []]
    for n in range(nh * nw):
        parts[2 * (n // nw == nh - 1) + (n % nw == nw - 1)].append(n)
    return [n for part in parts for n in part], len(parts[0])


@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_partition_is_the_definition_and_unpartition_its_inverse(size, window, shift):
    """With a shift, windows without a masked pair come first, and the images of a window after one another."""
    x = torch.randn(3, *size, 2)
    windows = window_layout(x, window, shift)
    want = brute_force_windows(x, window, shift)
    if any(shift):
        order, num_plain = in_order(size, window, shift)
        assert windows.num_plain == 3 * num_plain
        assert not brute_force_mask(size, window, shift)[order[:num_plain]].any()
        want = want.transpose(0, 1)[order]
    got = windows.partition(x)
    assert torch.equal(got, want.flatten(0, 1))
    assert torch.equal(windows.unpartition(got), x)


@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_traced_windows_are_in_the_order_of_the_map(size, window, shift, compiling):
    x = torch.randn(3, *size, 2)
    compiling()
    windows = window_layout(x, window, shift)
    got = windows.partition(x)
    assert windows.num_plain == 0
    assert torch.equal(got, brute_force_windows(x, window, shift).flatten(0, 1))
    assert torch.equal(windows.unpartition(got), x)


@TRACED
@pytest.mark.parametrize(("size", "window", "shift"), SMALL)
def test_gradients_of_partition_and_unpartition(size, window, shift, traced, compiling):
    compiling(traced)
    x = torch.randn(2, *size, 1, dtype=torch.float64, requires_grad=True)
    windows = window_layout(x, window, shift)
    cut = windows.partition(x).detach().requires_grad_()
    for function, at in ((windows.partition, x), (windows.unpartition, cut)):
        assert torch.autograd.gradcheck(function, at)
        assert torch.autograd.gradgradcheck(function, at)


@pytest.mark.parametrize(("size", "window", "shift"), SHIFTED)
def test_mask_blocks_pairs_that_only_the_roll_made_adjacent(size, window, shift, compiling):
    x = torch.zeros(2, *size, 1)
    want = brute_force_mask(size, window, shift)
    order, num_plain = in_order(size, window, shift)
    windows = window_layout(x, window, shift)
    assert windows.mask.shape[-1] % 8 == 0
    for image in range(2):
        assert torch.equal(windows.mask[:, image, 0, :, : windows.tokens], want[order[num_plain:]])
    compiling()
    assert torch.equal(window_layout(x, window, shift).mask[:, 0, 0, :, : windows.tokens], want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masks_have_the_dtype_in_which_attention_computes(dtype):
    x = torch.zeros(2, 9, 10, 3)
    assert window_layout(x, (4, 4), (2, 2)).mask.dtype == torch.float32
    assert window_layout(x.to(dtype), (4, 4), (2, 2)).mask.dtype == dtype
    with torch.autocast("cpu", dtype):
        assert window_layout(x, (4, 4), (2, 2)).mask.dtype == dtype


NAMES = ("swin", "swin, sliding", "swin_v2", "mvit", "vit, windows, relative positions")
MODELS = {name: BACKBONES[name] for name in NAMES if name in BACKBONES}
EVERY = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(autouse=True)
def _empty_caches():
    layout.empty_cache()
    yield
    layout.empty_cache()


def kept():
    return {(i, *key): result for i, cache in enumerate(layout._caches) for key, result in cache.items()}


def kept_bytes():
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_of(list(kept().values()))}
    return sum(storages.values())


def tensors_of(results):
    results = [vars(x) if dataclasses.is_dataclass(x) else x for x in results]
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def loss(model, x):
    return sum(out.square().mean() for out in model(x))


@EVERY
def test_a_second_pass_caches_no_new_tensors(make):
    """Neither does the backward pass, with recomputed activations, nor a copy of the model."""
    model, x = make(with_cp=True).train(), torch.randn(2, 3, 40, 72)
    out = loss(model, x)
    first = kept().keys()
    out.backward()
    with CostCounter(model) as counter:
        loss(model, x).backward()
    copy.deepcopy(model)(x)
    assert kept().keys() == first
    assert not {"aten.arange", "aten.nonzero", "aten.item", "aten._local_scalar_dense"} & set(counter.calls)


@EVERY
def test_what_inference_mode_made_serves_training(make):
    model, x = make().train(), torch.randn(2, 3, 40, 72)
    with torch.inference_mode():
        want = model(x)
    first = kept().keys()
    outs = model(x)
    assert kept().keys() == first
    sum(out.sum() for out in outs).backward()
    assert max(relative_error(a.detach(), b) for a, b in zip(outs, want)) < 1e-5


@EVERY
@pytest.mark.long
def test_many_sizes_cache_tensors_per_axis(make):
    """16 sizes of 4 sides keep a few times what 4 squares do; a side has an alignment, or none, by the other one."""
    with torch.device("meta"):
        model = make().eval()
    sides, numbers = range(32, 92, 15), []
    squares = [(side, side) for side in sides]
    for sizes in (squares, [size for size in itertools.product(sides, sides) if size not in squares]):
        for h, w in sizes:
            with torch.no_grad():
                model(torch.empty(1, 3, h, w, device="meta"))
        of_axes = [result for result in kept().values() if not isinstance(result, ShiftedWindows)]
        numbers.append(len(of_axes))
    assert numbers[1] <= 3 * numbers[0]
    assert max(t.numel() for t in tensors_of(of_axes)) <= 96**2
    assert len(kept()) - numbers[1] <= 8
    layout.empty_cache()
    assert not kept()


def test_layouts_of_a_thousand_sizes_take_little_memory():
    """Swin-T, as a training sees them: sizes of up to 800x1344 pixels, two images."""
    with torch.no_grad():
        for i in range(1000):
            h, w = 120 + 37 * i % 81, 160 + 53 * i % 177  # tokens of the first stage
            for stage in range(4):
                size = (-(-h // 2**stage), -(-w // 2**stage))
                window_layout(torch.empty(1).expand(2, *size, 1), (7, 7), (3, 3))
    assert len({key for key in kept() if (3, 3) in key}) > 8
    assert kept_bytes() < 32 * 2**20


@EVERY
def test_threads_with_different_sizes(make):
    model = make().eval()
    images = [torch.randn(1 + i % 2, 3, 32 + 8 * i, 64 - 4 * i) for i in range(6)]

    def run(x):
        with torch.no_grad():
            return model(x)

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(run, 2 * images))
    layout.empty_cache()
    for outs, x in zip(got, 2 * images):
        assert all(torch.equal(a, b) for a, b in zip(outs, run(x)))


def test_fake_tensors_leave_no_trace():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.zeros(2, 9, 10, 3))
        assert window_layout(x, (4, 4), (2, 2)).partition(x).shape == (18, 16, 3)
    assert not kept()
    assert type(window_layout(torch.zeros(2, 9, 10, 3), (4, 4), (2, 2)).mask) is torch.Tensor


def test_cuda_graphs_and_streams_do_not_share_cached_tensors(monkeypatch):
    """Freed memory is reused after the kernels of its own stream only; a graph reads its memory much later."""
    made, stream, capturing = [], [1], [False]
    make = layout.cached_by_size(lambda n, device, dtype: made.append(n) or n)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=stream[0]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    class Device:
        type = "cuda"

    class OnCuda(torch.Tensor):
        device = Device()

    monkeypatch.setattr(layout, "Tensor", OnCuda)
    monkeypatch.setattr(layout, "compute_dtype", lambda x: x.dtype)
    x = torch.zeros(1).as_subclass(OnCuda)
    for _ in range(2):
        make(x, 3)
    assert made == [3]
    stream[0] = 2
    make(x, 3)
    assert made == [3, 3]
    capturing[0] = True
    for _ in range(2):
        make(x, 3)
    assert made == [3] * 4
    layout._caches.pop()
