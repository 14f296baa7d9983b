"""What COCO panoptic files hold, and what is wrong with them: JSON of segments, PNGs of their ids."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import mmcv
import numpy as np

from vitdense.mm.data.images import evenly_spaced
from vitdense.mm.errors import ConfigError, join_some

NUMBER = (int, float)
KEYS = {
    "images": {"id": int, "file_name": str, "width": NUMBER, "height": NUMBER},
    "annotations": {"image_id": int, "file_name": str, "segments_info": list},
    "categories": {"id": int, "name": str, "isthing": int},
}
OF_SEGMENT = {"id": int, "category_id": int, "bbox": list, "area": NUMBER}


def ids_of_colours(image: np.ndarray) -> np.ndarray:
    """Ids of segments, int32 [H, W], of a PNG's colours, uint8 RGB [H, W, 3]: R + 256 G + 65536 B."""
    return image.astype(np.int32) @ np.array([1, 256, 65536], np.int32)


def colours_of_ids(ids: np.ndarray) -> np.ndarray:
    """The inverse of `ids_of_colours`."""
    return np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], axis=-1).astype(np.uint8)


@dataclass
class Segments:
    """Counts of a panoptic file.

    Attributes:
        images: Its images.
        things, stuff: Names of its categories.
        segments: Per category name.
        pixels: Per category name, of the PNGs that were read.
        read: How many of them.
        errors: What is wrong, a line each.
        warnings: What may be wrong, a line each.
    """

    images: Sequence[Mapping]
    things: tuple[str, ...]
    stuff: tuple[str, ...]
    segments: Counter = field(default_factory=Counter)
    pixels: Counter = field(default_factory=Counter)
    read: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_panoptic(file: Path) -> dict[str, list[dict]]:
    """Read a panoptic annotation file.

    Raises:
        ConfigError: It is not one, or something in it lacks a key, or has another type there.
    """
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON in UTF-8 ({type(error).__name__}: {str(error)[:200]})") from error
    for kind, keys in KEYS.items():
        items = content.get(kind) if isinstance(content, dict) else None
        if not items or not isinstance(items, list):
            raise ConfigError(f"{file} is not a COCO panoptic file: expected a list {kind!r} with something in it")
        _check_keys(file, kind, items, keys)
    segments = [segment for item in content["annotations"] for segment in item["segments_info"]]
    _check_keys(file, "segments", segments, OF_SEGMENT)
    return content


def _check_keys(file: Path, kind: str, items: Sequence, keys: Mapping) -> None:
    for key, of_type in keys.items():
        lacking = [item for item in items if not isinstance(item, dict) or not isinstance(item.get(key), of_type)]
        if lacking:
            raise ConfigError(
                f"{file}: {len(lacking)} of {len(items)} {kind} have no {key!r} of COCO panoptic files; the first is "
                f"{json.dumps(lacking[0])[:200]}"
            )


def examine_panoptic(content: Mapping[str, list[dict]], folder: Path, number: int | None) -> Segments:
    """Count what a panoptic file holds, and compare it with its PNGs.

    Args:
        content: From `read_panoptic`.
        folder: Of the PNGs. That of an image has its name.
        number: PNGs to read, evenly spaced; None: all.
    """
    names = {category["id"]: category["name"] for category in content["categories"]}
    things = tuple(item["name"] for item in content["categories"] if item["isthing"])
    stuff = tuple(item["name"] for item in content["categories"] if not item["isthing"])
    found, image_of = Segments(content["images"], things, stuff), {image["id"]: image for image in content["images"]}
    faults: dict[str, list] = {}

    def add(fault: str, item: object) -> None:
        faults.setdefault(fault, []).append(item)

    for name, count in Counter(names.values()).items():
        if count > 1:
            add("categories have the same name:", name)
    for item in content["annotations"]:
        if item["image_id"] not in image_of:
            add("annotations are of an image that is not in the file:", item["file_name"])
        for segment in item["segments_info"]:
            found.segments[names.get(segment["category_id"])] += 1
            if segment["category_id"] not in names:
                add("segments have a category that is not in the file:", f"{segment['id']} of {item['file_name']}")
        for label, count in Counter(segment["category_id"] for segment in item["segments_info"]).items():
            if names.get(label) in stuff and count > 1:
                add("images have a class of stuff in several segments, which are one:", item["file_name"])
    if without := image_of.keys() - {item["image_id"] for item in content["annotations"]}:
        found.errors.append(f"{len(without)} images have no annotation: {join_some(without)}")
    for item in evenly_spaced([one for one in content["annotations"] if one["image_id"] in image_of], number):
        image = image_of[item["image_id"]]
        png = (folder / image["file_name"]).with_suffix(".png")
        if not png.is_file():
            add("PNGs do not exist:", png)
            continue
        try:
            ids = ids_of_colours(mmcv.imread(str(png), channel_order="rgb"))
        except (OSError, cv2.error) as error:
            add(f"PNGs cannot be read ({type(error).__name__}):", png)
            continue
        if ids.shape != (image["height"], image["width"]):
            add("PNGs have another size than their image in the file:", png.name)
        values, counts = np.unique(ids, return_counts=True)
        pixels = dict(zip(values.tolist(), counts.tolist()))
        found.read += 1
        for segment in item["segments_info"]:
            if segment["id"] not in pixels:
                add("segments have no pixel in their PNG:", f"{segment['id']} of {png.name}")
            found.pixels[names.get(segment["category_id"])] += pixels.pop(segment["id"], 0)
        pixels.pop(0, None)  # unlabelled
        for value in pixels:
            add("ids of PNGs are no segment in the file:", f"{value} of {png.name}")
    found.errors += [f"{len(items)} {fault} {join_some(items)}" for fault, items in faults.items()]
    for kind, of_kind in (("things", things), ("stuff", stuff)):
        if not of_kind:
            found.warnings.append(f"no category is of {kind} ('isthing')")
    return found
