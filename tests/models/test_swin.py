import math

import pytest
import torch
from conftest import relative_error

from vitdense import Swin
from vitdense.checkpoint.load import load_pretrained
from vitdense.inspect.flops import num_params
from vitdense.models.swin.model import BlockSpec, PositionAttention, SlidingAttention, WindowAttention, plan
from vitdense.models.swin.sizes import SWIN, SwinArch

NANO = {"embed_dims": 16, "depths": (2, 2, 4, 2), "num_heads": (1, 2, 4, 8)}


def mmdet_twin(arch, **options):
    """mmdet's Swin with random weights and ours filled from it through the production rename table."""
    swin = pytest.importorskip("mmdet.models.backbones").SwinTransformer
    sizes = SWIN[arch] if isinstance(arch, str) else SwinArch(**arch)
    theirs = swin(embed_dims=sizes.embed_dims, depths=sizes.depths, num_heads=sizes.num_heads)
    for parameter in theirs.parameters():  # norms and biases too: 1 and 0 would hide a swap
        torch.nn.init.normal_(parameter, std=0.05)
    ours = Swin(arch, **options)
    report = load_pretrained(ours, theirs.state_dict())
    assert report.scheme == "mmdet"
    assert report.share == 1
    theirs.eval()  # returns None there
    return theirs, ours.eval()


@pytest.mark.parametrize("size", [(224, 224), (256, 320), (97, 131), (31, 33)])
def test_parity_with_mmdet(size):
    theirs, ours = mmdet_twin(NANO)
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        errors = [relative_error(a, b) for a, b in zip(ours(x), theirs(x), strict=True)]
    assert max(errors) < 1e-5, errors


@pytest.mark.long
@pytest.mark.parametrize("size", [(224, 224), (256, 320), (799, 1333)])
def test_parity_with_mmdet_full_size(size):
    theirs, ours = mmdet_twin("tiny")
    x = torch.randn(1, 3, *size)
    with torch.no_grad():
        errors = [relative_error(a, b) for a, b in zip(ours(x), theirs(x), strict=True)]
    print(f"swin tiny {size[0]}x{size[1]}: relative error per stage", ", ".join(f"{e:.1e}" for e in errors))
    assert max(errors) < 1e-5, errors


def brute_force_attention(attention, x, size):
    """Shifted window attention written from the definition, query by query, in float64; or of positions alone."""
    spec, table = attention.spec, attention.bias.relative_position_bias_table.double().flatten(0, 1)
    (h, w), (wh, ww), (sh, sw), heads = size, spec.window, spec.shift, spec.num_heads
    hp, wp, d = -(-h // wh) * wh, -(-w // ww) * ww, spec.dim // spec.num_heads
    padded = torch.zeros(hp, wp, spec.dim, dtype=torch.float64)
    padded[:h, :w] = x[0]
    if isinstance(attention, PositionAttention):
        qkv = torch.zeros(hp, wp, 3, heads, d, dtype=torch.float64)
        qkv[:, :, 2] = (padded @ attention.v.weight.T + attention.v.bias).view(hp, wp, heads, d)
    else:
        weight, bias = attention.qkv.weight.double(), attention.qkv.bias.double()
        qkv = (padded @ weight.T + bias).view(hp, wp, 3, heads, d)

    def place(y, n, window, shift):  # of a padded row or column: window, position inside it, band after the roll
        rolled = (y - shift) % n
        return rolled // window, rolled % window, (rolled >= n - window) + (rolled >= n - shift)

    out = torch.zeros(h, w, heads, d, dtype=torch.float64)
    for y in range(h):
        for z in range(w):
            (wy, py, by), (wz, pz, bz) = place(y, hp, wh, sh), place(z, wp, ww, sw)
            keys = [
                (ky, kz)
                for ky in range(hp)
                for kz in range(wp)
                if place(ky, hp, wh, sh)[0] == wy and place(kz, wp, ww, sw)[0] == wz
            ]
            for head in range(heads):
                logits = []
                for ky, kz in keys:
                    _, ry, cy = place(ky, hp, wh, sh)
                    _, rz, cz = place(kz, wp, ww, sw)
                    row = (py - ry + wh - 1) * (2 * ww - 1) + pz - rz + ww - 1
                    mask = 0 if not (sh or sw) or (cy, cz) == (by, bz) else -100
                    dot = qkv[y, z, 0, head] @ qkv[ky, kz, 1, head]
                    logits.append(dot / math.sqrt(d) + table[row, head] + mask)
                share = torch.stack(logits).softmax(0)
                out[y, z, head] = sum(s * qkv[ky, kz, 2, head] for s, (ky, kz) in zip(share, keys))
    return out.flatten(2) @ attention.proj.weight.double().T + attention.proj.bias.double()


@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize("size", [(6, 6), (5, 7), (3, 3)])
def test_window_attention_is_the_definition(size, shift):
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(3, 3), shift=shift, drop_path=0.0)
    attention = WindowAttention(spec, qkv_bias=True, relative_bias=True).double()
    torch.nn.init.normal_(attention.qkv.bias)  # what padded keys consist of
    torch.nn.init.normal_(attention.bias.relative_position_bias_table)
    x = torch.randn(1, *size, 4, dtype=torch.float64)
    with torch.no_grad():
        got = attention(x, attention.layout(x))
        torch.testing.assert_close(got[0], brute_force_attention(attention, x, size))


@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize("size", [(6, 6), (5, 7), (3, 3), (12, 9)])  # the last has windows without a mask
def test_attention_without_content_is_the_definition(size, shift):
    """Table 4, "w/o app.": the softmax of the bias alone. Padded keys count; pairs of the shift's mask do not."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(3, 3), shift=shift, drop_path=0.0)
    attention = PositionAttention(spec, qkv_bias=True, relative_bias=True).double()
    assert [name for name, _ in attention.named_children()] == ["bias", "proj", "v"]
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, *size, 4, dtype=torch.float64)
    with torch.no_grad():
        got = attention(x, attention.layout(x))
        for i in range(2):
            torch.testing.assert_close(got[i], brute_force_attention(attention, x[i : i + 1], size))


def test_windows_of_images_repeat_their_biases():
    """As a compiled model calls it: biases of the windows of an image, for those of all images."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(1, 3), shift=(0, 0), drop_path=0.0)
    attention = PositionAttention(spec, qkv_bias=True, relative_bias=True)
    bias, v = torch.randn(2, 2, 3, 3), torch.randn(6, 3, 4)  # of 2 windows; 3 images
    got = attention.weighted(bias, v)
    for i in range(6):
        for head in (0, 1):
            channels = slice(2 * head, 2 * head + 2)
            torch.testing.assert_close(got[i, :, channels], bias[i % 2, head].softmax(-1) @ v[i, :, channels])


def test_weights_without_content_do_not_depend_on_the_image():
    """The attention is a linear map of the image, in contrast to one with queries and keys."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(3, 3), shift=(1, 1), drop_path=0.0)
    linear = {}
    for attention in (
        PositionAttention(spec, qkv_bias=False, relative_bias=True),
        WindowAttention(spec, qkv_bias=False, relative_bias=True),
    ):
        for parameter in attention.double().parameters():
            torch.nn.init.normal_(parameter)
        torch.nn.init.zeros_(attention.proj.bias)
        a, b = torch.randn(2, 1, 7, 8, 4, dtype=torch.float64)
        out = {name: attention(x, attention.layout(x)) for name, x in (("a", a), ("b", b), ("sum", a + b))}
        linear[type(attention)] = torch.allclose(out["a"] + out["b"], out["sum"])
    assert linear == {PositionAttention: True, WindowAttention: False}


@pytest.mark.parametrize("size", [(6, 10), (2, 3)])
@pytest.mark.parametrize("relative_bias", [True, False])
def test_sliding_attention_is_the_definition(size, relative_bias):
    """Position by position, in float64: the bias of a window, for the keys at most half a window away."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(5, 5), shift=(0, 0), drop_path=0.0)
    attention = SlidingAttention(spec, qkv_bias=True, relative_bias=relative_bias).double()
    (h, w), table = size, torch.zeros(9, 9, 2, dtype=torch.float64)
    if relative_bias:
        torch.nn.init.normal_(attention.bias.relative_position_bias_table)
        table = attention.bias.relative_position_bias_table.detach()
    x = torch.randn(1, h, w, 4, dtype=torch.float64)
    q, k, v = attention.qkv(x)[0].unflatten(-1, (3, 2, 2)).unbind(2)
    out = torch.zeros(h, w, 2, 2, dtype=torch.float64)
    for y in range(h):
        for z in range(w):
            keys = [(a, b) for a in range(h) for b in range(w) if abs(a - y) <= 2 and abs(b - z) <= 2]
            for head in range(2):
                logits = [q[y, z, head] @ k[a, b, head] / 2**0.5 + table[y - a + 4, z - b + 4, head] for a, b in keys]
                out[y, z, head] = torch.stack(logits).softmax(0) @ torch.stack([v[a, b, head] for a, b in keys])
    torch.testing.assert_close(attention(x)[0], attention.proj(out.flatten(2)))


def test_sliding_windows_have_the_weights_of_a_swin():
    """A position whose window is whole, and in which the window is centred, sees the same keys with the same bias."""
    plain, sliding = Swin(NANO, shift=False).eval(), Swin(NANO, attention="sliding").eval()
    assert sliding.load_state_dict(plain.state_dict(), strict=True)
    assert not any(any(block.spec.shift) for stage in sliding.stages for block in stage.blocks)
    attn, other = (model.stages[1].blocks[1].attn for model in (plain, sliding))
    for attention in (attn, other):
        torch.nn.init.normal_(attention.bias.relative_position_bias_table, generator=torch.manual_seed(0))
    x = torch.randn(1, 28, 35, 32)
    with torch.no_grad():
        in_windows, slid = attn(x, attn.layout(x)), other(x)
    torch.testing.assert_close(slid[:, 3::7, 3::7], in_windows[:, 3::7, 3::7])
    assert relative_error(slid, in_windows) > 0.1


def test_sliding_window_of_even_sides_is_one_row_and_column_less():
    model = Swin(NANO, attention="sliding", window_size=8)
    assert model.stages[0].blocks[0].attn.kernel == 7


def test_plan_is_the_table_of_the_paper():
    blocks = plan(SWIN["tiny"], (7, 7), drop_path_rate=0.2)
    assert [b.dim for b in blocks] == [96] * 2 + [192] * 2 + [384] * 6 + [768] * 2
    assert {b.dim // b.num_heads for b in blocks} == {32}
    assert [b.shift for b in blocks] == [(0, 0), (3, 3)] * 6
    assert blocks[0].drop_path == 0
    assert blocks[-1].drop_path == pytest.approx(0.2)
    assert [b.drop_path for b in blocks] == pytest.approx(torch.linspace(0, 0.2, 12).tolist())
    assert plan(SWIN["tiny"], (12, 12), 0.2)[1].shift == (6, 6)
    assert not any(any(b.shift) for b in plan(SWIN["tiny"], (7, 7), 0.2, shift=False))


@pytest.mark.parametrize(
    ("arch", "millions"), [("tiny", 27.521), ("small", 48.839), ("base", 86.745), ("large", 194.998)]
)
def test_published_parameter_counts(arch, millions):
    with torch.device("meta"):
        assert num_params(Swin(arch)) / 1e6 == pytest.approx(millions, abs=5e-4)


def test_ablations_of_table_4():
    x = torch.randn(1, 3, 70, 100)
    keys = {name: set(Swin(NANO, **options).state_dict()) for name, options in {
        "plain": {}, "no bias": {"relative_bias": False}, "absolute": {"absolute_position": True},
        "no content": {"attention": "position"},
    }.items()}  # fmt: skip
    assert keys["absolute"] - keys["plain"] == {"absolute_pos_embed.table"}
    assert all("bias_table" in key for key in keys["plain"] - keys["no bias"])
    assert all(".attn.qkv." in key for key in keys["plain"] - keys["no content"])
    assert all(".attn.v." in key for key in keys["no content"] - keys["plain"])
    torch.manual_seed(1)
    with torch.no_grad():
        plain = Swin(NANO).eval()
        still = Swin(NANO, shift=False).eval()
        still.load_state_dict(plain.state_dict())
        assert not torch.equal(plain(x)[3], still(x)[3])
        assert Swin(NANO, relative_bias=False).eval()(x)[3].isfinite().all()
        assert Swin(NANO, absolute_position=True, pretrain_img_size=(64, 96)).eval()(x)[3].isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "huge"}, "tiny, small, base, large"),
        ({"arch": {"embed_dims": 16, "depths": (2,)}}, "expected exactly embed_dims, depths, num_heads"),
        ({"arch": {"embed_dims": 16, "depths": (2,), "num_heads": (3,)}}, "16 channels, which 3 heads do not divide"),
        ({"arch": {"embed_dims": 16, "depths": (2, 2), "num_heads": (1,)}}, "same number of stages"),
        ({"window_size": 0}, "window_size"),
        ({"attention": "sine"}, "attention: got 'sine', expected one of window"),
        ({"attention": "position", "relative_bias": False}, "relative_bias: got False"),
        ({"attention": "performer"}, "relative_bias: got True"),
        ({"attention": "sliding", "window_size": (7, 5)}, r"window_size: got \(7, 5\)"),
        ({"window_size": (7, 7, 7)}, "window_size"),
        ({"out_indices": (0, 4)}, "stages from 0 to 3"),
        ({"out_indices": ()}, "out_indices"),
        ({"frozen_stages": 5}, "frozen_stages"),
    ],
)
def test_invalid_arguments_name_the_argument(options, message):
    with pytest.raises(ValueError, match=message):
        Swin(**{"arch": NANO, **options})
