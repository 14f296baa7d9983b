"""`vitdense new detection --keypoints`."""

import argparse
from typing import TYPE_CHECKING

from vitdense.mm.errors import ConfigError

if TYPE_CHECKING:
    from vitdense.mm.config.own_data import Labels

ROWS = r"bbox_head\.(decoder\.kinds|(first_)?points\.queries)"  # parameters with a row per keypoint


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "of rfdetr: boxes and keypoints, of data of one category that has them"
    parser.add_argument("--keypoints", action="store_true", help=text)


def labels(args: argparse.Namespace) -> "Labels | None":
    """The keypoints of the one category of the training file; None without the option.

    Raises:
        ConfigError: There is no such file or category, or other options do not fit.
    """
    if not args.keypoints:
        return None

    from vitdense.extensions.keypoints.categories import metainfo_of
    from vitdense.mm.config.own_data import Labels
    from vitdense.mm.data.coco import overview

    if vars(args).get("oriented") or vars(args).get("dota"):
        raise ConfigError("--oriented, --keypoints: got both; leave all but one out")
    if not args.train:
        raise ConfigError("--keypoints: expected --train and --val in COCO's format")
    if len(overview(args.train).content) != 1:
        raise ConfigError(f"--keypoints: got several in {args.train}, expected one category, which has 'keypoints'")
    number = len(metainfo_of(args.train, {})["keypoints"])
    options = {"model.bbox_head.num_keypoints": number}
    return Labels("--keypoints", "rfdetr_keypoints_coco", "vitdense.KeypointDataset", options, (ROWS,), in_tiles=False)
