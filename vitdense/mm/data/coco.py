"""What a COCO annotation file holds, and what is wrong with it."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitdense.errors import CONTROL
from vitdense.files import read_text
from vitdense.mm.errors import ConfigError, join_some

NUMBER = (int, float)
KEYS = {  # that mmdet and the metric read, without a default, and their types
    "images": {"id": int, "file_name": str, "width": NUMBER, "height": NUMBER},
    "annotations": {"id": int, "image_id": int, "category_id": int, "bbox": list, "area": NUMBER},
    "categories": {"id": int, "name": str},
}
FAR = 10  # times the longer side of the image
MOST = 20_000  # annotations of an image: every one is compared with every anchor
MASK_BYTES = 4 * 2**30  # of an image: mmdet has a byte for every pixel and annotation
TOLERANCE = 1  # pixels that a box may be outside its image: annotation tools round
# An annotation, and one whose mask is not empty.
BOX, MASK = r'"bbox"\s*:', r'"segmentation"\s*:(?!\s*(?:null|\[\s*\]))'


@dataclass
class Annotations:
    """Counts of an annotation file.

    Attributes:
        images: Its images.
        empty: Images without annotation.
        annotations: Its annotations.
        crowd: Annotations of crowds.
        with_mask: Annotations with a mask.
        boxes: Annotations per category name.
        densest: Most annotations of an image, without crowds.
        errors: What is wrong, a line each.
        warnings: What may be wrong, a line each.
    """

    images: Sequence[Mapping]
    empty: int
    annotations: int
    crowd: int
    with_mask: int
    boxes: dict[str, int]
    densest: int
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_annotations(ann_file: Path) -> dict[str, list[dict]]:
    """Read a whole COCO annotation file.

    Raises:
        ConfigError: It is not one, or images, annotations or categories lack a key that mmdet reads, or have another
            type there.
    """
    try:
        content = json.loads(ann_file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{ann_file} is not JSON in UTF-8 ({type(error).__name__}: {str(error)[:200]})") from error
    if not isinstance(content, dict) or not content.get("images") or not content.get("categories"):
        raise ConfigError(f"{ann_file} is not a COCO annotation file: expected lists 'images' and 'categories'")
    content.setdefault("annotations", [])  # absent from files of test images
    for kind, keys in KEYS.items():
        items = content[kind]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ConfigError(f"{ann_file}: got {kind} {json.dumps(items)[:100]}, expected a list of objects")
        for key, of_type in keys.items():
            if lacking := [item for item in items if not isinstance(item.get(key), of_type)]:
                names = " or ".join(one.__name__ for one in (of_type if isinstance(of_type, tuple) else (of_type,)))
                raise ConfigError(
                    f"{ann_file}: {len(lacking)} of {len(items)} {kind} have no {key!r} of type {names}, which mmdet "
                    f"reads; the first is {json.dumps(lacking[0])[:200]}"
                )
    return content


def examine(content: Mapping[str, Sequence[Mapping]]) -> Annotations:
    """Count what an annotation file holds, and find its faults.

    Args:
        content: From `read_annotations`.
    """
    images, annotations, categories = (content[kind] for kind in KEYS)
    image_of, name_of = ({item["id"]: item for item in items} for items in (images, categories))
    per_category = Counter(item["category_id"] for item in annotations)
    result = Annotations(
        images=images,
        empty=len(image_of.keys() - {item["image_id"] for item in annotations}),
        annotations=len(annotations),
        crowd=sum(bool(item.get("iscrowd")) for item in annotations),
        with_mask=sum(bool(item.get("segmentation")) for item in annotations),
        boxes={category["name"]: per_category[key] for key, category in name_of.items()},
        densest=max(Counter(a["image_id"] for a in annotations if not a.get("iscrowd")).values(), default=0),
    )
    for kind in KEYS:
        counts = Counter(item["id"] for item in content[kind])
        _add(result.errors, f"{kind} have the same id", (key for key, count in counts.items() if count > 1))
    names = Counter(category["name"] for category in categories)
    _add(result.errors, "categories have the same name", (name for name, count in names.items() if count > 1))
    steering = [name for name in (*names, *(image["file_name"] for image in images)) if CONTROL.search(name)]
    _add(result.errors, "names have control characters, which steer a terminal:", steering)
    lost = [item["id"] for item in annotations if item["image_id"] not in image_of]
    _add(result.errors, "annotations are of an image that is not in the file: annotations", lost)
    unknown = per_category.keys() - name_of.keys()
    _add(result.errors, "category ids of annotations are not among the categories", unknown)

    sizes = [image["id"] for image in images if not all(0 < image[key] < math.inf for key in ("width", "height"))]
    _add(result.errors, "images have no width or height above 0: images", sizes)
    number = Counter(item["image_id"] for item in annotations)
    crowded = [key for key, count in number.items() if count > MOST]
    _add(result.errors, f"images have over {MOST} annotations; cut them into tiles: images", crowded)
    masked = Counter(item["image_id"] for item in annotations if item.get("segmentation"))
    pixels = {key: image["width"] * image["height"] for key, image in image_of.items()}
    large = [key for key, count in masked.items() if count * pixels.get(key, 0) > MASK_BYTES]
    _add(result.warnings, "images have masks of over 4 GiB in training; cut them into tiles: images", large)
    masks: dict[str, list] = {}  # fault -> annotations
    malformed, tiny, outside, partly, used = [], [], [], [], 0
    for item in annotations:
        box, image = item["bbox"], image_of.get(item["image_id"])
        if image and item.get("segmentation") and (fault := mask_fault(item["segmentation"], image)):
            masks.setdefault(fault, []).append(item["id"])
        if len(box) != 4 or not all(isinstance(v, (int, float)) and abs(v) < 2**31 for v in box):
            malformed.append(item["id"])
        elif box[2] < 1 or box[3] < 1 or item["area"] <= 0:
            tiny.append(item["id"])
        elif image:
            used += not item.get("iscrowd") and not item.get("ignore")
            x, y, width, height = box
            if min(x + width, image["width"]) <= max(x, 0) or min(y + height, image["height"]) <= max(y, 0):
                outside.append(item["id"])
            elif (
                min(x, y) < -TOLERANCE
                or x + width > image["width"] + TOLERANCE
                or y + height > image["height"] + TOLERANCE
            ):
                partly.append(item["id"])
    _add(result.errors, "boxes are not four numbers: annotations", malformed)
    for fault, ids in masks.items():
        _add(result.errors, f"masks {fault}: annotations", ids)
    if annotations and not used and not result.errors:
        result.errors.append(f"all {len(annotations)} annotations are crowds, ignored or without area: none counts")
    left_out = "training leaves them out: annotations"
    _add(result.warnings, f"boxes have no area, or a side below one pixel; {left_out}", tiny)
    _add(result.warnings, f"boxes are outside their image; {left_out}", outside)
    _add(
        result.warnings,
        "boxes reach over the edge of their image (bbox is [x, y, width, height] in pixels); training clips them: "
        "annotations",
        partly,
    )
    return result


def mask_fault(mask: Any, image: Mapping) -> str | None:
    """What is wrong with a `segmentation`: training would drop it, or fail, or the process would end; None: nothing.

    Args:
        mask: Polygons ``[[x, y, x, y, x, y, ...], ...]`` in pixels, or ``{"size": [height, width], "counts": ...}``.
        image: With `width` and `height`.
    """
    if isinstance(mask, list):
        if not all(isinstance(polygon, list) for polygon in mask):
            return "are no lists of polygons [[x, y, x, y, ...], ...]"
        if any(len(polygon) < 6 or len(polygon) % 2 for polygon in mask):
            return "have polygons with fewer than three points, or half a point"
        if not all(isinstance(v, NUMBER) and math.isfinite(v) for polygon in mask for v in polygon):
            return "have coordinates that are no finite numbers"
        far = FAR * max(image["width"], image["height"])  # pycocotools draws every pixel of the outline
        return "reach far outside their image" if any(abs(v) > far for polygon in mask for v in polygon) else None
    if not isinstance(mask, dict) or not {"size", "counts"} <= mask.keys():
        return "are neither polygons nor RLE with size and counts"
    if mask["size"] != [image["height"], image["width"]]:
        return "are RLE of another size than [height, width] of their image"
    counts = mask["counts"]
    if isinstance(counts, list):
        right = all(type(n) is int and n >= 0 for n in counts) and sum(counts) == image["height"] * image["width"]
    else:
        right = isinstance(counts, str) and _decodes(mask)
    return None if right else "have RLE counts that are not those of their size"


def _decodes(mask: Mapping) -> bool:
    from pycocotools import mask as rle

    try:
        rle.decode(mask)
    except ValueError:
        return False
    return True


def count_used(content: Mapping[str, Sequence[Mapping]], classes: Sequence[str], filter_cfg: Mapping) -> int:
    """Number of images that mmdet keeps for training.

    Args:
        content: From `read_annotations`.
        classes: Of the data set.
        filter_cfg: Of the data set: `filter_empty_gt` and `min_size`, the shortest side in pixels.
    """
    ids = {category["id"] for category in content["categories"] if category["name"] in set(classes)}
    with_box = {item["image_id"] for item in content["annotations"] if item["category_id"] in ids}
    return sum(
        min(image["width"], image["height"]) >= filter_cfg.get("min_size", 0)
        and (image["id"] in with_box or not filter_cfg.get("filter_empty_gt"))
        for image in content["images"]
    )


def _add(lines: list[str], fault: str, ids: Iterable) -> None:
    """Add a line about the items with a fault, if there are any."""
    if ids := list(ids):
        lines.append(f"{len(ids)} {fault} {join_some(ids)}")


@dataclass(frozen=True)
class Overview:
    """What every process of a training asks of an annotation file.

    Attributes:
        categories: Names, in the order of the file.
        annotations: How many there are.
        masks: How many of them have a mask.
        things: Names of categories of things; others, in panoptic files, are stuff.
    """

    categories: tuple[str, ...]
    annotations: int
    masks: int
    things: tuple[str, ...]

    @property
    def things_first(self) -> tuple[str, ...]:
        """The categories in the order of mmdet's panoptic labels."""
        return self.things + tuple(name for name in self.categories if name not in set(self.things))


def overview(ann_file: Path) -> Overview:
    """The overview of an annotation file, which a process reads once, until the file changes.

    Parses only the list of categories, and counts the others: to parse a whole file takes seconds, in every process.

    Raises:
        ConfigError: It is not a COCO annotation file.
    """
    stat = ann_file.stat()
    return _overview(ann_file.absolute(), stat.st_mtime_ns, stat.st_size)


@lru_cache
def _overview(ann_file: Path, _modified: int, _size: int) -> Overview:
    try:
        text = read_text(ann_file)
        starts = [match.end() for match in re.finditer(r'"categories"\s*:\s*', text)]
        if len(starts) > 1:  # some are of other things, as of `info`
            categories = json.loads(text)["categories"]
        else:
            categories, _ = json.JSONDecoder().raw_decode(text, starts[0])
        names = tuple(category["name"] for category in categories)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"names of categories {names} are no text")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{ann_file} is not a COCO annotation file ({type(error).__name__}: {error}); expected JSON with a list "
            f"'categories' of objects with a 'name'"
        ) from error
    things = tuple(category["name"] for category in categories if category.get("isthing", 1))
    return Overview(names, *(sum(1 for _ in re.finditer(pattern, text)) for pattern in (BOX, MASK)), things)
