"""COCO annotation files: what they hold, and what is wrong with them."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitdense.errors import CONTROL
from vitdense.files import read_text
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.errors import ConfigError

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
# An annotation in the text of a file, and one whose mask is not empty.
BOX, MASK = r'"bbox"\s*:', r'"segmentation"\s*:(?!\s*(?:null|\[\s*\]))'


@dataclass
class Annotations:
    """What an annotation file holds, of instances or of panoptic segments.

    Attributes:
        content: Of the file: lists of images, annotations and categories.
        objects: Its annotations of instances, or its segments.
        faults: What is wrong.
        pixels: Of panoptic files: pixels per category name in the PNGs that were read.
        read: Of panoptic files: how many PNGs.
    """

    content: Mapping[str, list[dict]]
    objects: list[dict]
    faults: list[Fault]
    pixels: Counter = field(default_factory=Counter)
    read: int = 0

    @property
    def images(self) -> list[dict]:
        """Its images."""
        return self.content["images"]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its categories in the order of the file; those of stuff last, as mmdet's panoptic labels."""
        by_kind = sorted(self.content["categories"], key=lambda category: not category.get("isthing", 1))
        return tuple(category["name"] for category in by_kind)

    @property
    def counts(self) -> dict[str, int]:
        """Objects per category name."""
        number = Counter(item["category_id"] for item in self.objects)
        return {one["name"]: number[one["id"]] for one in self.content["categories"]}

    @property
    def densest(self) -> int:
        """Most objects of an image, without crowds."""
        of_image = Counter(item["image_id"] for item in self.objects if not item.get("iscrowd"))
        return max(of_image.values(), default=0)

    @property
    def without_mask(self) -> list[int]:
        """Ids of annotations without a mask."""
        return [item["id"] for item in self.objects if not item.get("segmentation")]

    def used(self, classes: Sequence[str], filter_cfg: Mapping) -> int:
        """Number of images that mmdet keeps for training.

        Args:
            classes: Of the data set.
            filter_cfg: Of the data set: `filter_empty_gt` and `min_size`, the shortest side in pixels.
        """
        ids = {category["id"] for category in self.content["categories"] if category["name"] in set(classes)}
        with_box = {item["image_id"] for item in self.objects if item["category_id"] in ids}
        return sum(
            min(image["width"], image["height"]) >= filter_cfg.get("min_size", 0)
            and (image["id"] in with_box or not filter_cfg.get("filter_empty_gt"))
            for image in self.images
        )


def read_coco(file: Path) -> Annotations:
    """Read a COCO annotation file of instances.

    Raises:
        ConfigError: It is not one, or images, annotations or categories lack a key that mmdet reads, or have another
            type there.
    """
    return examine(read_json(file, KEYS))


def read_json(file: Path, keys: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict]]:
    """The content of a JSON file with lists of objects.

    Args:
        file: The file.
        keys: Keys of the objects in each list, and their types.

    Raises:
        ConfigError: It is another file.
    """
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON in UTF-8 ({type(error).__name__}: {str(error)[:200]})") from error
    if not isinstance(content, dict) or not content.get("images") or not content.get("categories"):
        raise ConfigError(
            f"{file} is not a COCO annotation file: expected lists 'images' and 'categories' with something in them"
        )
    content.setdefault("annotations", [])  # absent from files of test images
    for kind, of_kind in keys.items():
        check_keys(file, kind, content[kind], of_kind)
    return content


def check_keys(file: Path, kind: str, items: Any, keys: Mapping[str, Any]) -> None:
    """See that all items of a list are objects with these keys of these types.

    Raises:
        ConfigError: One is another, or lacks a key.
    """
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ConfigError(f"{file}: got {kind} {json.dumps(items)[:100]}, expected a list of objects")
    for key, of_type in keys.items():
        if lacking := [item for item in items if not isinstance(item.get(key), of_type)]:
            names = " or ".join(one.__name__ for one in (of_type if isinstance(of_type, tuple) else (of_type,)))
            raise ConfigError(
                f"{file}: {len(lacking)} of {len(items)} {kind} have no {key!r} of type {names}, which mmdet reads; "
                f"the first is {json.dumps(lacking[0])[:200]}"
            )


def common_faults(content: Mapping[str, Sequence[Mapping]]) -> Faults:
    """Faults of images, categories, names and ids, in files of instances and of panoptic segments."""
    faults = Faults()

    def twice(kind: str, key: str) -> list:
        counts = Counter(item[key] for item in content[kind] if key in item)
        return [value for value, count in counts.items() if count > 1]

    for kind in KEYS:
        faults.add(f"{kind} have the same id", *twice(kind, "id"))
    faults.add("categories have the same name", *twice("categories", "name"))
    faults.add("images have the same file_name:", *twice("images", "file_name"), grave=False)
    names = [item[key] for kind, key in (("categories", "name"), ("images", "file_name")) for item in content[kind]]
    steering = filter(CONTROL.search, dict.fromkeys(names))
    faults.add("names have control characters, which steer a terminal:", *steering)
    known = {image["id"] for image in content["images"]}
    lost = [item for item in content["annotations"] if item["image_id"] not in known]
    ids = [item.get("id", item.get("file_name")) for item in lost]
    faults.add("annotations are of an image that is not in the file: annotations", *ids)
    sizes = [one["id"] for one in content["images"] if not all(0 < one[key] < math.inf for key in ("width", "height"))]
    faults.add("images have no width or height above 0: images", *sizes)
    return faults


def examine(content: Mapping[str, list[dict]]) -> Annotations:
    """Find the faults of instances.

    Args:
        content: Of an annotation file, with the keys and types of `KEYS`.
    """
    annotations, faults = content["annotations"], common_faults(content)
    image_of = {image["id"]: image for image in content["images"]}
    unknown = {item["category_id"] for item in annotations} - {one["id"] for one in content["categories"]}
    faults.add("category ids of annotations are not among the categories", *unknown)
    number = Counter(item["image_id"] for item in annotations)
    crowded = [key for key, count in number.items() if count > MOST]
    faults.add(f"images have over {MOST} annotations; cut them into tiles: images", *crowded)
    masked = Counter(item["image_id"] for item in annotations if item.get("segmentation"))
    pixels = {key: image["width"] * image["height"] for key, image in image_of.items()}
    large = [key for key, count in masked.items() if count * pixels.get(key, 0) > MASK_BYTES]
    faults.add("images have masks of over 4 GiB in training; cut them into tiles: images", *large, grave=False)
    left_out, used, seen = "training leaves them out: annotations", 0, set()
    for item in annotations:
        box, image, name = item["bbox"], image_of.get(item["image_id"]), item["id"]
        if image and item.get("segmentation") and (fault := mask_fault(item["segmentation"], image)):
            faults.add(f"masks {fault}: annotations", name)
        if turned(item):
            faults.add(
                "boxes are turned (attributes.rotation), and training takes them unturned: annotations",
                name,
                grave=False,
            )
        if not has_box(item):
            faults.add("boxes are not four numbers: annotations", name)
        elif box[2] < 1 or box[3] < 1 or item["area"] <= 0:
            faults.add(f"boxes have no area, or a side below one pixel; {left_out}", name, grave=False)
        elif image:
            used += not item.get("iscrowd") and not item.get("ignore")
            same = (item["image_id"], item["category_id"], *box)
            if same in seen:  # the metric finds one, and counts the other as missed
                faults.add("annotations have the box and class of another: annotations", name, grave=False)
            seen.add(same)
            x, y, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
            if min(right, image["width"]) <= max(x, 0) or min(bottom, image["height"]) <= max(y, 0):
                faults.add(f"boxes are outside their image; {left_out}", name, grave=False)
            elif max(-x, -y, right - image["width"], bottom - image["height"]) > TOLERANCE:
                over = "boxes reach over the edge of their image (bbox is [x, y, width, height] in pixels)"
                faults.add(f"{over}; training clips them: annotations", name, grave=False)
    found = list(faults)
    if annotations and not used and not any(fault.grave for fault in found):
        found.append(Fault(f"all {len(annotations)} annotations are crowds, ignored or without area: none counts"))
    return Annotations(content, annotations, found)


def has_box(annotation: Mapping) -> bool:
    """Whether the box of an annotation is four numbers."""
    box = annotation["bbox"]
    return len(box) == 4 and all(isinstance(v, NUMBER) and abs(v) < 2**31 for v in box)


def turned(annotation: Mapping) -> bool:
    """Whether CVAT wrote the box of an annotation as it was before it was turned."""
    attributes = annotation.get("attributes")
    return isinstance(attributes, dict) and bool(attributes.get("rotation"))


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
