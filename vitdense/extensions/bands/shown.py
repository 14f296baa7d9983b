"""``--bands`` of `vitdense predict`: the bands that pictures show."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "images of bands: those that pictures show as red, green and blue, counted from 1: 4 3 2"
    parser.add_argument("--bands", type=int, nargs=3, metavar="N", help=text)


def instead(args: argparse.Namespace) -> None:
    if args.bands:
        args.cfg_options["test_dataloader.dataset.pipeline.0.shown"] = tuple(args.bands)
