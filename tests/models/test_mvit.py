import math
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import accumulate, product

import pytest
import torch
import torch.nn.functional as F
from conftest import classifier_totals
from torch import nn

from vitdense import MViT
from vitdense.models.mvit.model import BlockSpec, MViTBlock, plan
from vitdense.models.mvit.sizes import MVIT, MViTArch

NANO = {"embed_dims": 8, "depths": (1, 2, 3, 2), "num_heads": 2}
V1_CONV = {"pool_all_queries": False, "relative_position": False, "absolute_position": True}
V1_CONV |= {"residual_pooling": False, "growth": "mlp"}
V1 = {**V1_CONV, "pool": "max"}
IMAGE = 64  # of pretraining: windows of 16 tokens, so that small images have several


def randomise(module):
    """Norms, biases and tables too: 1 and 0 would hide a swap, and small tables a wrong row."""
    for name, parameter in module.named_parameters():
        near_one = "norm" in name and name.endswith("weight")
        nn.init.normal_(parameter, float(near_one), 0.5 if "rel_pos" in name else 0.2)
    return module.eval()


def brute_force_block(block, x):
    """A block written from its definition, query by query and head by head: ``[H, W, C]`` to ``[h, w, C']``."""
    spec, parameters = block.spec, dict(block.named_parameters())
    heads, d = spec.num_heads, spec.dim_attn // spec.num_heads
    strides = {"q": spec.q_stride, "k": spec.kv_stride, "v": spec.kv_stride}

    def linear(name, t):
        return F.linear(t, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    def norm(name, t):
        return F.layer_norm(t, t.shape[-1:], parameters[f"{name}.weight"], parameters[f"{name}.bias"], 1e-6)

    def of_channels(function, t, *args, **options):  # of a map [H, W, heads, d]: every head alone
        return function(t.permute(2, 3, 0, 1), *args, **options).permute(2, 3, 0, 1)

    def max_pooled(t, stride):
        if stride == 1:
            return t
        return of_channels(F.max_pool2d, t, stride + 1, stride, (stride + 1) // 2)

    def pooled(name, t):  # [H, W, heads, d]
        if f"attn.pool_{name}.weight" not in parameters:
            return max_pooled(t, strides[name])
        kernel = parameters[f"attn.pool_{name}.weight"]  # [d, 1, 3, 3], the same for every head
        t = of_channels(F.conv2d, t, kernel, stride=strides[name], padding=1, groups=d)
        return norm(f"attn.norm_{name}", t)

    @cache
    def resized(axis, length):
        table = parameters[f"attn.bias.rel_pos_{axis}"]
        return table if length == len(table) else F.interpolate(table.T[None], size=length, mode="linear")[0].T

    def term(axis, query, at, of_query, of_key):  # of the bias along an axis
        if f"attn.bias.rel_pos_{axis}" not in parameters:
            return 0
        table = resized(axis, 2 * max(of_query, of_key) - 1)
        up, down = max(Fraction(of_key, of_query), 1), max(Fraction(of_query, of_key), 1)
        return query @ table[math.trunc(at[0] * up - at[1] * down + (of_key - 1) * down)]

    y = norm("norm1", x)
    qkv = linear("attn.qkv", y).unflatten(-1, (3, heads, d))
    q, k, v = (pooled(name, qkv[:, :, i]) for i, name in enumerate("qkv"))  # of the whole map
    window = spec.window
    of_q, of_k = (
        t.shape[:2] if window is None else (window[0] // stride, window[1] // stride)
        for t, stride in ((q, spec.q_stride), (k, spec.kv_stride))
    )
    attended = torch.zeros_like(q)
    for row, column in product(*(range(n) for n in q.shape[:2])):
        (i, py), (j, pz) = divmod(row, of_q[0]), divmod(column, of_q[1])
        query, logits, values = q[row, column], [], []  # [heads, d]
        for ky, kz in product(range(of_k[0]), range(of_k[1])):
            r, c = i * of_k[0] + ky, j * of_k[1] + kz
            inside = r < k.shape[0] and c < k.shape[1]
            key, value = (t[r, c] if inside else torch.zeros_like(query) for t in (k, v))
            along = term("h", query, (py, ky), of_q[0], of_k[0]) + term("w", query, (pz, kz), of_q[1], of_k[1])
            logits.append((query * key).sum(-1) / math.sqrt(d) + along)
            values.append(value)
        share = torch.stack(logits).softmax(0)  # [keys, heads]
        attended[row, column] = (share[..., None] * torch.stack(values)).sum(0)
    attended = attended + q if block.attn.residual else attended
    skip = x if spec.dim == spec.dim_attn else linear("proj", y)
    x = max_pooled(skip[:, :, None], spec.q_stride)[:, :, 0] + linear("attn.proj", attended.flatten(2))
    y = norm("norm2", x)
    skip = x if spec.dim_attn == spec.dim_out else linear("proj", y)
    return skip + linear("mlp.fc2", F.gelu(linear("mlp.fc1", y)))


def spec_of(q_stride, kv_stride, window, grid=(8, 8)):
    return BlockSpec(0, 8, 8, 8, 2, grid, q_stride, kv_stride, window, drop_path=0.0)


BLOCKS = {
    "stage 1": spec_of(1, 4, (8, 8)),
    "first of stage 2": spec_of(2, 2, (8, 8)),
    "middle of stage 2": spec_of(1, 2, (4, 4), (4, 4)),
    "first of stage 3": spec_of(2, 1, (4, 4), (4, 4)),
    "middle of stage 3": spec_of(1, 1, (2, 2), (2, 2)),
    "not square": spec_of(1, 2, (4, 8), (4, 8)),
    "global": spec_of(1, 4, None),
    "global and first": spec_of(2, 2, None),
}


@pytest.mark.long
# Whole windows, not whole, mostly not even one, and not whole before pooling but whole after it.
@pytest.mark.parametrize("size", [(8, 16), (5, 9), (3, 2), pytest.param((15, 23), marks=pytest.mark.slow)])
@pytest.mark.parametrize("growth", [None, "attention", "mlp"])
@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_block_is_the_definition(name, growth, size):
    spec = BLOCKS[name]
    spec = replace(spec, **{None: {}, "attention": {"dim": 4}, "mlp": {"dim_out": 16}}[growth])
    block = randomise(MViTBlock(spec, MViTArch(8, (1,), 2), mlp_ratio=2)).double()
    x = torch.randn(2, *size, spec.dim, dtype=torch.float64)
    want = torch.stack([brute_force_block(block, image) for image in x])
    # Tables are resized in float32.
    tolerance = 1e-10 if spec.window else 1e-5
    torch.testing.assert_close(block(x), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["stage 1", "first of stage 2", "middle of stage 3", "global and first"])
@pytest.mark.parametrize("pool", ["conv", "max"])
@torch.no_grad()
def test_block_of_v1_is_the_definition(name, pool):
    """Neither relative positions nor residual pooling; max pooling has no norm; queries that keep their resolution are
    neither pooled by convolutions nor normalised."""
    spec = BLOCKS[name]
    block = randomise(MViTBlock(spec, MViTArch(8, (1,), 2, **{**V1, "pool": pool}), mlp_ratio=2)).double()
    pooled = {key.removeprefix("attn.pool_")[0] for key in block.state_dict() if "pool_" in key}
    assert pooled == ({*("q" if spec.q_stride > 1 else ""), "k", "v"} if pool == "conv" else set())
    assert {key.removeprefix("attn.norm_")[0] for key in block.state_dict() if "norm_" in key} == pooled
    x = torch.randn(1, 5, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(block(x)[0], brute_force_block(block, x[0]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("arch", "depth", "first", "last"),
    [
        ("v2_tiny", 10, [1, 3, 8], [0, 2, 7, 9]),
        ("v2_small", 16, [1, 3, 14], [0, 2, 13, 15]),
        ("v2_base", 24, [2, 5, 21], [1, 4, 20, 23]),
        ("v2_large", 48, [2, 8, 44], [1, 7, 43, 47]),
        ("v2_large_in1k", 48, [2, 8, 44], [1, 7, 43, 47]),
        ("v2_huge", 80, [4, 12, 72], [3, 11, 71, 79]),
        ("v1_base", 16, [1, 3, 14], [0, 2, 13, 15]),
        ("v1_base_max", 16, [1, 3, 14], [0, 2, 13, 15]),
    ],
)
def test_where_stages_begin_and_end(arch, depth, first, last):
    specs = plan(MVIT[arch], "hybrid", (56, 56), drop_path_rate=0.0)
    assert len(specs) == depth
    assert [i for i, s in enumerate(specs) if s.q_stride == 2] == first
    assert [n - 1 for n in accumulate(MVIT[arch].depths)] == last
    assert [i for i, s in enumerate(specs) if s.window is None] == last[1:]  # the first stage's has windows
    # Both growths end in the same widths; they differ in the block that reaches them.
    width = [MVIT[arch].embed_dims * 2**s.stage for s in specs]
    assert [s.dim_attn for s in specs] == width
    in_mlp = MVIT[arch].growth == "mlp"
    grows = [i for i, s in enumerate(specs) if s.dim != (s.dim_out if in_mlp else s.dim_attn)]
    assert grows == (last[:3] if in_mlp else first)
    assert [s.dim for s in specs[1:]] == [s.dim_out for s in specs[:-1]]
    assert specs[-1].dim_out == width[-1]


@pytest.mark.parametrize("window", ["global", "window"])
def test_plan_without_the_hybrid(window):
    """Keys and values are pooled alike in all blocks of a stage."""
    specs = plan(MVIT["v2_tiny"], window, (56, 48), drop_path_rate=0.0)
    assert [s.kv_stride for s in specs] == [4] + [2] * 2 + [1] * 7
    windows = [(56, 48)] * 2 + [(28, 24)] * 2 + [(14, 12)] * 5 + [(7, 6)]
    assert [s.window for s in specs] == ([None] * 10 if window == "global" else windows)
    assert [s.grid for s in specs] == windows


@pytest.mark.parametrize("arch", ["v1_base", "v1_base_max"])
def test_plan_of_v1_is_the_authors_config(arch):
    """Strides of SlowFast's configs/ImageNet/MVIT_B_16_CONV.yaml and MVIT_B_16_MAX.yaml."""
    specs = plan(MVIT[arch], "global", (56, 56), drop_path_rate=0.1)
    assert [s.kv_stride for s in specs] == [4, 2, 2] + [1] * 13
    assert [s.num_heads for s in specs] == [1] + [2] * 2 + [4] * 11 + [8] * 2


def class_token_macs(specs):
    """A class token adds to a global classifier a row in every linear layer, a query and a key."""
    total, tokens = 0, specs[0].grid[0] * specs[0].grid[1]
    for s in specs:
        tokens, keys = tokens // s.q_stride**2, tokens // s.kv_stride**2
        rows = 3 * s.dim * s.dim_attn + s.dim_attn**2 + 4 * s.dim_attn * (s.dim_attn + s.dim_out)
        rows += s.dim * s.dim_out * (s.dim != s.dim_out)  # of the skip
        total += rows + 2 * s.dim_attn * (tokens + keys + 1)
    return total


# Parameters with a 1000-class head in millions, multiply-adds at 224 in billions, and whether those have a class token.
PUBLISHED = [
    ("v2_tiny", 24.17, 4.68, False),
    ("v2_small", 34.87, 6.96, False),
    ("v2_base", 51.47, 10.1, False),
    ("v2_large_in1k", 217.99, 43.7, False),
    ("v2_large", 213.6, 42.0, True),
    pytest.param("v2_huge", 666.9, 120.3, True, marks=pytest.mark.slow),
    ("v1_base", 36.98, 7.81, True),  # 37.0 and 7.8 in the paper
    ("v1_base_max", 36.95, 7.78, True),
]


@pytest.mark.long
@pytest.mark.parametrize(("arch", "millions", "billions", "class_token"), PUBLISHED)
def test_published_totals(arch, millions, billions, class_token):
    params, cost = classifier_totals(partial(MViT, arch, window="global"))
    if class_token:
        cost += class_token_macs(plan(MVIT[arch], "global", (56, 56), 0.0)) / 1e9
    digits = len(str(millions).split(".")[1])
    assert params == pytest.approx(millions, abs=0.51 * 10**-digits)
    assert cost == pytest.approx(billions, rel=5e-3)


@torch.no_grad()
def test_drop_path_drops_both_branches():
    spec = replace(spec_of(2, 2, (8, 8)), dim=4, drop_path=1.0)
    block = randomise(MViTBlock(spec, MViTArch(8, (1,), 2), mlp_ratio=2)).train()
    x = torch.randn(3, 8, 8, 4)
    skip = block.proj(block.norm1(x)).permute(0, 3, 1, 2)
    torch.testing.assert_close(block(x), F.max_pool2d(skip, 3, 2, 1).permute(0, 2, 3, 1))


@torch.no_grad()
@pytest.mark.parametrize(("depths", "image"), [((2,), 16), ((1, 2), (16, 32)), ((1, 1, 2), 16), ((1, 1, 1, 1, 2), 64)])
def test_other_numbers_of_stages(depths, image):
    model = MViT(
        {"embed_dims": 8, "depths": depths, "num_heads": 1}, pretrain_img_size=image, out_indices=range(len(depths))
    )
    outs = model.eval()(torch.randn(1, 3, 40, 56))
    assert [out.shape[1] for out in outs] == [8 * 2**i for i in range(len(depths))]
