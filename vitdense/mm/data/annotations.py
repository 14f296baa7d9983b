"""What a COCO annotation file holds, and what is wrong with it."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitdense.mm.errors import ConfigError, join_some

NUMBER = (int, float)
KEYS = {  # that mmdet and the metric read, without a default, and their types
    "images": {"id": int, "file_name": str, "width": NUMBER, "height": NUMBER},
    "annotations": {"id": int, "image_id": int, "category_id": int, "bbox": list, "area": NUMBER},
    "categories": {"id": int, "name": str},
}
TOLERANCE = 1  # pixels that a box may be outside its image: annotation tools round


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
        errors: What is wrong, a line each.
        warnings: What may be wrong, a line each.
    """

    images: Sequence[Mapping]
    empty: int
    annotations: int
    crowd: int
    with_mask: int
    boxes: dict[str, int]
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_annotations(ann_file: Path) -> dict[str, list[dict]]:
    """Read a whole COCO annotation file.

    Raises:
        ConfigError: It is not one, or images, annotations or categories lack a key that mmdet reads, or have another
            type there.
    """
    try:
        content = json.loads(ann_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{ann_file} is not JSON ({error})") from error
    if not isinstance(content, dict) or not content.get("images") or not content.get("categories"):
        raise ConfigError(f"{ann_file} is not a COCO annotation file: expected lists 'images' and 'categories'")
    content.setdefault("annotations", [])  # absent from files of test images
    for kind, keys in KEYS.items():
        items = content[kind]
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
    )
    for kind in KEYS:
        counts = Counter(item["id"] for item in content[kind])
        _add(result.errors, f"{kind} have the same id", (key for key, count in counts.items() if count > 1))
    names = Counter(category["name"] for category in categories)
    _add(result.errors, "categories have the same name", (name for name, count in names.items() if count > 1))
    lost = [item["id"] for item in annotations if item["image_id"] not in image_of]
    _add(result.errors, "annotations are of an image that is not in the file: annotations", lost)
    unknown = per_category.keys() - name_of.keys()
    _add(result.errors, "category ids of annotations are not among the categories", unknown)

    malformed, tiny, outside, partly = [], [], [], []
    for item in annotations:
        box = item["bbox"]
        if len(box) != 4 or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in box):
            malformed.append(item["id"])
        elif box[2] < 1 or box[3] < 1 or item["area"] <= 0:
            tiny.append(item["id"])
        elif image := image_of.get(item["image_id"]):
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
