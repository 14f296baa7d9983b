"""Count parameters and MACs (FLOPs in papers) of the model of a config, per module and in total.

With --attention: what the blocks of a plain ViT cost by image and patch size, pixels (patches of 1) included.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense import ViT
from vitdense.files import atomic_write
from vitdense.inspect.flops import AttentionCost, Row, attention_cost, count, table
from vitdense.mm.config.load import build_model, config_of, make_parser
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.launch import exit_on_user_error

Size = tuple[int, int]
Costs = dict[tuple[int, Size], AttentionCost]  # by patch and image size


def as_json(rows: list[Row]) -> dict[str, float]:
    return {
        "params_m": round(sum(row.params for row in rows) / 1e6, 3),
        "gmacs": round(sum(row.macs for row in rows) / 1e9, 2),
    }


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
        raise ConfigError(f"CONFIG: got {text}, expected a ViT, or channels,depth,heads such as 1536,48,16")
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
    parser = make_parser(__doc__)
    parser.add_argument(
        "--shape",
        type=int,
        nargs=2,
        default=(800, 1280),
        metavar=("H", "W"),
        help="image size in pixels, default 800 1280",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    attention = parser.add_argument_group(
        "with --attention; CONFIG is a ViT then, such as deit_tiny, or channels,depth,heads"
    )
    attention.add_argument("--attention", action="store_true", help="cost of attention by image and patch size")
    attention.add_argument("--images", type=size, nargs="+", default=[(s, s) for s in (32, 64, 128, 224)], metavar="S")
    attention.add_argument("--patches", type=pixels, nargs="+", default=[1, 16], metavar="P")
    attention.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    attention.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    args = parser.parse_args()
    if min(args.shape) < 1:
        parser.error(f"--shape: got {args.shape[0]} {args.shape[1]}, expected a height and width of at least 1 pixel")
    if args.attention:
        with exit_on_user_error():
            costs = attention_costs(vit_arch(args.config), args.images, args.patches)
            print(attention_table(costs, dtype := getattr(torch, args.dtype)))
            if args.plot:
                plot_attention(costs, dtype, args.plot)
        return
    with exit_on_user_error():
        cfg = config_of(args)
        with torch.device("meta"):
            model = build_model(cfg).eval()
        rows = count(model, tuple(args.shape))
    if args.json:
        print(json.dumps({**as_json(rows), "backbone": as_json(rows[:1])}))
    else:
        print(
            f"one image of {args.shape[0]}x{args.shape[1]} pixels (--shape); 1 MAC = 1 FLOP of papers\n\n{table(rows)}"
        )


if __name__ == "__main__":
    main()
