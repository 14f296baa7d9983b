"""What the blocks of a plain ViT cost by image and patch size, pixels (patches of 1) included: docs/systems.md."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitdense.files import atomic_write
from vitdense.models.registry import find_arch
from vitdense.models.vit.sizes import VIT

FLOAT32, GIB = 4, 2**30  # bytes
Size = tuple[int, int]


class AttentionCost(NamedTuple):
    """What the blocks of a plain ViT with global attention cost for one image, the class token left out.

    Attributes:
        tokens: Patches of the image, N.
        pairs: Of tokens, N^2: numbers in the attention matrix of one head.
        linear: MACs of linear layers in all blocks.
        pair: MACs of products of queries, keys and values in all blocks.
        matrices: Bytes of the attention matrices of all layers in float32. This is a property of the formula: fused
            attention keeps no matrix.
    """

    tokens: int
    pairs: int
    linear: int
    pair: int
    matrices: int


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


def vit_arch(text: str) -> str | dict[str, int]:
    """``deit_tiny``, or channels, depth and heads: ``1536,48,16``."""
    sizes = text.split(",")
    return text if len(sizes) == 1 else dict(zip(("embed_dims", "depth", "num_heads"), map(int, sizes), strict=True))


def attention_table(costs: Costs) -> str:
    """Text table of `attention_costs`."""
    row = "{:>9} {:>6} {:>9} {:>15} {:>12} {:>12} {:>18}".format
    lines = [row("image", "patch", "tokens", "pairs", "linear (G)", "pairs (G)", "matrices (GiB)")]
    for (patch, image), cost in costs.items():
        amounts = (f"{x:,.2f}" for x in (cost.linear / 1e9, cost.pair / 1e9, cost.matrices / GIB))
        lines.append(row("x".join(map(str, image)), patch, f"{cost.tokens:,}", f"{cost.pairs:,}", *amounts))
    return "\n".join([*lines, "MACs of all blocks; attention matrices in float32, which fused attention does not keep"])


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", type=vit_arch, help="a ViT, such as deit_tiny, or channels,depth,heads")
    parser.add_argument("--images", type=int, nargs="+", default=[32, 64, 128, 224], help="sides in pixels")
    parser.add_argument("--patches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    args = parser.parse_args()
    costs = attention_costs(args.arch, [(side, side) for side in args.images], args.patches)
    print(attention_table(costs))
    if args.plot:
        plot_attention(costs, args.plot)


if __name__ == "__main__":
    main()
