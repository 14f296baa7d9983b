import itertools
import math
from functools import partial

import pytest
import torch
from conftest import classifier_totals
from torch import nn
from torch.nn import functional as F

from cost import CostCounter
from vitdense import ViT
from vitdense.flops import macs, num_params
from vitdense.layers.layout import window_layout
from vitdense.models.vit.model import BlockSpec, ViTBlock, default_out_indices, plan
from vitdense.models.vit.sizes import VIT, ViTArch

NANO = {"embed_dims": 32, "depth": 4, "num_heads": 2}


def randomise(model):
    for parameter in model.parameters():  # norms and biases too: 1 and 0 would hide a swap
        nn.init.normal_(parameter, std=0.3)
    return model


def by_hand(norm, x, eps=1e-6):
    """LayerNorm of tokens ``[N, C]`` from its definition; the epsilon is the ViT authors'."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight + norm.bias


def biases_of(layer):
    if not hasattr(layer, "qv_bias"):
        return layer.bias.chunk(3)
    q, v = layer.qv_bias.chunk(2)
    return q, 0, v


def attention_by_hand(attention, x, size, window, turn):
    """Attention of tokens ``[N, C]`` query by query: all to all, or inside windows of the zero-padded map. The last
    h * w tokens are the map; `turn` rotates a query or key ``[heads, d]`` of a place (y, x) in a window at a corner."""
    (h, w), (wh, ww), extra = size, window or size, len(x) - size[0] * size[1]
    layers = [*zip(attention.qkv.weight.chunk(3), biases_of(attention.qkv))]

    def project(token, place=None, corner=None):
        q, k, v = ((weight @ token + bias).view(attention.num_heads, -1) for weight, bias in layers)
        return (q, k, v) if place is None else (turn(q, place, corner), turn(k, place, corner), v)

    out = []
    for i in range(len(x)):
        place = None if i < extra else divmod(i - extra, w)
        corner = (0, 0) if place is None else (place[0] // wh * wh, place[1] // ww * ww)
        q, *_ = project(x[i], place, corner)  # [heads, d]
        places = [*itertools.product(*(range(start, start + side) for start, side in zip(corner, (wh, ww))))]
        keys = [project(x[j]) for j in range(extra)]
        for at in places:  # padding is seen, and not normalised: its key and value are the biases
            inside = at[0] < h and at[1] < w
            keys.append(project(x[extra + at[0] * w + at[1]] if inside else torch.zeros_like(x[0]), at, corner))
        _, k, v = (torch.stack(part) for part in zip(*keys))  # [keys, heads, d] each
        logits = (q * k).sum(-1) / math.sqrt(q.shape[1])  # [keys, heads]
        for axis, table in enumerate(attention.bias.parameters() if attention.bias is not None else ()):
            rows = [table[place[axis] - at[axis] + (len(table) - 1) // 2] for at in places]
            logits = logits + torch.stack([q @ row for row in rows])
        out.append((logits.softmax(0)[..., None] * v).sum(0).flatten())
    return linear(attention.proj, torch.stack(out))


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))  # the exact GELU


def mlp_by_hand(layer, y, eps=1e-6):
    if hasattr(layer, "w12"):
        gate, value = linear(layer.w12, y).chunk(2, -1)
        return linear(layer.w3, by_hand(layer.norm, gate / (1 + (-gate).exp()) * value, eps))
    return linear(layer.fc2, gelu(linear(layer.fc1, y)))


def block_by_hand(block, x, size, window, turn=lambda part, place, corner: part, eps=1e-6):
    """A block of tokens ``[N, C]``: branches of a kind read the same tokens and are added up."""

    def of(name):
        return getattr(block, name, None)

    for layer, norm, gamma, function in (
        ("attn", "norm1", "gamma_1", lambda a, y: attention_by_hand(a, y, size, window, turn)),
        ("mlp", "norm2", "gamma_2", lambda a, y: mlp_by_hand(a, y, eps)),
    ):
        total = x
        for n in ("", 1, 2, 3):
            if of(f"{layer}{n}") is not None:
                branch = function(of(f"{layer}{n}"), by_hand(of(f"{norm}{n}"), x, eps))
                factor = of(f"{gamma}_{n}" if n else gamma)
                total = total + (branch if factor is None else factor * branch)
        x = total
    return x


kinds_of_blocks = pytest.mark.parametrize(
    ("size", "window", "table"),
    [((3, 4), None, None), ((3, 4), None, (3, 4)), ((3, 5), (2, 3), None), ((3, 5), (2, 3), (2, 3))],
    ids=["global", "global, relative", "windows that pad", "windows that pad, relative"],
)


def assert_block_is_the_definition(make, layer_scale, size, window, table):
    torch.manual_seed(0)
    block = randomise(make(BlockSpec(ViTArch(8, 1, 2, layer_scale=layer_scale), window, table))).double()
    extra = 2 if window is None and table is None else 0
    x = torch.randn(2, extra + size[0] * size[1], 8, dtype=torch.float64)
    windows = window_layout(x.unflatten(1, size), window) if window else None
    with torch.no_grad():
        got = block(x, size, windows)
        want = torch.stack([block_by_hand(block, row, size, window) for row in x])
    torch.testing.assert_close(got, want)


@kinds_of_blocks
@pytest.mark.parametrize("layer_scale", [None, 0.5])
def test_a_block_is_the_definition(size, window, table, layer_scale):
    assert_block_is_the_definition(lambda spec: ViTBlock(spec, 2.0), layer_scale, size, window, table)


def test_windows_padded_after_qkv_have_keys_and_values_of_zero():
    block = randomise(ViTBlock(BlockSpec(ViTArch(8, 1, 2), (2, 3), pads_qkv=True), 2.0)).double()
    size, attn = (3, 5), block.attn
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    got = attn(x, size, window_layout(x.unflatten(1, size), (2, 3)))
    qkv = F.pad(attn.qkv(x).view(2, 3, 5, 24), (0, 0, 0, 1, 0, 1))  # [2, 4, 6, 24]
    want = torch.zeros(2, 4, 6, 8, dtype=torch.float64)
    for top in (0, 2):
        for left in (0, 3):
            window = qkv[:, top : top + 2, left : left + 3].reshape(2, 6, 3, 2, 4)
            q, k, v = window.permute(2, 0, 3, 1, 4)  # [2, heads, 6, 4] each
            y = (q @ k.mT / 2).softmax(-1) @ v
            want[:, top : top + 2, left : left + 3] = y.transpose(1, 2).reshape(2, 2, 3, 8)
    torch.testing.assert_close(got, attn.proj(want[:, :3, :5].flatten(1, 2)))


def test_extra_tokens_get_the_norm_of_their_output():
    torch.manual_seed(0)
    model = randomise(ViT({**NANO, "distilled": True}, pretrain_img_size=64, output_cls_token=True)).eval()
    x = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        outs = model(x)
        plain = model.eval()
        plain.output_cls_token = False
        maps = plain(x)
        tokens = model.tokens(model.absolute_pos_embed(model.patch_embed(x)).flatten(1, 2))
        tokens = model.norm0(model.blocks[0](tokens, (4, 5), None))  # [B, 2 + 20, C]
    assert [[tuple(part.shape) for part in out] for out in outs] == [[(2, 32, 4, 5), (2, 32), (2, 32)]] * 4
    assert all(torch.equal(out[0], only) for out, only in zip(outs, maps))
    torch.testing.assert_close(torch.stack(outs[0][1:], 1), tokens[:, :2])
    torch.testing.assert_close(outs[0][0].flatten(2).transpose(1, 2), tokens[:, 2:])


def test_final_norm_is_applied_after_the_last_block_only():
    torch.manual_seed(0)
    final = randomise(ViT(NANO, pretrain_img_size=64, out_norm="final")).eval()
    bare = ViT(NANO, pretrain_img_size=64, out_norm="none").eval()
    bare.load_state_dict({key: value for key, value in final.state_dict().items() if not key.startswith("norm.")})
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        *firsts, last = final(x)
        *others, raw = bare(x)
    assert all(torch.equal(a, b) for a, b in zip(firsts, others, strict=True))
    want = F.layer_norm(raw.permute(0, 2, 3, 1), (32,), final.norm.weight, final.norm.bias, 1e-6).permute(0, 3, 1, 2)
    torch.testing.assert_close(last, want)


def test_the_final_norm_is_frozen_with_the_last_block_and_if_only_attention_trains():
    def norm(**options):
        model = ViT(NANO, out_norm="final", pretrain_img_size=64, **options).train()
        loss = sum(out.square().mean() for out in model(torch.randn(1, 3, 32, 48)))
        if loss.requires_grad:
            loss.backward()
        assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
        return {p.requires_grad for p in model.norm.parameters()}, model.train().norm.training

    assert norm(frozen_stages=4) == ({False}, False)
    assert norm(frozen_stages=3) == ({True}, True)
    assert norm(finetune="attention") == ({False}, True)


@pytest.mark.parametrize(("patch", "grid"), [(8, (7, 9)), (14, (4, 5)), (16, (4, 5)), (32, (2, 3))])
def test_any_patch_size(patch, grid):
    model = ViT(NANO, patch_size=patch, pretrain_img_size=96, out_indices=(3,)).eval()
    assert model.out_strides == (patch,)
    assert model.absolute_pos_embed.table.shape == (1, 96 // patch, 96 // patch, 32)
    with torch.no_grad():
        assert model(torch.randn(1, 3, 50, 70))[0].shape == (1, 32, *grid)


@pytest.mark.parametrize(
    ("depth", "ends"),
    [(12, (2, 5, 8, 11)), (24, (5, 11, 17, 23)), (32, (7, 15, 23, 31)), (4, (0, 1, 2, 3)), (2, (0, 1)), (1, (0,))],
)
def test_ends_of_quarters_are_vitdets_global_blocks(depth, ends):
    assert default_out_indices(depth) == ends


def test_plan_of_vitdet():
    blocks = plan(VIT["vit_base"], (14, 14), (2, 5, 8, 11), (64, 64), drop_path_rate=0.1)
    assert [i for i, block in enumerate(blocks) if block.window is None] == [2, 5, 8, 11]
    assert [block.table for block in blocks] == [block.window or (64, 64) for block in blocks]
    assert [block.drop_path for block in blocks] == pytest.approx(torch.linspace(0, 0.1, 12).tolist())
    tables = [
        block.attn.bias.rel_pos_h.shape for block in ViT("vit_tiny", window_size=14, relative_position=True).blocks
    ]
    assert tables == [(127, 64) if i in (2, 5, 8, 11) else (27, 64) for i in range(12)]


def test_drop_path_of_deit3_is_the_same_in_all_blocks_and_its_branches_are_scaled():
    blocks = plan(VIT["deit3_small"], None, (), None, drop_path_rate=0.3)
    assert {block.drop_path for block in blocks} == {0.3}
    block = ViT("deit3_small").blocks[0]
    assert all(torch.equal(gamma, torch.full((384,), 1e-4)) for gamma in (block.gamma_1, block.gamma_2))
    assert ViT("deit_small").blocks[0].gamma_1 is None


# Classifiers of 1000 classes: REFERENCE 4; a distilled one has two heads.
PUBLISHED = [
    ("deit_tiny", 5.717, 1.3, 0.05),
    ("deit_small", 22.05, 4.6, 0.05),
    ("deit_small_distilled", 22.44, 4.6, 0.05),
    ("deit_base", 86.57, 17.5, 0.1),
    ("vit_large", 304.33, 61.6, 0.1),
    ("deit3_medium", 38.85, 8.0, 0.05),
    pytest.param("deit3_large", 304.38, 61.6, 0.1, marks=pytest.mark.slow),
    pytest.param("deit3_huge", 632.13, 167.4, 0.2, marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize(("arch", "millions", "billions", "rounding"), PUBLISHED)
def test_published_totals(arch, millions, billions, rounding):
    params, cost = classifier_totals(partial(ViT, arch), heads=2 if VIT[arch].distilled else 1)
    assert params == pytest.approx(millions, abs=0.005 + 1e-5 * millions)
    assert cost == pytest.approx(billions, abs=rounding)


def test_totals_of_vitdet():
    """REFERENCE 7: 85.9 M and 482.8 G at 1024 pixels. Ours are the projections of padding less: 0.8 %."""
    with torch.device("meta"), torch.no_grad():
        model = ViT("vit_base", window_size=14, relative_position=True, out_norm="none").eval()
        _, cost = macs(lambda: model(torch.empty(1, 3, 1024, 1024)))
    assert num_params(model) / 1e6 == pytest.approx(85.9, abs=0.05)
    of_padding = 8 * (70 * 70 - 64 * 64) * 768**2
    assert (cost + of_padding) / 1e9 == pytest.approx(482.8, abs=0.1)


def test_attention_only_fine_tuning_saves_what_frozen_layers_would_keep():
    """An MLP keeps only what its own gradient needs: the hidden map before GELU, and no inputs."""
    x = torch.randn(2, 3, 64, 64)
    options = {"pretrain_img_size": 64, "drop_path_rate": 0.0}
    kept = []
    for finetune in (None, "attention"):
        model = ViT(NANO, finetune=finetune, **options).train()
        with CostCounter(model) as counter:
            model(x)
        kept.append(counter.cost.kept)
    tokens = 2 * (1 + 16) * 2  # images, tokens, bytes of a number
    assert kept[0] - kept[1] >= NANO["depth"] * tokens * 32  # inputs of the first layers
