"""COCO annotation files: their content and faults."""

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from vitdense.errors import CONTROL
from vitdense.files import read_text, state_of
from vitdense.mm.data.classes import clean, names_faults
from vitdense.mm.data.faults import Fault, Faults, Samples
from vitdense.mm.errors import ConfigError

NUMBER = (int, float)
KEYS = {  # keys that mmdet and the metric need, and their types
    "images": {"id": int, "file_name": str, "width": NUMBER, "height": NUMBER},
    "annotations": {"id": int, "image_id": int, "category_id": int, "bbox": list, "area": NUMBER},
    "categories": {"id": int, "name": str},
}
FAR = 10  # largest coordinate of a mask, relative to the longer side of the image
RENAMED = "renamed by vitdense"  # key of the content of a file: original names of categories
KEPT = 32 * 2**20  # largest file, in bytes, whose content stays in memory
MUCH = 0.3  # share of left-out annotations that is worth a warning
AREA = 16  # tolerance of an area in pixels: pixels and outlines of small masks differ
TOLERANCE = 1  # pixels that a box may exceed its image: annotation tools round
FLAGS = "iscrowd or ignore are not 0 or 1"
DOUBLES = "annotations have the box and class of another"
XYWH = "bbox is [x, y, width, height] in pixels"
LEFT_OUT = "training leaves them out, and COCO's metric counts them; iscrowd: 1 leaves them out of both"
SMALL, OUTSIDE = "have no area, or a side below one pixel", "are outside their image"  # boxes that are left out
OVER = f"boxes reach over the edge of their image ({XYWH}); training clips them"
BESIDE = f"masks (polygons or RLE) are beside their boxes ({XYWH})"
WRONG_CODE = "have RLE counts that are not those of their size"
TURNED = "boxes are turned (attributes.rotation), and training takes them unturned"
FOUR_CORNERS = "all masks have four corners, and some are turned; training takes straight boxes, or masks"
ORIENTED = "`vitdense new detection --oriented` writes a config for oriented boxes"
ALL_CORNERS = f"{ORIENTED}, once the objects without a mask have four corners too"
CORNERS = "list the four corners along the outline"
LEAST = 1.0  # pixels of area; smaller oriented boxes have no direction
CONVEX = 0.999  # least share of the area around corners that is in their outline
STRAIGHT = 0.99  # share of its straight box that an object covers which is not turned
AREAS = "areas are unlike the masks or boxes, and AP of small, medium and large objects goes by them"


def read(file: Path) -> dict[str, list[dict]]:
    """The content of an annotation file of instances; for errors see `read_json`."""
    return read_json(file, KEYS)


class Source(NamedTuple):
    """An annotation file as a data set reads it; `drop_doubles`: see `CocoDataset`."""

    file: str
    drop_doubles: bool = False


class ImageId(int):
    """The id of an image with its annotation file: joined files may have the same ids."""

    source: Source

    def __new__(cls, value: int, source: Source) -> "ImageId":
        self = super().__new__(cls, value)
        self.source = source
        return self

    def __reduce__(self) -> tuple:  # to other processes
        return ImageId, (int(self), self.source)


def parse(file: Path) -> Any:
    """The content of a JSON file, else a ConfigError; do not change it.

    A small file is parsed once, until it changes.
    """
    state = state_of(file)
    return (_parsed if state[0] < KEPT else _parsed.__wrapped__)(file.absolute(), state)


@lru_cache(2)  # training and validation
def _parsed(file: Path, _state: tuple) -> Any:
    collects = gc.isenabled()
    gc.disable()  # millions of new objects, none of them garbage: collecting takes longer than parsing
    try:
        content = json.loads(read_text(file))
        categories = content.get("categories") if isinstance(content, dict) else None
        for one in categories if isinstance(categories, list) else ():
            if isinstance(one, dict) and one.get("name") != clean(one.get("name")):
                content.setdefault(RENAMED, []).append(one["name"])
                one["name"] = clean(one["name"])
        return content
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON in UTF-8 ({type(error).__name__}: {str(error)[:200]})") from error
    finally:
        if collects:
            gc.enable()


def forget() -> None:
    """Free what `parse` keeps."""
    _parsed.cache_clear()


def read_json(file: Path, keys: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict]]:
    """The content of a JSON file with lists of objects, else a ConfigError.

    `keys`: list -> required keys of its objects and their types.
    """
    content = parse(file)
    lists = content if isinstance(content, dict) else {}
    if missing := " and ".join(f"no {key}" for key in ("images", "categories") if not lists.get(key)):
        expected = "expected a COCO annotation file, with lists 'images' and 'categories'"
        raise ConfigError(f"{file}: got {missing}; {expected}")
    content = {"annotations": [], **content}  # files of test images have none
    for kind, of_kind in keys.items():
        check_keys(file, kind, content[kind], of_kind)
    return content


def used(content: Mapping[str, list[dict]], classes: Collection[str], filter_cfg: Mapping) -> int:
    """Number of images that mmdet keeps for training, by a data set's classes and `filter_cfg`."""
    ids = {category["id"] for category in content["categories"] if category["name"] in classes}
    with_box = {item["image_id"] for item in content["annotations"] if item["category_id"] in ids}
    images, least = content["images"], filter_cfg.get("min_size", 0)
    if filter_cfg.get("filter_empty_gt"):
        images = [image for image in images if image["id"] in with_box]
    return sum(min(image["width"], image["height"]) >= least for image in images)


def check_keys(file: Path, kind: str, items: Any, keys: Mapping[str, Any]) -> None:
    """Raise a ConfigError unless all items of a list are objects with these keys of these types."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ConfigError(f"{file}: got {kind} {json.dumps(items)[:100]}, expected a list of objects")
    for key, of_type in keys.items():
        if lacking := [item for item in items if not isinstance(item.get(key), of_type)]:
            name = "number" if of_type is NUMBER else of_type.__name__
            what = f"{len(lacking)} of {len(items)} {kind} have no {key!r} of type {name}"
            raise ConfigError(f"{file}: {what}; the first is {json.dumps(lacking[0])[:200]}")


def common_faults(content: Mapping[str, Sequence[Mapping]]) -> Faults:
    """Faults of images, categories, names and ids, in files of instances and of panoptic segments."""
    faults = names_faults([category["name"] for category in content["categories"]])
    what = "names of categories have white space around them or another form of Unicode (NFC), and are taken without"
    faults.add(what, *map(ascii, content.get(RENAMED, ())), grave=False)

    def twice(kind: str, key: str) -> list:
        counts = Counter(item[key] for item in content[kind] if key in item)
        return [value for value, count in counts.items() if count > 1]

    for kind in KEYS:
        faults.add(f"{kind} have the same id", *twice(kind, "id"))
    faults.add("images have the same file_name", *twice("images", "file_name"), grave=False)
    steering = (image["file_name"] for image in content["images"] if CONTROL.search(image["file_name"]))
    faults.add("file names have control characters, which steer a terminal", *steering)
    known = {image["id"] for image in content["images"]}
    lost = [item for item in content["annotations"] if item["image_id"] not in known]
    ids = [item.get("id", item.get("file_name")) for item in lost]
    faults.add("annotations are of an image that is not in the file", *ids, of="annotations")
    sizes = [one["id"] for one in content["images"] if not all(0 < one[key] < math.inf for key in ("width", "height"))]
    faults.add("images have no width or height above 0", *sizes, of="images")
    return faults


def samples_of(content: Mapping[str, list[dict]], objects: Sequence[Mapping], faults: list[Fault]) -> Samples:
    """The samples of a file whose instances or segments are `objects`."""
    number = Counter(item["category_id"] for item in objects)
    of_image = Counter(item["image_id"] for item in objects if not item.get("iscrowd"))
    kinds = sorted(content["categories"], key=lambda one: not one.get("isthing", 1))  # mmdet labels stuff last
    return Samples(
        {image["file_name"]: (image["width"], image["height"]) for image in content["images"]},
        {one["name"]: number[one["id"]] for one in kinds},
        faults,
        densest=max(of_image.values(), default=0),
    )


def examine(content: Mapping[str, list[dict]]) -> Samples:
    """Find the faults of instances.

    Args:
        content: Of an annotation file, with the keys and types of `KEYS`.
    """
    annotations, faults = content["annotations"], common_faults(content)
    image_of = {image["id"]: image for image in content["images"]}
    unknown = {item["category_id"] for item in annotations} - {one["id"] for one in content["categories"]}
    faults.add("category ids of annotations are not among the categories", *unknown)
    without_mask = [item["id"] for item in annotations if not item.get("segmentation")]
    number_of_masks = len(annotations) - len(without_mask)
    for item in annotations:
        for what, options in _faults_of(item, image_of.get(item["image_id"])):
            faults.add(what, item["id"], of="annotations", **options)
    items = [item for item in annotations if has_box(item) and math.isfinite(item["area"])]
    first = {object_key(item): item["id"] for item in reversed(items)}  # the metric misses one of two
    doubles = (item["id"] for item in items if first[object_key(item)] != item["id"])
    fix = "drop_doubles=True of vitdense.CocoDataset drops them"
    faults.add(DOUBLES, *doubles, of="annotations", grave=False, fix=fix)
    ignored = [item["id"] for item in annotations if item.get("iscrowd") or item.get("ignore")]
    if len(ignored) > MUCH * len(annotations):
        what = "annotations are crowds (iscrowd) or ignored (ignore), and training leaves them out"
        fix = "CVAT marks masks so, export polygons; difficult objects of DOTA and VOC are crowds too"
        faults.add(what, *ignored, of="annotations", grave=False, fix=fix)
    empty = image_of.keys() - {item["image_id"] for item in annotations}
    if annotations and len(empty) > len(image_of) / 2:
        faults.add("images are without annotation", *sorted(empty), of="images", grave=False)
    totals = {"annotations": len(annotations), "images": len(content["images"]), "": 0}
    found = [replace(fault, total=totals[fault.of]) for fault in faults]
    found = [replace(x, grave=len(x.items) > number_of_masks / 2) if x.what == BESIDE else x for x in found]
    items = [item for item in items if item["image_id"] in image_of]
    if _are_corners([(item["bbox"], image_of[item["image_id"]]) for item in items]):
        found.append(Fault("boxes look like corners [x1, y1, x2, y2]", fix=f"write them anew: {XYWH}"))
    counted = [item for item in items if not item.get("iscrowd")]
    if _are_turned(counted):
        lack = any(not item.get("segmentation") and rotation_of(item) is None for item in counted)
        found.append(Fault(FOUR_CORNERS, grave=False, fix=ALL_CORNERS if lack else ORIENTED))
    kept = [item for item in counted if not item.get("ignore")]
    learned = [item for item in kept if not left_out(item, image_of[item["image_id"]])]
    of_learned, of_all = ({one["category_id"] for one in part} for part in (learned, items))
    names = tuple(one["name"] for one in content["categories"] if one["id"] in of_all - of_learned)
    if learned and names:
        what = "classes have only crowds, ignored objects, or boxes without area or outside: training leaves them out"
        found.append(Fault(what, items=names, grave=False))
    if annotations and not learned and not any(fault.grave and not fault.of_masks for fault in found):
        what = f"all {len(annotations)} annotations are crowds, ignored or without area: none is learned"
        found.append(Fault(what, fix=XYWH))
    samples, crowds = samples_of(content, annotations, found), sum(bool(item.get("iscrowd")) for item in annotations)
    samples.without_mask = without_mask
    samples.rows = [
        f"images: {len(content['images'])}, without annotation: {len(empty)}",
        f"annotations: {len(annotations)}, with masks: {number_of_masks}, of crowds: {crowds}",
        f"up to {samples.densest} objects in an image",
    ]
    return samples


def has_strange_flag(item: Mapping) -> bool:
    """Whether a flag of an annotation or segment is not 0 or 1: "0" would be true."""
    return any(item.get(key) not in (0, 1, None) for key in ("iscrowd", "ignore"))


def object_key(annotation: Mapping) -> tuple:
    """Image, class and box, which are equal for annotations of the same object."""
    return annotation["image_id"], annotation["category_id"], *annotation["bbox"]


def without_doubles(content: Mapping) -> dict:
    """The content of an annotation file without duplicate objects."""
    first = {object_key(one): one for one in reversed(content.get("annotations", ()))}
    return {**content, "annotations": list(reversed(first.values()))}


def has_box(annotation: Mapping) -> bool:
    box = annotation["bbox"]
    return _are(4, box) and all(abs(v) < 2**31 for v in box)


def left_out(annotation: Mapping, image: Mapping) -> str:
    """Why mmdet leaves a box out of training; empty if it does not."""
    (x, y, w, h), width, height = annotation["bbox"], image["width"], image["height"]
    if w < 1 or h < 1 or annotation["area"] <= 0:
        return SMALL
    return OUTSIDE if min(x + w, width) <= max(x, 0) or min(y + h, height) <= max(y, 0) else ""


def _faults_of(item: Mapping, image: Mapping | None) -> Iterator[tuple[str, Mapping]]:
    """Faults of an annotation, with attributes of `Fault`; `image` is None if it is not in the file."""
    warning, of_a_crowd = {"grave": False}, item.get("iscrowd")
    if has_strange_flag(item):
        yield FLAGS, {}
    if turned(item):
        yield TURNED, {**warning, "fix": ORIENTED}
    if item.get("ignore") and not of_a_crowd:
        yield f"annotations have ignore: 1; {LEFT_OUT}", warning
    if not has_box(item):
        yield "boxes are not four numbers", {}
    elif not math.isfinite(item["area"]):
        yield "areas are not finite", {}
    elif image is not None:
        if reason := left_out(item, image):
            if not of_a_crowd:
                yield f"boxes {reason}; {LEFT_OUT}", warning
        elif _is_over(item["bbox"], image):
            yield OVER, warning
        yield from _faults_of_mask(item, image)


def _faults_of_mask(item: Mapping, image: Mapping) -> Iterator[tuple[str, Mapping]]:
    """Faults of a mask, and of the area compared with it; without a mask, the area is compared with the box."""
    mask, (x, y, w, h) = item.get("segmentation"), item["bbox"]
    pixels = w * h / 25
    if mask not in (None, []):
        if fault := mask_fault(mask, image):
            yield f"masks {fault}", {"of_masks": True}
            return
        (left, top, width, height), pixels = outline(mask)
        across, down = min(x + w, left + width) - max(x, left), min(y + h, top + height) - max(y, top)
        if not pixels:
            yield "masks have no pixel", {"grave": False}
            return
        if min(across, down) < 0 or across * down < width * height / 2:
            yield BESIDE, {"of_masks": True}  # `examine` counts them
            return
    if not pixels / 2 - AREA <= item["area"] <= max(2 * pixels, 1.1 * w * h) + AREA:
        yield AREAS, {"grave": False}


def _is_over(box: Sequence[float], image: Mapping) -> bool:
    x, y, w, h = box
    return max(-x, -y, x + w - image["width"], y + h - image["height"]) > TOLERANCE


def _are_corners(boxes: Sequence[tuple[Sequence[float], Mapping]]) -> bool:
    """Whether boxes, each with its image, look like [x1, y1, x2, y2]: inside, unlike as [x, y, width, height]."""
    over = sum(_is_over(box, image) for box, image in boxes)
    return over > len(boxes) / 5 and all(
        x < w <= image["width"] + TOLERANCE and y < h <= image["height"] + TOLERANCE for (x, y, w, h), image in boxes
    )


def outline(mask: Any) -> tuple[Sequence[float], float]:
    """The box (x, y, width, height) and the area of a mask without a `mask_fault`, in pixels; of polygons their sum."""
    if isinstance(mask, dict):
        from pycocotools import mask as rle  # here, so that commands start without it

        coded = rle.frPyObjects(mask, *mask["size"]) if isinstance(mask["counts"], list) else mask
        return rle.toBbox(coded).tolist(), float(rle.area(coded))
    polygons = [np.array(polygon, np.float32).reshape(-1, 2) for polygon in mask]  # [points, 2] each
    points = np.concatenate(polygons)
    low, high = points.min(0).tolist(), points.max(0).tolist()
    area = sum(abs(cv2.contourArea(polygon)) for polygon in polygons)
    return (*low, high[0] - low[0], high[1] - low[1]), area


def turned(annotation: Mapping) -> bool:
    """Whether an annotation has CVAT's rotation: its box is from before the rotation."""
    return str(rotation_of(annotation) or 0).strip() not in ("0", "0.0")


def rotation_of(annotation: Mapping) -> Any:
    """CVAT's rotation of an annotation as it is, in degrees; None where it has none."""
    attributes = annotation.get("attributes")
    return attributes.get("rotation") if isinstance(attributes, dict) else None


def _are(number: int, values: Any) -> bool:
    return isinstance(values, list) and len(values) == number and all(type(v) in NUMBER for v in values)


def _are_turned(items: Sequence[Mapping]) -> bool:
    """Whether all masks are polygons of four corners, and one is no straight box."""
    corners = [four_corners(item) for item in items if item.get("segmentation")]
    return None not in corners and any(map(is_turned, corners))


def four_corners(annotation: Mapping) -> list[float] | None:
    """The polygon of four points of an annotation, x and y in turn, in pixels; None where it has none."""
    mask = annotation.get("segmentation")
    is_one = isinstance(mask, list) and len(mask) == 1 and _are(8, mask[0]) and all(map(math.isfinite, mask[0]))
    return mask[0] if is_one else None


def is_turned(corners: Sequence[float]) -> bool:
    """Whether corners, x and y in turn, are not those of a straight box."""
    box, area = outline([corners])
    return area < STRAIGHT * math.prod(box[2:])


def corner_fault(corners: Sequence[float] | None) -> str | None:
    """Why corners, x and y in turn, are no oriented box; None if they are one."""
    if corners is None:
        return "objects have no four corners"
    hull = cv2.convexHull(np.float32(corners).reshape(-1, 2))  # [points, 1, 2]
    area, around = outline([corners])[1], outline([hull])[1]
    if not around >= LEAST:
        return f"corners have less than {LEAST:.0f} pixel of area"
    return "corners are in no order along the outline, for sides cross or bend in" if area < CONVEX * around else None


def mask_fault(mask: Any, image: Mapping) -> str | None:
    """A fault of a `segmentation` that would stop a training; None if there is none.

    Args:
        mask: Polygons ``[[x, y, x, y, x, y, ...], ...]`` in pixels, or ``{"size": [height, width], "counts": ...}``.
        image: With `width` and `height`.
    """
    if isinstance(mask, list):
        if not all(isinstance(polygon, list) for polygon in mask):
            return "are no lists of polygons [[x, y, x, y, ...], ...]"
        if not all(isinstance(v, NUMBER) and math.isfinite(v) for polygon in mask for v in polygon):
            return "have coordinates that are no finite numbers"
        if any(len(polygon) < 6 or len(polygon) % 2 for polygon in mask):
            return "have polygons with fewer than three points, or half a point"
        far = FAR * max(image["width"], image["height"])  # pycocotools draws every pixel of the outline
        return "reach far outside their image" if any(abs(v) > far for polygon in mask for v in polygon) else None
    if not isinstance(mask, dict) or not {"size", "counts"} <= mask.keys():
        return "('segmentation') are neither polygons nor RLE with size and counts"
    if mask["size"] != [image["height"], image["width"]]:
        return "are RLE of another size than [height, width] of their image"
    counts = mask["counts"]
    if isinstance(counts, list):
        right = all(type(n) is int and n >= 0 for n in counts) and sum(counts) == image["height"] * image["width"]
        return None if right else WRONG_CODE
    from pycocotools import mask as rle

    try:
        rle.decode(mask)
    except (TypeError, ValueError):
        return WRONG_CODE
    return None


class Overview(NamedTuple):
    """The categories of an annotation file, which every process needs."""

    categories: tuple[str, ...]  # names in the order of the file
    things: tuple[str, ...]  # in panoptic files, the others are stuff
    content: tuple[Mapping[str, Any], ...]  # the categories themselves

    @property
    def things_first(self) -> tuple[str, ...]:
        """The categories in the order of mmdet's panoptic labels."""
        return self.things + tuple(name for name in self.categories if name not in set(self.things))


def overview(ann_file: Path) -> Overview:
    """The overview of a COCO annotation file, else a ConfigError. A process reads it once, until the file changes.

    Only the list of categories is parsed, because a whole file takes seconds in every process.
    """
    return _overview(ann_file.absolute(), state_of(ann_file))


@lru_cache
def _overview(ann_file: Path, _state: tuple) -> Overview:
    try:
        text = read_text(ann_file)
        starts = [match.end() for match in re.finditer(r'"categories"\s*:\s*', text)]
        if len(starts) > 1:  # some may be elsewhere, as in `info`
            categories = json.loads(text)["categories"]
        else:
            categories, _ = json.JSONDecoder().raw_decode(text, starts[0])
        categories = [{**category, "name": clean(category["name"])} for category in categories]
        names = tuple(category["name"] for category in categories)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"names of categories {names} are no text")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = f"{ann_file} is not a COCO annotation file ({type(error).__name__}: {error})"
        raise ConfigError(f"{what}; expected JSON with a list 'categories' of objects with a 'name'") from error
    things = tuple(category["name"] for category in categories if category.get("isthing", 1))
    return Overview(names, things, tuple(categories))
