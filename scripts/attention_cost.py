"""What the blocks of a plain ViT cost by image and patch size, pixels (patches of 1) included: docs/systems.md."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitdense import ViT
from vitdense.errors import OptionError
from vitdense.files import atomic_write

Size = tuple[int, int]


@dataclass(frozen=True)
class AttentionCost:
    """What the blocks of a plain ViT with global attention cost for one image.

    Attributes:
        tokens: Patches of the image, N. The class token is left out.
        linear: MACs of linear layers in all blocks.
        pair: MACs of products of queries, keys and values in all blocks.
        heads: Attention heads of a block.
        depth: Blocks.
    """

    tokens: int
    linear: int
    pair: int
    heads: int
    depth: int

    @property
    def pairs(self) -> int:
        """Of tokens, N^2: numbers in the attention matrix of one head."""
        return self.tokens**2

    def matrix_bytes(self, dtype: torch.dtype, layers: int | None = None) -> int:
        """Of the attention matrices of some layers; of all when None, as training keeps them without recomputation.

        This is a property of the formula: fused attention keeps no matrix.
        """
        return self.pairs * self.heads * (self.depth if layers is None else layers) * dtype.itemsize


def attention_cost(vit: nn.Module, shape: tuple[int, int], patch: int) -> AttentionCost:
    """Count the blocks of a `vitdense.ViT` without windows, on the meta device, for an image (h, w) and patches of a
    side in pixels. Its own patch size does not matter."""
    arch = vit.arch
    grid = tuple(-(-side // patch) for side in shape)
    tokens = math.prod(grid)
    x = torch.empty(1, tokens, arch.embed_dims, device="meta")  # [1, N, C]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vit.blocks[0](x, grid, None)
    # All blocks cost the same. On the meta device attention is two batched products; linear layers are none.
    pair = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    linear = counter.get_total_flops() - pair
    return AttentionCost(tokens, arch.depth * linear // 2, arch.depth * pair // 2, arch.num_heads, arch.depth)


Costs = dict[tuple[int, Size], AttentionCost]  # by patch and image size


def attention_costs(arch: str | dict[str, int], images: Sequence[Size], patches: Sequence[int]) -> Costs:
    """Costs by patch and image size, patches first, of a ViT; nothing is allocated."""
    with torch.device("meta"):
        vit = ViT(arch)
    return {(patch, image): attention_cost(vit, image, patch) for patch in patches for image in images}


def vit_arch(text: str) -> str | dict[str, int]:
    """``deit_tiny``, or channels, depth and heads: ``1536,48,16``."""
    sizes = text.split(",")
    if len(sizes) == 1:
        return text
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
        raise OptionError(f"arch: got {text}, expected a ViT, or channels,depth,heads such as 1536,48,16")
    return dict(zip(("embed_dims", "depth", "num_heads"), map(int, sizes)))


def attention_table(costs: Costs, dtype: torch.dtype) -> str:
    """Text table of `attention_costs`."""
    name = str(dtype).removeprefix("torch.")
    head = ("image", "patch", "tokens", "pairs", "linear (G)", "pairs (G)", "matrix, 1 layer", "all layers")
    rows = [
        (
            "x".join(map(str, image)),
            str(patch),
            f"{cost.tokens:,}",
            f"{cost.pairs:,}",
            f"{cost.linear / 1e9:,.2f}",
            f"{cost.pair / 1e9:,.2f}",
            *(f"{cost.matrix_bytes(dtype, layers) / 2**30:,.3f} GiB" for layers in (1, None)),
        )
        for (patch, image), cost in costs.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in (head, *rows)]
    note = f"MACs of all blocks; attention matrices in {name}, which fused attention does not keep"
    return "\n".join([*lines, note])


def plot_attention(costs: Costs, dtype: torch.dtype, path: Path) -> None:
    """MACs and attention matrices over the side of the image, a curve per patch size with its slope."""
    from matplotlib.figure import Figure

    figure = Figure((11, 4.4), layout="constrained")
    quantities = {
        "linear layers (G multiply-adds)": lambda cost: cost.linear / 1e9,
        "pairs of tokens (G multiply-adds)": lambda cost: cost.pair / 1e9,
        "attention matrices of all layers (GiB)": lambda cost: cost.matrix_bytes(dtype) / 2**30,
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


def pixels(text: str) -> int:
    """``16``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a number of pixels above 0")
    return int(text)


def size(text: str) -> Size:
    """``224`` or ``800x1280``."""
    h, _, w = text.partition("x")
    return pixels(h), pixels(w or h)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", help="a ViT, such as deit_tiny, or channels,depth,heads")
    parser.add_argument("--images", type=size, nargs="+", default=[(s, s) for s in (32, 64, 128, 224)], metavar="S")
    parser.add_argument("--patches", type=pixels, nargs="+", default=[1, 16], metavar="P")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    args = parser.parse_args()
    try:
        costs = attention_costs(vit_arch(args.arch), args.images, args.patches)
    except OptionError as error:
        parser.error(str(error))
    print(attention_table(costs, dtype := getattr(torch, args.dtype)))
    if args.plot:
        plot_attention(costs, dtype, args.plot)


if __name__ == "__main__":
    main()
