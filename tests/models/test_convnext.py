"""ConvNeXt: names of the authors and of mm, a block written out. test_schemes.py compares with timm."""

import pytest
import torch
import torch.nn.functional as F
from contract_rows import CONVNEXT, with_random_scales

from vitdense import ConvNeXt
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.load import load_pretrained

both = pytest.mark.parametrize("grn", [False, True], ids=["v1", "v2"])
AUTHORS = {"conv": "dwconv", "fc1": "pwconv1", "fc2": "pwconv2"}
MM = {"conv": "depthwise_conv", "fc1": "pointwise_conv1", "fc2": "pointwise_conv2"}


def theirs(grn, names, prefix=""):
    state, before = {}, 3
    for i, depth in enumerate(CONVNEXT["depths"]):
        dim, kernel, norm = 16 * 2**i, 4 if i == 0 else 2, 16 * 2 ** max(i - 1, 0)
        conv, first = (0, 1) if i == 0 else (1, 0)
        state[f"downsample_layers.{i}.{conv}.weight"] = torch.randn(dim, before, kernel, kernel)
        state[f"downsample_layers.{i}.{conv}.bias"] = torch.randn(dim)
        state |= {f"downsample_layers.{i}.{first}.{x}": torch.randn(norm) for x in ("weight", "bias")}
        for j in range(depth):
            block = f"stages.{i}.{j}."
            state |= {f"{block}norm.{x}": torch.randn(dim) for x in ("weight", "bias")}
            sizes = {"conv": (dim, 1, 7, 7), "fc1": (4 * dim, dim), "fc2": (dim, 4 * dim)}
            for name, size in sizes.items():
                state[f"{block}{names[name]}.weight"] = torch.randn(size)
                state[f"{block}{names[name]}.bias"] = torch.randn(size[0])
            if grn:
                state |= {f"{block}grn.{x}": torch.randn(1, 1, 1, 4 * dim) for x in ("gamma", "beta")}
            else:
                state[f"{block}gamma"] = torch.randn(dim)
        before = dim
    return {prefix + key: x for key, x in state.items()}


@both
@pytest.mark.parametrize(("scheme", "names"), [("official", AUTHORS), ("mmpretrain", MM)])
def test_names_of_the_authors_and_of_mm(grn, scheme, names):
    state = theirs(grn, names, "backbone." if scheme == "mmpretrain" else "")
    model = ConvNeXt({**CONVNEXT, "grn": grn})
    report = load_pretrained(model, state)
    assert report.scheme == scheme
    assert {key.split(".")[0] for key in report.kept_at_init} == {f"norm{i}" for i in range(4)}
    back = convert(model.state_dict(), scheme, drop_output_norms=scheme == "official").state
    assert all(
        torch.equal(back[key.removeprefix("backbone.") if key not in back else key], x) for key, x in state.items()
    )


@both
@torch.no_grad()
def test_a_block_is_the_papers(grn):
    block = with_random_scales(ConvNeXt({**CONVNEXT, "grn": grn})).stages[1].blocks[0].double().eval()
    x = torch.randn(2, 5, 9, 32, dtype=torch.float64)
    y = F.conv2d(x.permute(0, 3, 1, 2), block.conv.weight, block.conv.bias, padding=3, groups=32).permute(0, 2, 3, 1)
    y = F.gelu(block.mlp.fc1(F.layer_norm(y, (32,), block.norm.weight, block.norm.bias, 1e-6)))
    if grn:  # section 3.3
        size = y.square().sum((1, 2), keepdim=True).sqrt()
        y = block.mlp.grn["weight"] * (y * size / (size.mean(3, keepdim=True) + 1e-6)) + block.mlp.grn["bias"] + y
    y = block.mlp.fc2(y)
    torch.testing.assert_close(block(x), x + (y if grn else block.gamma * y), rtol=1e-6 if grn else 1e-12, atol=1e-6)
