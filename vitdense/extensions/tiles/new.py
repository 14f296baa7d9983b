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

    from vitdense.extensions.tiles.dataset import shares_of
    from vitdense.mm.config.own_data import Wrapped
    from vitdense.mm.data.coco import parse
    from vitdense.mm.errors import ConfigError
    from vitdense.results.tiles import cut

    if args.tiles is None:
        return None
    if args.label_kind and not args.label_kind.in_tiles:
        raise ConfigError("--tiles: got keypoints too, which tiles do not join; leave one out")
    tiles, content, densest = {"side": args.tiles, "overlap": 0.2}, data.written.get(args.train) or parse(args.train), 0
    boxes = {image["id"]: [] for image in content["images"]}
    for one in content["annotations"]:
        x, y, width, height = one["bbox"]
        boxes[one["image_id"]].append([x, y, x + width, y + height])
    for image in content["images"]:
        size, of_image = (image["width"], image["height"]), np.array(boxes[image["id"]]).reshape(-1, 4)
        shares = shares_of(of_image, cut(size[::-1], **tiles), size)
        densest = max(densest, *(shares > 0).sum(1).tolist())
    print(f"tiles join in validation and test; predict and load take them as an option: --tiles {args.tiles}")
    loops = {f"{split}_cfg": {"type": f"vitdense.Tiled{split.title()}Loop", **tiles} for split in ("val", "test")}
    dataset = {"type": "vitdense.TiledDataset", **tiles, "min_kept": 0.5, "keep_empty": 0.1}
    return Wrapped(dataset, loops, args.tiles, densest)
