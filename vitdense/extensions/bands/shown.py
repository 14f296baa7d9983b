"""``--bands`` and ``--geojson`` of `vitdense predict`."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdense.mm.config.arguments import Parser


def add_options(parser: "Parser") -> None:
    add_bands(parser)
    text = "GeoTIFFs: write results in their coordinates too, NAME.geojson for every image"
    parser.add_argument("--geojson", action="store_true", help=text)
    parser.apart("--geojson", "--as-dataset", "--joined")


def add_bands(parser: argparse.ArgumentParser) -> None:
    text = "images of bands: those that pictures show as red, green and blue, counted from 1: 4 3 2"
    parser.add_argument("--bands", type=int, nargs=3, metavar="N", help=text)


def instead(args: argparse.Namespace) -> None:
    if args.bands:
        args.cfg_options["test_dataloader.dataset.pipeline.0.shown"] = tuple(args.bands)


def writer(args: argparse.Namespace, out_dir: Path) -> Callable | None:
    """What writes GeoJSON, if it is asked for. An image without a transform is a ConfigError."""
    if not args.geojson:
        return None
    from vitdense.extensions.bands.geo import transform_of, write
    from vitdense.mm.cli.predict import list_images

    for image in list_images(args.images):
        transform_of(image)
    return partial(write, out_dir=out_dir)
