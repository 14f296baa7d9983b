"""Local self-attention in the place of 3x3 convolutions: definition and totals of "Stand-alone self-attention"."""

import pytest
import torch
from conftest import relative_error
from test_local import definition
from test_resnet import NANO
from torch import nn

from vitdense import SASA, ResNet
from vitdense.flops import macs, num_params
from vitdense.research.nat import local
from vitdense.research.sasa.model import LocalConv
from vitdense.research.sasa.sizes import SASAArch

CONV50 = {"embed_dims": 64, "depths": (3, 4, 6, 3)}
SASA_TOTALS = {  # FLOPs in G, two per multiply-add, and parameters in M, as counted; and as Table 1 has them
    "resnet, 26": (CONV50 | {"depths": (1, 2, 4, 1)}, 4.68, 13.70, (4.7, 13.7)),
    "resnet, 38": ({**CONV50, "depths": (2, 3, 5, 2)}, 6.43, 19.63, (6.5, 19.6)),
    "26": ("sasa26", 4.48, 10.34, (4.5, 10.3)),
    "38": ("sasa38", 5.73, 14.19, (5.7, 14.1)),
    "50": ("sasa50", 6.97, 18.04, (7.0, 18.0)),
    **{  # Table 3
        f"attention in stages {stages}": ({**CONV50, "local_stages": stages}, flops, params, None)
        for stages, flops, params in (
            ((1, 2, 3), 7.25, 18.11),
            ((2, 3), 7.43, 18.50),
            ((3,), 7.99, 20.85),
            ((0,), 7.89, 25.48),
            ((0, 1), 7.71, 25.10),
            ((0, 1, 2), 7.15, 22.75),
        )
    },
}


def gflops_by_kernel(arch, monkeypatch):
    """FLOPs of a classifier in G, two per multiply-add, by the side of the neighbourhoods, and its parameters in M.

    Attention has three products of the query's channels per neighbour: q k, q r and a v.
    """
    queries = []

    def by_definition(q, *args):
        queries.append(q.numel())
        return q.flatten(-2)  # [B, H, W, C]

    monkeypatch.setattr(local, "attend_local", by_definition)
    with torch.device("meta"), torch.no_grad():
        kind = ResNet if isinstance(arch, dict) and "local_stages" not in arch else SASA
        model, classifier = kind(arch).eval(), nn.Linear(2048, 1000)
        dense = macs(lambda: model(torch.empty(1, 3, 224, 224)))[1] + classifier.weight.numel()
    assert len(queries) == sum(model.arch.depths[stage] for stage in getattr(model.arch, "local_stages", ()))
    flops = {kernel: 2 * (dense + 3 * kernel**2 * sum(queries)) / 1e9 for kernel in (3, 5, 7, 9, 11)}
    return flops, (num_params(model) + num_params(classifier)) / 1e6


@pytest.mark.parametrize(("arch", "gflops", "params_m", "published"), SASA_TOTALS.values(), ids=SASA_TOTALS.keys())
def test_totals_of_stand_alone_self_attention(arch, gflops, params_m, published, monkeypatch):
    flops, params = gflops_by_kernel(arch, monkeypatch)
    assert (flops[7], params) == pytest.approx((gflops, params_m), abs=0.01)
    assert published is None or (flops[7], params) == pytest.approx(published, abs=0.1)


def test_flops_by_the_side_of_the_neighbourhood(monkeypatch):
    """Table 4 of "Stand-alone self-attention", as counted."""
    flops, _ = gflops_by_kernel("sasa50", monkeypatch)
    assert flops == pytest.approx({3: 6.51, 5: 6.69, 7: 6.97, 9: 7.33, 11: 7.79}, abs=0.01)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    ("stride", "size"),
    [(1, (6, 7)), (2, (6, 8)), (2, (7, 9)), (2, (1, 3)), (2, (7, 8)), (2, (6, 9)), (1, (18, 27)), (2, (18, 27))],
)
def test_local_attention_in_place_of_a_convolution_equals_its_definition(stride, size, compiling, monkeypatch):
    """In float64: no scale, positions as keys, all of the map, then the mean of 2x2.

    18 x 27 are several tiles, the last ones padded; only one side is padded for the mean.
    """
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    arch = SASAArch(16, (1,), local_stages=(0,), kernel=5, num_heads=2)
    layer, (h, w) = LocalConv(16, arch, stride).double(), size
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert layer.attn.qkv.bias is None
    x = torch.randn(1, 16, *size, dtype=torch.float64)
    pixels = x.permute(0, 2, 3, 1)  # [1, H, W, C]
    qkv = ((pixels @ part.T).unflatten(-1, (2, 8)) for part in layer.attn.qkv.weight.flatten(1).chunk(3))
    y = definition(*qkv, 5, "mask", (layer.attn.rel_pos_h, layer.attn.rel_pos_w), 1.0)
    y = y.permute(0, 3, 1, 2)  # [1, C, H, W]
    if stride == 2:
        y = torch.stack([y[..., i : i + 2, :].mean(-2) for i in range(0, h, 2)], -2)
        y = torch.stack([y[..., i : i + 2].mean(-1) for i in range(0, w, 2)], -1)
    assert relative_error(layer(x).detach(), y.detach()) < 1e-12


def test_attention_runs_before_the_stride_is_taken():
    """At the resolution of its input; the shortcut and the other convolutions are as in a ResNet."""
    seen = []
    model = SASA({**NANO, "local_stages": (1, 3), "num_heads": 4}).eval()
    for module in model.modules():
        if isinstance(module, local.LocalAttention):
            module.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[1:])))
    x = torch.randn(2, 3, 97, 61)
    assert [out.shape for out in model(x)] == [out.shape for out in ResNet(NANO).eval()(x)]
    assert seen == [(25, 16, 32), (13, 8, 32), (7, 4, 128)]  # [H, W, C]
    plain = {key: value.shape for key, value in ResNet(NANO).state_dict().items()}
    ours = {key: value.shape for key, value in model.state_dict().items() if ".attn." not in key}
    missing = {f"layer2.{i}.conv2.weight" for i in (0, 1)} | {"layer4.0.conv2.weight"}
    assert ours == {key: shape for key, shape in plain.items() if key not in missing}
