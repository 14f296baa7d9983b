"""Exact counts of a nano model of every family over five batches: first passes (cold) and passes right after (warm).

After a change of what a pass costs, ``python tests/models/test_cold_counts.py`` writes `COUNTS` anew. A warm count
that rises wants a reason.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":  # run by hand, not by pytest
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "scripts")]

from counting import FORWARD, TRAIN, count_draw
from vitdense import MViT, Swin, SwinV2, ViT

STAGES = {"embed_dims": 16, "depths": (2, 2), "num_heads": (1, 2)}
LAYERS = {"embed_dims": 32, "depth": 2, "num_heads": 2}
MODELS = {
    "swin": partial(Swin, STAGES, out_indices=(0, 1)),
    "swin_v2": partial(SwinV2, STAGES, window_size=4, out_indices=(0, 1)),
    "mvit": partial(MViT, {**STAGES, "num_heads": 1}, out_indices=(0, 1)),
    "vitdet": partial(
        ViT, LAYERS, window_size=(2, 3), global_indices=(1,), relative_position=True, img_size=96, out_indices=(1,)
    ),
}
# A new size; one new side; the other; both sides seen, but not together; all new.
SHAPES = [(2, 64, 96), (2, 96, 96), (2, 96, 128), (2, 64, 128), (2, 160, 192)]
HEAD = f"{'model':8} {'pass':17} {'image':8} {'kernels, bytes, kept: cold':>30} {'warm':>30}"
COUNTS = Path(__file__).parents[1] / "data/cold_counts.txt"


def rows_of(name):
    with torch.device("meta"):
        model = MODELS[name](drop_path_rate=0.0)
    lines = []
    for step in (FORWARD, TRAIN):
        cold, warm = count_draw(name, model, model, step, SHAPES)
        for (_, h, w), first, again in zip(SHAPES, cold.costs, warm.costs):
            counts = " ".join(f"{cost.kernels:6,} {cost.bytes:12,} {cost.kept:10,}" for cost in (first, again))
            lines.append(f"{name:8} {step:17} {f'{h}x{w}':8} {counts}")
    return lines


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [n if n in ("swin", "vitdet") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_counts_of_cold_and_warm_passes(name):
    assert rows_of(name) == [line for line in COUNTS.read_text().splitlines() if line.split()[0] == name]


if __name__ == "__main__":
    COUNTS.write_text("\n".join([HEAD, *(line for name in MODELS for line in rows_of(name)), ""]))
