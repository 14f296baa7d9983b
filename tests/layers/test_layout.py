import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import relative_error
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from vitdense.backbones import MViT, Swin, SwinV2, ViT
from vitdense.cost import CostCounter
from vitdense.layers import layout, local
from vitdense.layers.layout import CACHE_SIZE, MASK_VALUE, RelativePositions, Windows, relative_layout, window_layout

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
    """Switches the forms for compiled models on, without a compiler."""
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


def parts(size, window, shift):
    """Numbers of the windows without, and of those with padding or a masked pair."""
    mask = brute_force_mask(size, window, shift)
    places = slots_of_windows(size, window, shift)
    special = [n for n, at in enumerate(places) if mask[n].any() or not all(is_token(place, size) for place in at)]
    return [n for n in range(len(places)) if n not in special], special


def in_order(windows, layout, size, window, shift):
    """Windows ``[B, nW, ...]`` of all images in a layout's order, ``[B*nW, ...]``."""
    plain, special = (windows[:, part] for part in parts(size, window, shift))
    if layout.images == 1:
        return torch.cat([plain, special], dim=1).flatten(0, 1)
    return torch.cat([plain.flatten(0, 1), special.flatten(0, 1)])


@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_partition_is_the_definition_and_unpartition_its_inverse(size, window, shift):
    """Plain windows come first. With shift those of all images do, so that one mask serves the others."""
    x = torch.randn(3, *size, 2)
    windows = window_layout(x, window, shift)
    want = brute_force_windows(x, window, shift)
    plain, _ = parts(size, window, shift)
    assert (windows.num_windows, windows.tokens) == want.shape[1:3]
    assert windows.images == (3 if any(shift) else 1)
    assert windows.num_plain == len(plain) * windows.images
    got = windows.partition(x)
    assert torch.equal(got, in_order(want, windows, size, window, shift))
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


def test_windows_of_exact_multiples_need_no_index():
    x = torch.randn(2, 6, 8, 2)
    windows = window_layout(x, (3, 4))
    assert windows.gather is None
    assert window_layout(x, (3, 4), (1, 2)).gather is not None
    assert torch.equal(windows.partition(x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)), windows.partition(x))


@TRACED
@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_partition_without_zero_padding_keeps_the_tokens(size, window, shift, traced, compiling):
    x = torch.rand(2, *size, 1) + 1
    compiling(traced)
    windows = window_layout(x, window, shift)
    want, got = windows.partition(x), windows.partition(x, zero_padding=False)
    assert torch.equal(got[want != 0], want[want != 0])
    assert torch.isin(got, x).all()
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


@TRACED
@pytest.mark.parametrize(("size", "window", "shift"), SMALL)
def test_gradient_without_zero_padding_is_that_of_the_tokens(size, window, shift, traced, compiling):
    """What padding receives is dropped when windows are put back."""
    compiling(traced)
    x = torch.randn(2, *size, 1, requires_grad=True)
    windows = window_layout(x, window, shift)
    weight = torch.randn_like(x)
    (windows.unpartition(2 * windows.partition(x, zero_padding=False)) * weight).sum().backward()
    torch.testing.assert_close(x.grad, 2 * weight)


@pytest.mark.parametrize(("size", "window", "shift"), SHIFTED)
def test_mask_blocks_pairs_that_only_the_roll_made_adjacent(size, window, shift, compiling):
    x = torch.zeros(2, *size, 1)
    want = brute_force_mask(size, window, shift)
    _, special = parts(size, window, shift)
    windows = window_layout(x, window, shift)
    tokens = windows.tokens
    assert windows.mask.shape[-1] % 8 == 0
    assert torch.equal(windows.mask[:, 0, :, :tokens], want[special])
    compiling()
    assert torch.equal(window_layout(x, window, shift).mask[:, 0, :, :tokens], want)


def test_masks_of_different_sizes_with_equal_area_differ():
    a, b = (window_layout(torch.zeros(1, *size, 1), (4, 4), (2, 2)).mask for size in ((8, 16), (16, 8)))
    assert a.shape == b.shape
    assert not torch.equal(a, b)


def cached(x, window=(4, 4), shift=(2, 2)):
    return window_layout(x, window, shift)


def test_a_layout_is_made_once_per_size():
    x = torch.zeros(2, 9, 10, 3)
    first = cached(x)
    assert cached(torch.ones(2, 9, 10, 5)) is first  # channels and values do not matter
    assert cached(x, (4, 5)) is not first
    assert cached(x, shift=(2, 1)) is not first
    assert cached(x.transpose(1, 2)) is not first
    assert cached(x.to("meta")) is not first
    assert cached(x[:1]) is not first
    assert cached(x[:1], shift=(0, 0)) is cached(x, shift=(0, 0))  # one index serves every image
    assert cached(x) is first
    q = torch.zeros(2, 3, 4, 2, 8)
    assert relative_layout(q, (3, 4), True) is relative_layout(q + 1, (3, 4), True)
    assert relative_layout(q, (3, 4), True) is not relative_layout(q, (3, 4), False)
    assert relative_layout(q, (3, 4), True) is not relative_layout(q, (4, 3), True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masks_and_codes_have_the_dtype_in_which_attention_computes(dtype):
    x, q = torch.zeros(2, 9, 10, 3), torch.zeros(2, 3, 4, 2, 8)
    assert cached(x).mask.dtype == relative_layout(q, (3, 4), False).codes.dtype == torch.float32
    assert cached(x.to(dtype)).mask.dtype == relative_layout(q.to(dtype), (3, 4), False).codes.dtype == dtype
    with torch.autocast("cpu", dtype):
        assert cached(x) is cached(x.to(dtype))
        assert relative_layout(q, (3, 4), False) is relative_layout(q.to(dtype), (3, 4), False)


TINY = {"embed_dims": 8, "depths": (2, 1), "num_heads": (1, 2)}
MODELS = {
    "swin": lambda **o: Swin(TINY, window_size=4, out_indices=(0, 1), drop_path_rate=0.0, **o),
    "swin, sliding": lambda **o: Swin(
        TINY, window_size=3, attention="sliding", out_indices=(0, 1), drop_path_rate=0.0, **o
    ),
    "swin_v2": lambda **o: SwinV2(TINY, window_size=4, out_indices=(0, 1), drop_path_rate=0.0, **o),
    "mvit": lambda **o: MViT(
        {"embed_dims": 8, "depths": (1, 2), "num_heads": 1},
        pretrain_img_size=32,
        out_indices=(0, 1),
        drop_path_rate=0.0,
        **o,
    ),
    "vit": lambda **o: ViT(
        {"embed_dims": 16, "depth": 2, "num_heads": 2},
        window_size=(2, 3),
        global_indices=(1,),
        relative_position=True,
        pretrain_img_size=64,
        img_size=64,
        drop_path_rate=0.0,
        **o,
    ),
}
EVERY = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
CACHES = (layout._windows.cache, layout._relative_positions.cache, local._tiles.cache)


@pytest.fixture
def _empty_caches():
    for cache in CACHES:
        cache.cache_clear()


def made():
    """Layouts that were made since the caches were emptied."""
    return sum(cache.cache_info().misses for cache in CACHES)


def loss(model, x):
    return sum(out.square().mean() for out in model(x))


@EVERY
@pytest.mark.usefixtures("_empty_caches")
def test_a_second_pass_makes_no_layout(make):
    """Neither does the backward pass, with recomputed activations, nor a copy of the model."""
    model, x = make(with_cp=True).train(), torch.randn(2, 3, 40, 72)
    out = loss(model, x)
    first = made()
    assert first > 0
    out.backward()
    with CostCounter(model) as counter:
        loss(model, x).backward()
    copy.deepcopy(model)(x)
    assert made() == first
    assert not {"aten.arange", "aten.nonzero", "aten.item", "aten._local_scalar_dense"} & set(counter.calls)


@EVERY
@pytest.mark.usefixtures("_empty_caches")
def test_layouts_made_in_inference_mode_serve_training(make):
    model, x = make().train(), torch.randn(2, 3, 40, 72)
    with torch.inference_mode():
        want = model(x)
    first = made()
    outs = model(x)
    assert made() == first
    sum(out.sum() for out in outs).backward()
    assert max(relative_error(a.detach(), b) for a, b in zip(outs, want)) < 1e-5


@EVERY
def test_a_model_is_copied_cast_and_pickled_after_a_pass(make):
    model, x = make().eval(), torch.randn(2, 3, 40, 72)
    with torch.no_grad():
        want = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert all(torch.equal(a, b) for a, b in zip(other(x), want))
        for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.03)):
            got = copy.deepcopy(model).to(dtype)(x.to(dtype))
            assert {out.dtype for out in got} == {dtype}
            assert max(relative_error(a.float(), b) for a, b in zip(got, want)) < tolerance


@EVERY
@pytest.mark.usefixtures("_empty_caches")
def test_threads_with_different_sizes(make):
    model = make().eval()
    images = [torch.randn(1 + i % 2, 3, 32 + 8 * i, 64 - 4 * i) for i in range(6)]

    def run(x):
        with torch.no_grad():
            return model(x)

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(run, 2 * images))
    for cache in CACHES:
        cache.cache_clear()
    for outs, x in zip(got, 2 * images):
        assert all(torch.equal(a, b) for a, b in zip(outs, run(x)))


@pytest.mark.usefixtures("_empty_caches")
def test_fake_tensors_leave_no_trace():
    with FakeTensorMode() as mode:
        x, q = (mode.from_tensor(torch.zeros(*shape)) for shape in ((2, 9, 10, 3), (2, 3, 4, 2, 8)))
        assert cached(x).partition(x).shape == (18, 16, 3)
        assert relative_layout(q, (3, 4), False).codes.shape == (12, 8)
    assert made() == 0
    assert type(cached(torch.zeros(2, 9, 10, 3)).mask) is torch.Tensor


def kept(kind):
    """Layouts of a kind that are alive, and the bytes of their tensors."""
    gc.collect()
    alive = [o for o in gc.get_objects() if type(o) is kind]
    tensors = [t for o in alive for t in vars(o).values() if isinstance(t, torch.Tensor)]
    return len(alive), sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.usefixtures("_empty_caches")
def test_hundreds_of_sizes_keep_a_bounded_number_of_layouts():
    x = torch.zeros(1, 1, 1, 1)
    sizes = [(5 + i % 3, 6 + i) for i in range(2 * CACHE_SIZE)]
    for i, size in enumerate(sizes):
        for recent in {size, sizes[max(i - 9, 0)]}:  # alternating sizes, of which only the new one is made
            before = made()
            window_layout(x.expand(2, *recent, 1), (4, 4), (2, 2))
            relative_layout(x[..., None].expand(1, *recent, 1, 8), (3, 4), aligns_rows=False)
            assert made() - before == 2 * (recent is size)
    number, size = kept(Windows)
    assert number == CACHE_SIZE
    windows = 2 * -(-sizes[-1][1] // 4)  # of the largest map, for two images, of 16 tokens
    assert size <= CACHE_SIZE * 2 * windows * (16 * (4 + 4 + 1) + 16 * 16 * 4)
    assert kept(RelativePositions)[0] == CACHE_SIZE


@pytest.mark.usefixtures("_empty_caches")
def test_layouts_are_made_once_under_activation_checkpointing():
    x = torch.randn(2, 9, 10, 3, requires_grad=True)

    def function(x):
        windows = window_layout(x, (4, 4), (2, 2))
        return windows.unpartition(windows.partition(x).sin())

    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert made() == 1
    torch.testing.assert_close(x.grad, x.detach().cos())
