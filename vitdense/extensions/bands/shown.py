"""``--bands`` of `vitdense predict`: the bands that pictures show. For tiles, files are read in windows."""

import argparse
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "images of bands: those that pictures show as red, green and blue, counted from 1: 4 3 2"
    parser.add_argument("--bands", type=int, nargs=3, metavar="N", help=text)


def instead(args: argparse.Namespace) -> None:
    if args.bands:
        args.cfg_options["test_dataloader.dataset.pipeline.0.shown"] = tuple(args.bands)


def after(model: Any, checkpoint: str) -> None:
    from vitdense.mm.config.query import test_steps
    from vitdense.mm.predictor import ImageReader

    if model.inference.tiles is not None and model.reader.own_reader == "LoadBands":
        model.reader = ImageReader([{**test_steps(model.model.cfg)[0], "in_tiles": True}])
