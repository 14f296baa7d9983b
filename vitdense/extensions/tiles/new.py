"""``--tiles`` of `vitdense new detection`."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdense.mm.config.own_data import Data, Wrapped


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "small objects in large images: train, validate and test in tiles of this side, in pixels of the image"
    parser.add_argument("--tiles", type=int, metavar="SIDE", help=text)


def wrapped(args: argparse.Namespace, data: "Data") -> "Wrapped | None":
    """A data set of tiles, and loops that join results; None without ``--tiles``. Keypoints are a ConfigError."""
    import numpy as np

    from vitdense.extensions.tiles.dataset import densest_of, refuse_large
    from vitdense.mm.config.own_data import Wrapped
    from vitdense.mm.data.coco import parse
    from vitdense.mm.errors import ConfigError

    if args.tiles is None:
        return None
    if args.label_kind and not args.label_kind.in_tiles:
        raise ConfigError("--tiles: got keypoints too, which tiles do not join; leave one out")
    tiles, content = {"side": args.tiles, "overlap": 0.2}, data.written.get(args.train) or parse(args.train)
    refuse_large(args.tiles, np.max([(one["height"], one["width"]) for one in content["images"]], axis=0))
    densest = densest_of(content, **tiles)
    print(f"tiles join in validation and test; predict and load take them as an option: --tiles {args.tiles}")
    loops = {f"{split}_cfg": {"type": f"vitdense.Tiled{split.title()}Loop", **tiles} for split in ("val", "test")}
    dataset = {"type": "vitdense.TiledDataset", **tiles, "min_kept": 0.5, "keep_empty": 0.1}
    return Wrapped(dataset, loops, args.tiles, densest)
