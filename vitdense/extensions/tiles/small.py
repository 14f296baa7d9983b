"""What `vitdense check` says of small objects, and of many in a tile."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.checks.sets import DataSet
    from vitdense.mm.data.faults import Fault

SMALL = 16  # pixels of the square root of the area
MANY = 0.2  # share at which tiles are named


def after(args: argparse.Namespace, cfg: "Config", faults: "Sequence[Fault]", sets: "Sequence[DataSet]") -> None:
    from vitdense.mm.checks.sets import AnnotatedSet, PanopticSet
    from vitdense.mm.config.query import has_one_size, image_size
    from vitdense.mm.config.settings import shown
    from vitdense.mm.data.coco import parse

    found = [one for one in sets if isinstance(one, AnnotatedSet) and not isinstance(one, PanopticSet)]
    found = [one for one in found if one.training and one.is_described]
    if not found or any(fault.grave for fault in faults):
        return
    side, size = cfg.train_dataloader.dataset.get("side"), image_size(cfg)
    sides = [x for one in found for x in sides_of(parse(Path(one.file)), size, has_one_size(cfg), side)]
    share = sum(x < SMALL for x in sides) / max(len(sides), 1)
    advice = ""
    if share >= MANY and side is None:
        advice = f"; in tiles they are larger: vitdense new detection --tiles {max(size)}"
    print(f"objects under {SMALL} pixels at {shown(size)}: {100 * share:.0f} % of {len(sides)}{advice}")


def densest(cfg: "Config", split: str, file: str) -> int | None:
    """Most objects in a tile of a split; None for whole images."""
    tiles = cfg.train_dataloader.dataset if split == "train" else cfg.get(f"{split}_cfg") or {}
    if "side" not in tiles:
        return None
    from vitdense.extensions.tiles.dataset import densest_of
    from vitdense.mm.data.coco import parse

    return densest_of(parse(Path(file)), tiles["side"], tiles.get("overlap", 0.2))


def sides_of(content: Mapping, size: Sequence[int], one_size: bool, side: int | None) -> Iterator[float]:
    """The square roots of the areas of boxes, in pixels of images of `size`, or of tiles of this side of them."""
    area_scales = {}
    for image in content["images"]:
        edges = [min(image[key], side or image[key]) for key in ("height", "width")]
        scales = [new / old for new, old in zip(size, edges if one_size else sorted(edges))]
        area_scales[image["id"]] = scales[0] * scales[1] if one_size else min(scales) ** 2
    for one in content["annotations"]:
        if not one.get("iscrowd"):
            yield (one["bbox"][2] * one["bbox"][3] * area_scales[one["image_id"]]) ** 0.5
