from dataclasses import replace

import pytest
import torch
from conftest import relative_error

from vitdense.layers import attention
from vitdense.layers.attention import attend, attend_decomposed, attend_windows
from vitdense.layers.bias import DecomposedBias
from vitdense.layers.layout import Windows, align
from vitdense.layers.onednn import multiplies_bfloat16


def naive(q, k, v, bias, scale):
    logits = scale * torch.einsum("bhqd,bhkd->bhqk", q, k)
    weights = (logits + (0 if bias is None else bias)).exp()
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v)


@pytest.mark.parametrize("bias_shape", [None, (1, 2, 5, 7), (3, 1, 5, 7), (3, 2, 5, 7), (1, 2, 5, 8), (3, 1, 5, 16)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attend_is_softmax_attention(bias_shape, scale):
    """Columns of the bias after the keys are ignored, whatever they hold."""
    q, k, v = (torch.randn(3, 2, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    bias = None if bias_shape is None else torch.randn(bias_shape, dtype=torch.float64)
    if bias is not None:
        bias[..., 7:] = torch.inf
    want = naive(q, k, v, None if bias is None else bias[..., :7], 4**-0.5 if scale is None else scale)
    torch.testing.assert_close(attend(q, k, v, bias, scale), want)
    got = attend(*(t.float() for t in (q, k, v)), None if bias is None else bias.float(), scale)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias_shape", [(2, 5, 8), (1, 2, 5, 8), (6, 1, 5, 8)])
def test_a_bias_of_any_shape_reaches_the_fused_kernel_of_a_cpu(bias_shape):
    q, k, v = (torch.randn(6, 2, 5, 4) for _ in range(3))
    with torch.profiler.profile() as run, torch.no_grad():
        attend(q, k, v, torch.randn(bias_shape))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {event.name for event in run.events()}


@pytest.fixture
def switches():
    cuda = torch.backends.cuda
    before = cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled()
    cuda.enable_flash_sdp(True), cuda.enable_cudnn_sdp(True)
    yield cuda
    cuda.enable_flash_sdp(before[0]), cuda.enable_cudnn_sdp(before[1])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_cudnn_is_left_out_on_a_gpu_once_and_stays_a_choice(switches, is_compiled):
    """Also in one graph of a compiler. Without flash attention, cuDNN's is chosen."""

    def choose(x):
        attention.prefer_flash()
        return x + 1

    run = torch.compile(choose, fullgraph=True, backend="eager") if is_compiled else choose
    assert torch.equal(run(torch.zeros(2)), torch.ones(2))
    assert switches.flash_sdp_enabled()
    assert not switches.cudnn_sdp_enabled()
    switches.enable_flash_sdp(False), switches.enable_cudnn_sdp(True)
    attention.prefer_flash()
    assert switches.cudnn_sdp_enabled()


@pytest.mark.skipif(not multiplies_bfloat16(), reason="needs a CPU whose oneDNN takes bfloat16")
@pytest.mark.parametrize("bias_shape", [None, (2, 50, 40), (3, 1, 50, 33), (1, 2, 1, 33), (3, 2, 50, 1)])
@pytest.mark.parametrize("elements", [1, 2 * 50 * 64, 2**23])  # some queries, an image, all at a time
def test_attend_by_products_on_a_cpu_in_bfloat16(bias_shape, elements, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "SMALLEST_LOGITS", 3 * 2 * 50 * 33)
    monkeypatch.setattr(attention, "BIAS_ELEMENTS", elements)
    q, k, v = (torch.randn(3, n, 2, d).bfloat16().transpose(1, 2) for n, d in ((50, 16), (33, 16), (33, 8)))
    bias = None if bias_shape is None else torch.randn(bias_shape).bfloat16()
    want = naive(*(x.double() for x in (q, k, v)), None if bias is None else bias[..., :33].double(), 0.3)
    if bias is not None:
        bias[..., 33:] = torch.inf
    with torch.no_grad(), torch.profiler.profile() as run:
        got = attend(q, k, v, bias, 0.3)
    assert relative_error(got.double(), want) < 0.01
    assert got.transpose(1, 2).is_contiguous()
    names = {event.name for event in run.events()}
    assert "aten::baddbmm_" in names
    assert "aten::scaled_dot_product_attention" not in names
    with torch.no_grad():
        assert not attention._by_products(q[:2], k)
        assert not attention._by_products(q.float(), k)
        assert not attention._by_products(q, k, torch.ones(50, 33, dtype=torch.bool))
    assert not attention._by_products(q, k)  # with gradients


TOKENS, HEADS = 6, 2
WINDOWS = {  # windows, of them without a mask; None for no masks at all
    "no bias": (3, None),
    "bias": (3, None),
    "all masked": (3, 0),
    "some masked": (5, 3),
    "one masked": (3, 2),
    "some masked, no bias": (5, 3),
}
every_window = pytest.mark.parametrize("kind", WINDOWS)


def window_inputs(kind, images=1):
    """Queries, keys and values, bias, and a layout with masks; what is in columns after the tokens does not matter."""
    n, num_plain = WINDOWS[kind]
    qkv = torch.randn(images * n, TOKENS, 3, HEADS, 4, dtype=torch.float64)
    bias = None if "no bias" in kind else torch.randn(HEADS, TOKENS, align(TOKENS), dtype=torch.float64)
    if num_plain is None:
        return qkv, bias, Windows((4, 3), (2, 3))
    mask = -100.0 * (torch.rand(n - num_plain, 1, 1, TOKENS, align(TOKENS)) < 0.4).double()
    mask[..., 0] = 0
    return qkv, bias, Windows((4, 3), (2, 3), mask, num_plain)


def naive_windows(qkv, bias, windows, scale):
    outs = []
    for n, window in enumerate(qkv):
        of_window = 0 if bias is None else bias[..., :TOKENS]
        if windows.mask is not None and n >= windows.num_plain:
            of_window = of_window + windows.mask[(n - windows.num_plain) % len(windows.mask), 0, :, :, :TOKENS]
        out = naive(*window.permute(1, 2, 0, 3)[:, None], of_window, scale)  # [1, heads, N, d]
        outs.append(out[0].transpose(0, 1).flatten(1))
    return torch.stack(outs)


@every_window
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attend_windows_is_attention_in_every_window(kind, needs_grad, scale):
    qkv, bias, windows = window_inputs(kind)
    want = naive_windows(qkv, bias, windows, 0.5 if scale is None else scale)
    qkv.requires_grad_(needs_grad)
    bias = bias if bias is None else bias.requires_grad_(needs_grad)
    torch.testing.assert_close(attend_windows(qkv, bias, windows, scale), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("images", [1, 2])
@every_window
def test_traced_attend_windows_repeats_the_masks_for_every_image(kind, images, monkeypatch):
    qkv, bias, windows = window_inputs(kind, images=images)
    if windows.mask is not None:  # while a model is compiled, every window has a mask
        qkv, windows = qkv[: images * len(windows.mask)], replace(windows, num_plain=0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    got = attend_windows(qkv, bias, windows)
    torch.testing.assert_close(got, naive_windows(qkv, bias, windows, 0.5), rtol=1e-10, atol=1e-10)


@every_window
def test_gradients_of_attend_windows(kind):
    qkv, bias, windows = window_inputs(kind)
    inputs = [x.detach().clone().requires_grad_() if x is not None else None for x in (qkv, bias)]
    assert torch.autograd.gradcheck(lambda *x: attend_windows(*x, windows), inputs, fast_mode=True)


# Grids of queries and keys, channels of a head.
DECOMPOSED = {
    "tiny": ((1, 1), (1, 1), 2),
    "keys pooled": ((4, 6), (2, 3), 4),
    "queries pooled": ((2, 3), (4, 6), 3),
    "one row": ((1, 5), (1, 3), 8),
    "one column": ((5, 1), (3, 1), 8),
    "many keys": ((8, 8), (8, 8), 2),
    "odd, aligned channels": ((7, 9), (7, 9), 16),
}
every_size = pytest.mark.parametrize("kind", DECOMPOSED)
FORMS = {"added": (False, 10**6), "added, row by row": (False, 0), "folded, traced": (True, 10**6)}


def decomposed_inputs(kind, batch=3, heads=2):
    queries, keys, dim = DECOMPOSED[kind]
    q = torch.randn(batch, *queries, heads, dim, dtype=torch.float64)
    k, v = (torch.randn(batch, keys[0] * keys[1], heads, dim, dtype=torch.float64) for _ in range(2))
    bias = DecomposedBias(tuple(max(sides) for sides in zip(queries, keys)), dim).double()
    for table in bias.parameters():
        torch.nn.init.normal_(table)
    return q, k, v, bias, keys


@torch.no_grad()
def naive_decomposed(q, k, v, bias, keys):
    along_h, along_w = bias(q, keys)
    sums = [along_h[..., key // keys[1]] + along_w[..., key % keys[1]] for key in range(k.shape[1])]
    total = torch.stack(sums, dim=-1).flatten(1, 2).transpose(1, 2)  # [B, heads, h*w, h'*w']
    out = naive(*(x.transpose(1, 2) for x in (q.flatten(1, 2), k, v)), total, q.shape[-1] ** -0.5)
    return out.transpose(1, 2).flatten(2)


@pytest.fixture
def ran(monkeypatch):
    names = []
    for name in ("_attend_added", "_attend_folded"):
        body = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda *args, body=body, name=name: names.append(name) or body(*args))
    return names


@every_size
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_forms_of_attend_decomposed_are_softmax_attention(kind, form, dtype, bound, monkeypatch, ran):
    q, k, v, bias, keys = decomposed_inputs(kind)
    want = naive_decomposed(q, k, v, bias, keys)
    traced, elements = FORMS[form]
    monkeypatch.setattr(attention, "BIAS_ELEMENTS", elements)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)
    with torch.no_grad():
        got = attend_decomposed(*(x.to(dtype) for x in (q, k, v)), bias, keys)
    assert {*ran} == {f"_attend_{form.split(',')[0]}"}
    assert got.dtype == dtype
    assert relative_error(got.double(), want) < bound


@every_size
def test_attend_decomposed_with_gradients_is_softmax_attention(kind, ran):
    """The form depends on the sizes."""
    inputs = decomposed_inputs(kind)
    torch.testing.assert_close(attend_decomposed(*inputs), naive_decomposed(*inputs), rtol=1e-10, atol=1e-10)
    assert ran == ["_attend_folded" if kind == "many keys" else "_attend_added"]


@pytest.mark.parametrize(("images", "calls"), [(0.5, 6), (1, 3), (2, 2), (3, 1), (9, 1)])
def test_attend_decomposed_in_parts(images, calls, monkeypatch, ran):
    inputs = decomposed_inputs("keys pooled")
    monkeypatch.setattr(attention, "BIAS_ELEMENTS", int(images * 2 * 24 * 6))  # heads, queries and keys of an image
    with torch.no_grad():
        got = attend_decomposed(*inputs)
    assert ran == ["_attend_added"] * calls
    torch.testing.assert_close(got, naive_decomposed(*inputs), rtol=1e-10, atol=1e-10)
