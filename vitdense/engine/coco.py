"""COCO annotation files: their categories, and detections under their ids."""

import itertools
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

from vitdense.engine.config import ConfigError
from vitdense.files import atomic_write

CATEGORIES_BYTES = 4 << 20  # enough for the 1203 categories of LVIS with their definitions


def category_names(ann_file: Path) -> tuple[str, ...]:
    """Names of the categories of an annotation file, in its order.

    Raises:
        ConfigError: It is not a COCO annotation file.
    """
    try:
        categories = _find_categories(ann_file) or json.loads(ann_file.read_text())["categories"]
        return tuple(category["name"] for category in categories)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{ann_file} is not a COCO annotation file ({type(error).__name__}: {error}); expected JSON with a list "
            f"'categories' of objects with a 'name'"
        ) from error


def _find_categories(ann_file: Path) -> list[dict] | None:
    """The last list of categories in a file, without parsing the rest, which takes seconds in every process.

    None if it is not found as objects with name and id; then the whole file has to be parsed.
    """
    try:
        with ann_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(b'"categories"')
            if start < 0:
                return None
            text = content[start : start + CATEGORIES_BYTES].decode(errors="replace")
        found, _ = json.JSONDecoder().raw_decode(text.partition(":")[2].lstrip())
        return found if all({"id", "name"} <= category.keys() for category in found) else None
    except (ValueError, AttributeError, TypeError):  # not JSON, or other JSON
        return None


class CocoPredictions:
    """Detections in COCO format, under the ids of a data set.

    Category ids are those of the annotation file, by name; without such a file those of COCO for COCO's 80 classes;
    else 1 to n in the order of the classes, which is logged. Image ids are those of the annotation file for images that
    lie where it says; others get numbers that the file does not use, which is logged.

    Args:
        classes: Names in the order of the model's labels.
        dataset: Config of the data set: `data_root`, `ann_file`, ``data_prefix['img']``.
    """

    def __init__(self, classes: Sequence[str], dataset: Mapping) -> None:
        root = Path(dataset.get("data_root") or "")
        self.folder = (root / (dataset.get("data_prefix") or {}).get("img", "")).resolve()
        self.ann_file = root / (dataset.get("ann_file") or "")
        known = _read_json(self.ann_file)
        self.image_ids = {_file_name(image): image["id"] for image in known.get("images", [])}
        taken = set(self.image_ids.values())
        self.new_image_ids = (i for i in itertools.count(1) if i not in taken)
        self.annotation_ids = itertools.count(1)
        self.category_ids = self._category_ids(classes, known.get("categories", []))
        categories = [{"id": i, "name": name} for i, name in zip(self.category_ids, classes)]
        self.result: dict[str, list[dict]] = {"images": [], "annotations": [], "categories": categories}

    def _category_ids(self, classes: Sequence[str], categories: Sequence[Mapping]) -> list[int]:
        ids = {category["name"]: category["id"] for category in categories}
        if set(classes) <= ids.keys():
            return [ids[name] for name in classes]
        of_coco = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]  # by id; unused ids are "N/A"
        if set(classes) == set(of_coco) - {"__background__", "N/A"}:
            return [of_coco.index(name) for name in classes]
        print_log(
            f"category ids are numbered from 1 in the order of the classes: no annotation file with these classes was "
            f"found at {self.ann_file} (ann_file of test_dataloader)"
        )
        return list(range(1, len(classes) + 1))

    def add(self, image: Path, sample: BaseDataElement) -> None:
        """Add the detections of an image file, a `DetDataSample` of mmdet."""
        path = image.resolve()
        name = path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else None
        found = name in self.image_ids
        height, width = sample.ori_shape[:2]
        record = {
            "id": self.image_ids[name] if found else next(self.new_image_ids),
            "file_name": name if found else image.name,
            "height": height,
            "width": width,
        }
        self.result["images"].append(record)
        self.result["annotations"] += self._annotations(record["id"], sample.pred_instances.cpu().numpy())

    def _annotations(self, image_id: int, instances: BaseDataElement) -> Iterator[dict]:
        from pycocotools import mask as rle

        masks = instances.masks if "masks" in instances else itertools.repeat(None)
        for box, score, label, mask in zip(instances.bboxes, instances.scores, instances.labels, masks):
            x1, y1, x2, y2 = (float(v) for v in box)
            annotation = {
                "id": next(self.annotation_ids),
                "image_id": image_id,
                "category_id": self.category_ids[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
                "score": float(score),
            }
            if mask is not None:
                coded = rle.encode(np.asfortranarray(mask, dtype=np.uint8))
                annotation["segmentation"] = {"size": coded["size"], "counts": coded["counts"].decode()}
                annotation["area"] = int(rle.area(coded))
            yield annotation

    def write(self, path: Path) -> None:
        """Write what was added as JSON."""
        known = set(self.image_ids.values())
        others = [image["file_name"] for image in self.result["images"] if image["id"] not in known]
        if others:
            print_log(
                f"image ids are numbered from 1 for {len(others)} of {len(self.result['images'])} images, which are "
                f"not in {self.ann_file}: {', '.join(others[:10])}"
            )
        with atomic_write(path) as scratch:
            scratch.write_text(json.dumps(self.result))


def _read_json(path: Path) -> dict:
    """A JSON object; empty where there is none, for not every data set has such an annotation file."""
    try:
        content = json.loads(path.read_text()) if path.suffix == ".json" and path.is_file() else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _file_name(image: Mapping) -> str:
    """Path of an image in the folder of its data set; LVIS gives addresses, ``.../val2017/000000000139.jpg``."""
    return image["file_name"] if "file_name" in image else "/".join(image["coco_url"].split("/")[-2:])
