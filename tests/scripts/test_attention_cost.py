"""Pixels against patches: the formulas against counts of the model and published figures, and measured memory."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_cost import attention_costs
from timing import peak_memory
from vitdense import ViT
from vitdense.layers.attention import attend
from vitdense.layers.layout import window_layout


def test_published_figures():
    """48 layers of 16 heads on 128x128 pixels: 768 GB, which are GiB. Patches of 16 at 224 pixels: 256 times fewer
    tokens, 65,536 times fewer pairs, 38,416 numbers a head."""
    huge = attention_costs({"embed_dims": 1536, "depth": 48, "num_heads": 16}, [(128, 128)], [1])[1, (128, 128)]
    assert huge.matrices == 768 * 2**30
    tiny = attention_costs("deit_tiny", [(224, 224)], [1, 16])
    pixels, patches = tiny[1, (224, 224)], tiny[16, (224, 224)]
    assert (pixels.tokens, patches.tokens) == (50176, 196)
    assert pixels.pairs / patches.pairs == 65536
    assert patches.pairs == 38416
    total = [cost.linear + cost.pair for cost in (pixels, patches)]
    assert total[0] / total[1] == pytest.approx(9748, rel=1e-3)  # the linear layers gain 256 times alone


def test_formulas_are_the_counts_of_the_blocks():
    arch = {"embed_dims": 64, "depth": 2, "num_heads": 4}
    with torch.device("meta"):
        vit = ViT(arch)
    for (patch, image), cost in attention_costs(arch, [(64, 64), (80, 128), (30, 50)], [1, 16]).items():
        grid = tuple(-(-side // patch) for side in image)
        x = torch.empty(1, grid[0] * grid[1], vit.arch.embed_dims, device="meta")  # [1, N, C]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            for block in vit.blocks:
                block(x, grid, None)
        # On the meta device attention is two batched products; linear layers are none.
        pair = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
        assert (cost.tokens, cost.pairs) == (x.shape[1], x.shape[1] ** 2)
        assert (2 * cost.pair, 2 * cost.linear) == (pair, counter.get_total_flops() - pair)


def slope(sides, values):
    return np.polyfit(np.log(sides), np.log(values), 1)[0]


def explicit(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@pytest.mark.long
def test_measured_memory_equals_the_formula():
    """Softmax attention that is written out has two matrices at a time, logits and probabilities. Fused attention has
    none: its memory grows with the tokens, as with windows."""
    sides = (16, 24, 32, 48, 64)
    peaks = {"explicit": [], "fused": [], "windows": []}
    for side in sides:
        q = torch.randn(1, 1, side * side, 64)
        window = window_layout(torch.empty(1, side, side, 64), (8, 8))

        def windows(q=q, side=side, window=window):
            x = window.partition(q.view(1, side, side, 64))[:, None]
            return window.unpartition(explicit(x, x, x)[:, 0])

        functions = {
            "explicit": lambda q=q: explicit(q, q, q),
            "fused": lambda q=q: attend(q, q, q),
            "windows": windows,
        }
        with torch.no_grad():
            for name, function in functions.items():
                function()
                peaks[name].append(peak_memory(function, "cpu"))
    matrices = [2 * side**4 * 4 for side in sides]
    assert np.array(peaks["explicit"]) / matrices == pytest.approx(1, abs=0.05)
    assert slope(sides, peaks["explicit"]) == pytest.approx(4, abs=0.05)
    assert slope(sides, peaks["fused"]) < 2.1  # there is a buffer too, of one size
    assert peaks["fused"][-1] < 0.02 * peaks["explicit"][-1]
    assert slope(sides, peaks["windows"]) == pytest.approx(2, abs=0.1)
