"""NAT against a definition in float64 that has the authors' names, through the rename table of users' checkpoints."""

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same_tensors, classifier_totals, relative_error, without_output_norms
from test_configs import decays
from torch import nn

from vitdense import NAT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.load import load_pretrained
from vitdense.mm.config.load import load_config
from vitdense.research.nat.sizes import NAT as SIZES

ARCH = {"embed_dims": 16, "depths": (1, 2, 2, 1), "num_heads": (1, 2, 4, 8), "mlp_ratio": 3.0}
OUTPUT_NORMS = [f"norm{i}.{name}" for i in range(4) for name in ("weight", "bias")]
SCALED = {**ARCH, "mlp_ratio": 2.0, "layer_scale": 1e-5}


def official(arch, kernel=7, output_norms=False):
    state, dim = {}, arch["embed_dims"]

    def add(name, *shape, mean=0.0, std=0.05):
        state[name] = torch.randn(*shape) * std + mean

    def norm(name, dim):
        add(f"{name}.weight", dim, mean=1.0, std=0.2)
        add(f"{name}.bias", dim, std=0.2)

    def linear(name, out, *shape, bias=True):
        add(f"{name}.weight", out, *shape, std=shape[0] ** -0.5 * (3 if "qkv" in name else 1))
        if bias:
            add(f"{name}.bias", out, std=0.3)

    linear("patch_embed.proj.0", dim // 2, 3, 3, 3)
    linear("patch_embed.proj.1", dim, dim // 2, 3, 3)
    norm("patch_embed.norm", dim)
    for i, (depth, heads) in enumerate(zip(arch["depths"], arch["num_heads"])):
        dim = arch["embed_dims"] * 2**i
        for j in range(depth):
            block, hidden = f"levels.{i}.blocks.{j}", int(dim * arch["mlp_ratio"])
            norm(f"{block}.norm1", dim)
            linear(f"{block}.attn.qkv", 3 * dim, dim)
            add(f"{block}.attn.rpb", heads, 2 * kernel - 1, 2 * kernel - 1, std=1.0)
            linear(f"{block}.attn.proj", dim, dim)
            norm(f"{block}.norm2", dim)
            linear(f"{block}.mlp.fc1", hidden, dim)
            linear(f"{block}.mlp.fc2", dim, hidden)
            for name in ("gamma1", "gamma2") if "layer_scale" in arch else ():
                add(f"{block}.{name}", dim, mean=1.0, std=0.3)
        if i + 1 < len(arch["depths"]):
            linear(f"levels.{i}.downsample.reduction", 2 * dim, dim, 3, 3, bias=False)
            norm(f"levels.{i}.downsample.norm", 2 * dim)
        if output_norms:
            norm(f"norm{i}", dim)
    if not output_norms:
        norm("norm", dim)
        linear("head", 10, dim)
    return state


def neighbourhood_attention(x, weight, bias, rpb, heads):
    kernel = (rpb.shape[-1] + 1) // 2
    b, h, w, c = x.shape
    x = F.pad(x, (0, 0, 0, max(kernel - w, 0), 0, max(kernel - h, 0)))  # padded keys are the bias of qkv
    q, k, v = (x @ weight.T + bias).view(b, *x.shape[1:3], 3, heads, c // heads).unbind(3)
    rows, columns = (
        torch.tensor([[min(max(i - kernel // 2, 0), n - kernel) + j for j in range(kernel)] for i in range(n)])
        for n in x.shape[1:3]
    )  # [H, k], [W, k]
    k, v = (t[:, rows[:, None, :, None], columns[None, :, None]] for t in (k, v))  # [B, H, W, k, k, heads, d]
    logits = torch.einsum("bijnd,bijyxnd->bijnyx", q, k) * (c // heads) ** -0.5
    of_row, of_column = (t - torch.arange(len(t))[:, None] + kernel - 1 for t in (rows, columns))  # key less query
    logits = logits + rpb[:, of_row[:, None, :, None], of_column[None, :, None]].permute(1, 2, 0, 3, 4)
    share = logits.flatten(-2).softmax(-1).view_as(logits)
    return torch.einsum("bijnyx,bijyxnd->bijnd", share, v)[:, :h, :w].flatten(3)  # [B, h, w, C]


def definition(state, x, arch):
    state = {key: value.double() for key, value in state.items()}

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    def linear(name, x):
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def conv(name, x):
        y = F.conv2d(x.permute(0, 3, 1, 2), state[f"{name}.weight"], state.get(f"{name}.bias"), stride=2, padding=1)
        return y.permute(0, 2, 3, 1)

    x = x.double().permute(0, 2, 3, 1)
    x = norm("patch_embed.norm", conv("patch_embed.proj.1", conv("patch_embed.proj.0", x)))
    maps = []
    for i, (depth, heads) in enumerate(zip(arch["depths"], arch["num_heads"])):
        for j in range(depth):
            block = f"levels.{i}.blocks.{j}"
            one, two = (state.get(f"{block}.gamma{n}", 1.0) for n in (1, 2))
            of_attention = (state[f"{block}.attn.{name}"] for name in ("qkv.weight", "qkv.bias", "rpb"))
            y = neighbourhood_attention(norm(f"{block}.norm1", x), *of_attention, heads)
            x = x + one * linear(f"{block}.attn.proj", y)
            y = F.gelu(linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", x)))
            x = x + two * linear(f"{block}.mlp.fc2", y)
        maps.append(norm(f"norm{i}", x) if f"norm{i}.weight" in state else x)
        if i + 1 < len(arch["depths"]):
            x = norm(f"levels.{i}.downsample.norm", conv(f"levels.{i}.downsample.reduction", x))
    logits = linear("head", norm("norm", x).mean((1, 2))) if "head.weight" in state else None
    return [x.permute(0, 3, 1, 2) for x in maps], logits


@pytest.mark.parametrize("arch", [ARCH, SCALED], ids=["plain", "LayerScale"])
@pytest.mark.parametrize("size", [(224, 256), (97, 131), (31, 33)])
def test_classifier_is_the_definition(arch, size):
    """Its maps and its logits. The last maps of the second size are smaller than the kernel, all of the third."""
    state, x = official(arch), torch.randn(2, 3, *size)
    model = NAT(arch).eval()
    report = load_pretrained(model, state, keep_classifier=True)
    assert report.scheme == "official"
    assert report.kept_at_init == OUTPUT_NORMS
    without_output_norms(model)
    maps, logits = definition(state, x, arch)
    with torch.no_grad():
        got = model.double()(x.double())
        head = {name: value.double() for name, value in report.classifier.items()}
        last = F.layer_norm(got[-1].permute(0, 2, 3, 1), got[-1].shape[1:2], head["norm.weight"], head["norm.bias"])
        got_logits = last.mean((1, 2)) @ head["head.weight"].T + head["head.bias"]
    assert max(relative_error(a, b) for a, b in zip(got, maps, strict=True)) < 1e-10
    assert relative_error(got_logits, logits) < 1e-10


@pytest.mark.parametrize("arch", [ARCH, SCALED], ids=["plain", "LayerScale"])
def test_backbone_of_a_detector_is_the_definition(arch):
    state, x = official(arch, kernel=3, output_norms=True), torch.randn(1, 3, 97, 131)
    file = {"state_dict": {f"backbone.{key}": value for key, value in state.items()} | {"neck.x": torch.ones(1)}}
    model = NAT(arch, kernel_size=3).eval()
    assert load_pretrained(model, file).share == 1
    with torch.no_grad():
        got = model.double()(x.double())
    assert max(relative_error(a, b) for a, b in zip(got, definition(state, x, arch)[0], strict=True)) < 1e-10


@pytest.mark.parametrize("output_norms", [False, True])
def test_names_convert_both_ways(output_norms):
    state = official(SCALED, output_norms=output_norms)
    prefix = "backbone." if output_norms else ""
    file = {prefix + key: value for key, value in state.items()}
    ours = convert(file, "vitdense").state
    missing = NAT(SCALED).load_state_dict(ours, strict=False).missing_keys
    assert missing == ([] if output_norms else OUTPUT_NORMS)
    assert_same_tensors(convert(ours, "official").state, file)


def test_weights_of_another_kernel_are_resized():
    model = NAT(ARCH, kernel_size=5)
    report = load_pretrained(model, official(ARCH))
    assert len(report.resized) == sum(ARCH["depths"])
    assert set(report.resized.values()) == {((13, 13, heads), (9, 9, heads)) for heads in ARCH["num_heads"]}


@pytest.mark.parametrize(
    ("size", "millions", "gmacs"),
    [("mini", 19.98, 2.69), ("tiny", 27.90, 4.30), ("small", 50.74, 7.77), ("base", 89.77, 13.68)],
)
def test_published_totals_of_the_classifiers(size, millions, gmacs):
    params, cost = classifier_totals(partial(NAT, size))
    assert params == pytest.approx(millions, abs=0.005)
    assert cost == pytest.approx(gmacs, abs=0.006)


def test_sizes_are_the_authors():
    assert {(arch.mlp_ratio, arch.layer_scale) for arch in SIZES.values()} == {(3.0, None), (2.0, 1e-5)}
    assert all(arch.embed_dims // arch.num_heads[0] == 32 for arch in SIZES.values())
    model = NAT(SCALED, drop_path_rate=0.5)
    gammas = [parameter for name, parameter in model.named_parameters() if "gamma" in name]
    assert len(gammas) == 2 * sum(ARCH["depths"])
    assert all(torch.equal(gamma, torch.full_like(gamma, 1e-5)) for gamma in gammas)
    assert [block.spec.drop_path for stage in model.stages for block in stage.blocks][-1] == pytest.approx(0.5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cascade_nat_t_coco", "upernet_nat_t_ade20k"])
def test_tables_and_norms_have_no_weight_decay(name):
    """As in the authors' configs for detection and segmentation."""
    model = nn.ModuleDict({"backbone": NAT(ARCH)})
    for key, decay in decays(model, load_config(name)).items():
        is_free = re.search(r"relative_position_bias_table|norm", key) is not None
        assert (decay == 0) == is_free, key
