"""What the blocks of a plain ViT cost by image and patch size, pixels (patches of 1) included: the picture of
docs/systems.md."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitdense.families import find_arch
from vitdense.files import atomic_write
from vitdense.models.vit.sizes import VIT

FLOAT32, GIB = 4, 2**30  # bytes
Size = tuple[int, int]


class AttentionCost(NamedTuple):
    """What the blocks of a plain ViT with global attention cost for one image, the class token left out."""

    tokens: int  # patches of the image, N
    pairs: int  # of tokens, N^2: numbers in the attention matrix of one head
    linear: int  # MACs of linear layers in all blocks
    pair: int  # MACs of products of queries, keys and values in all blocks
    matrices: int  # bytes of all layers' matrices in float32, by the formula; fused attention keeps none


Costs = dict[tuple[int, Size], AttentionCost]  # by patch and image size


def attention_costs(arch: str | dict[str, int], images: Sequence[Size], patches: Sequence[int]) -> Costs:
    """Costs of a ViT by patch and image size, patches first, by the formulas; its own patch size does not matter."""
    row = find_arch(arch, VIT)
    width, depth = row.embed_dims, row.depth
    found = {}
    for patch in patches:
        for image in images:
            n = math.prod(-(-side // patch) for side in image)
            macs = depth * 12 * n * width**2, depth * 2 * n**2 * width
            found[patch, image] = AttentionCost(n, n**2, *macs, n**2 * row.num_heads * depth * FLOAT32)
    return found


def plot_attention(costs: Costs, path: Path) -> None:
    """MACs and attention matrices over the side of the image, a curve per patch size with its slope."""
    from matplotlib.figure import Figure

    figure = Figure((11, 4.4), layout="constrained")
    quantities = {
        "linear layers (G multiply-adds)": lambda cost: cost.linear / 1e9,
        "pairs of tokens (G multiply-adds)": lambda cost: cost.pair / 1e9,
        "attention matrices of all layers (GiB)": lambda cost: cost.matrices / GIB,
    }
    sides = sorted({math.sqrt(h * w) for _, (h, w) in costs})
    for axes, (title, quantity) in zip(figure.subplots(1, 3), quantities.items()):
        for patch in dict.fromkeys(patch for patch, _ in costs):
            points = sorted((math.sqrt(h * w), quantity(cost)) for (p, (h, w)), cost in costs.items() if p == patch)
            slope = np.polyfit(*np.log(np.array(points)).T, 1)[0] if len(points) > 1 else math.nan
            axes.plot(*zip(*points), "o-", label=f"patches of {patch}: slope {slope:.2f}")
        axes.set(xscale="log", yscale="log", xlabel="side of the image in pixels")
        axes.set_title(title, fontsize=10)
        axes.set_xticks(sides, [f"{side:.0f}" for side in sides])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    with atomic_write(path) as scratch:
        figure.savefig(scratch, dpi=110, format="png")
