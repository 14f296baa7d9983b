"""Pixels against patches: the tool's counts against formulas and published figures, and against measured memory."""

import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import attention_cost as script
from timing import peak_memory
from vitdense.layers.attention import attend
from vitdense.layers.layout import window_layout
from vitdense.models.registry import find_arch
from vitdense.models.vit.sizes import VIT

PIXELS = [(side, side) for side in (32, 64, 128, 224)]


def costs(arch, images, patches):
    return script.attention_costs(script.vit_arch(arch), images, patches)


def test_published_figures():
    """48 layers of 16 heads on 128x128 pixels: 768 GB, which are GiB. Patches of 16 at 224 pixels: 256 times fewer
    tokens, 65,536 times fewer pairs, 38,416 numbers a head."""
    huge = costs("1536,48,16", [(128, 128)], [1])[1, (128, 128)]
    assert huge.matrix_bytes(torch.float32) == 768 * 2**30
    assert huge.matrix_bytes(torch.float16, layers=1) == 8 * 2**30
    tiny = costs("deit_tiny", [(224, 224)], [1, 16])
    pixels, patches = tiny[1, (224, 224)], tiny[16, (224, 224)]
    assert (pixels.tokens, patches.tokens) == (50176, 196)
    assert pixels.tokens / patches.tokens == 256
    assert pixels.pairs / patches.pairs == 65536
    assert patches.pairs == 38416
    total = [cost.linear + cost.pair for cost in (pixels, patches)]
    assert total[0] / total[1] == pytest.approx(9748, rel=1e-3)  # the linear layers gain 256 times alone


@pytest.mark.parametrize("arch", ["deit_tiny", "64,2,4"])
def test_counts_are_the_formulas(arch):
    row = find_arch(script.vit_arch(arch), VIT)
    for (patch, (h, w)), cost in costs(arch, [*PIXELS, (80, 128), (30, 50)], [1, 16, 256]).items():
        n = math.ceil(h / patch) * math.ceil(w / patch)
        assert (cost.tokens, cost.pairs) == (n, n * n)
        assert cost.linear == row.depth * 12 * n * row.embed_dims**2
        assert cost.pair == row.depth * 2 * n**2 * row.embed_dims
        assert cost.matrix_bytes(torch.bfloat16) == 2 * n**2 * row.num_heads * row.depth


def slope(sides, values):
    """Of the logarithms."""
    return np.polyfit(np.log(sides), np.log(values), 1)[0]


def test_pairs_grow_with_the_fourth_power_of_the_side():
    found = costs("deit_tiny", PIXELS, [1])
    sides = [side for side, _ in PIXELS]
    assert slope(sides, [cost.pairs for cost in found.values()]) == pytest.approx(4, abs=1e-9)
    assert slope(sides, [cost.linear for cost in found.values()]) == pytest.approx(2, abs=1e-9)


def explicit(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@pytest.mark.long
def test_measured_memory_is_that_of_the_formula():
    """Softmax attention that is written out has two matrices at a time, logits and probabilities. Fused attention has
    none: its memory grows as the tokens, and so does that of windows."""
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


def test_tool_prints_a_table_and_draws_the_curves(monkeypatch, tmp_path, capsys):
    picture = tmp_path / "pictures" / "curves.png"
    words = ["attention_cost.py", "deit_tiny", "--images", "128", "80x128", "--patches", "1", "16"]
    monkeypatch.setattr(sys, "argv", [*words, "--dtype", "float16", "--plot", str(picture)])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "128x128",
        "1",
        "16,384",
        "268,435,456",
        "86.97",
        "1,236.95",
        "1.500",
        "GiB",
        "18.000",
        "GiB",
    ]
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["80x128", "1", "10,240"],
        ["128x128", "16", "64"],
        ["80x128", "16", "40"],
    ]
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["1536,48,7"], "heads"),
        (["1536,48,16,4"], "arch"),
        (["1536,48"], "arch"),
        (["1536,x,16"], "arch"),
        (["vit_t"], "arch"),
        (["deit_tiny", "--images", "0"], "images"),
        (["deit_tiny", "--images", "8x8x8"], "images"),
        (["deit_tiny", "--patches", "0"], "patches"),
    ],
)
def test_wrong_arguments_are_named(monkeypatch, capsys, words, named):
    monkeypatch.setattr(sys, "argv", ["attention_cost.py", *words])
    with pytest.raises(SystemExit):
        script.main()
    assert named in capsys.readouterr().err
