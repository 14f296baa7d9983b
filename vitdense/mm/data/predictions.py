"""Detections in COCO format, with the ids of a data set."""

import itertools
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mmengine.logging import print_log
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

from vitdense.files import atomic_write
from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import outline, parse
from vitdense.mm.errors import join_some
from vitdense.results.result import Result
from vitdense.runtime import SCORE

# Keys of a COCO result; an annotation of a data set has more.
RESULT_KEYS = ("image_id", "category_id", "bbox", "score", "segmentation", "keypoints")


class Found(NamedTuple):
    """The height and width of an image, and its detections, packed to a sixth of the memory of dicts."""

    size: tuple[int, int]
    number: int
    packed: bytes  # JSON, compressed


class CocoPredictions:
    """Detections in COCO format, with the ids of a data set.

    Category ids come from the annotation file by name. Without one they are COCO's for COCO's 80 classes, else 1 to n
    in the order of the classes, which is logged. Image ids come from the annotation file by path; other images get
    unused ids, which is logged.

    Args:
        classes: Names in the order of the model's labels.
        dataset: Config of the data set: `data_root`, `ann_file`, ``data_prefix['img']``.
        base: For a new data set, the folder that file names are relative to; images get new ids. None for names alone.
        meta: The `dataset_meta` of the model, which may have ids of categories, and names of keypoints. Files have
            keypoints in the order of their category.
    """

    def __init__(
        self, classes: Sequence[str], dataset: Mapping, base: Path | None = None, meta: Mapping | None = None
    ) -> None:
        self.base, self.places = base, None
        root = Path(dataset.get("data_root") or "")
        folder = root / (dataset.get("data_prefix") or {}).get("img", "")
        self.ann_file = root / (dataset.get("ann_file") or "")
        exists = self.ann_file.suffix == ".json" and self.ann_file.is_file()
        truth = parse(self.ann_file) if exists else {}
        images = truth.get("images", []) if base is None else []
        self.known_images = {_locate(folder / _file_name(image)): image for image in images}
        self.used_ids = {image["id"] for image in self.known_images.values()}
        meta = meta or {}
        self.category_ids = self._category_ids(
            [*map(clean, classes)], truth.get("categories", []), meta.get("category_ids")
        )
        known = {one["name"]: one for one in truth.get("categories", [])}  # with their keypoints
        rows = zip(self.category_ids, classes)
        self.categories = [{**known.get(name, {}), "id": i, "name": name} for i, name in rows]
        self.found: dict[Path, Found] = {}
        points = [clean(name) for name in meta.get("keypoints") or ()]
        for one in self.categories if points else ():  # models with keypoints have one class
            names = [clean(name) for name in one.get("keypoints") or ()]
            if sorted(names) != sorted(points):
                pairs = [[a + 1, b + 1] for a, b in meta.get("skeleton") or ()]
                names = points
                one |= {"keypoints": points, "skeleton": pairs, "sigmas": list(meta.get("sigmas") or ())}
            if meta.get("flip_pairs") is not None:  # else nobody states them
                one.pop("flip_idx", None)  # the same, in the order of the file
                one["flip_pairs"] = [[points[a], points[b]] for a, b in meta["flip_pairs"]]
            self.places = [points.index(name) for name in names]

    def _category_ids(
        self, classes: Sequence[str], categories: Sequence[Mapping], trained: Sequence[int] | None
    ) -> list[int]:
        ids = {category["name"]: category["id"] for category in categories}
        if set(classes) <= ids.keys():
            return [ids[name] for name in classes]
        if trained:
            return [*trained]
        coco_names = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]  # index = id; unused ids are "N/A"
        if set(classes) == set(coco_names) - {"__background__", "N/A"}:
            return [coco_names.index(name) for name in classes]
        reason = "the data set of test_dataloader has no annotation file"
        if self.ann_file.suffix:
            reason = f"{self.ann_file} (ann_file of test_dataloader) is not an annotation file with these classes"
        print_log(f"category ids are numbered from 1 in the order of the classes: {reason}")
        return list(range(1, len(classes) + 1))

    def add(self, image: Path, result: Result, size: tuple[int, int]) -> None:
        rows = result.to_coco(category_ids=self.category_ids)
        for one in rows:
            *_, width, height = one["bbox"]
            one["area"] = int(outline(one["segmentation"])[1]) if "segmentation" in one else width * height
            one["iscrowd"] = 0
            if "keypoints" in one and self.places is not None:
                one["keypoints"] = [v for i in self.places for v in one["keypoints"][3 * i : 3 * i + 3]]
        self.found[image] = Found(size, len(rows), zlib.compress(json.dumps(rows).encode(), 1))

    @property
    def images(self) -> list[dict]:
        rows, new_ids = [], (i for i in itertools.count(1) if i not in self.used_ids)
        for image, ((height, width), *_) in self.found.items():
            known = self.known_images.get(_locate(image))
            new = image.name if self.base is None else Path(os.path.relpath(image, self.base)).as_posix()
            image_id, name = (known["id"], _file_name(known)) if known else (next(new_ids), new)
            rows.append({"id": image_id, "file_name": name, "height": height, "width": width})
        return rows

    def annotations(self, images: Sequence[Mapping]) -> Iterator[dict]:
        number = itertools.count(1)
        for image, found in zip(images, self.found.values()):
            for one in json.loads(zlib.decompress(found.packed)):
                yield {"id": next(number), **one, "image_id": image["id"]}

    def write(self, path: Path, as_dataset: bool = False) -> None:
        """Write all detections as JSON: the list that `COCO.loadRes` takes, or a data set for `COCO` itself."""
        images = self.images
        with atomic_write(path) as scratch, scratch.open("w", encoding="utf-8") as file:  # 10^6, one by one
            file.write(f'{{"images": {json.dumps(images)}, "annotations": [' if as_dataset else "[")
            for i, one in enumerate(self.annotations(images)):
                row = as_annotation(one) if as_dataset else {key: one[key] for key in RESULT_KEYS if key in one}
                file.write(", " * bool(i) + json.dumps(row))
            file.write(f'], "categories": {json.dumps(self.categories)}}}' if as_dataset else "]")

    def report_new_images(self) -> None:
        new = [image.name for image in self.found if _locate(image) not in self.known_images]
        if names := [name.encode(errors="backslashreplace").decode() for name in new]:
            what = f"{len(names)} of {len(self.found)} images are not in {self.ann_file}, and get unused ids"
            print_log(f"{what}: {join_some(names)}; --format dataset writes the names of all")


def as_annotation(one: dict) -> dict:
    """A detection as an annotation: keypoints with a score of at least `SCORE` are visible, others not labelled."""
    if "keypoints" not in one:
        return one
    flags = [2 * (score >= SCORE) for score in one["keypoints"][2::3]]
    places = zip(one["keypoints"][::3], one["keypoints"][1::3], flags)
    return {**one, "keypoints": [v for place in places for v in place], "num_keypoints": sum(map(bool, flags))}


def _locate(image: Path) -> Path:
    """The path of an image in its real folder. If the image itself is a link, it keeps its name."""
    return image.parent.resolve() / image.name


def _file_name(image: Mapping) -> str:
    """Path of an image, relative to the image folder. LVIS has URLs instead: ``.../val2017/000000000139.jpg``."""
    return image["file_name"] if "file_name" in image else "/".join(image["coco_url"].split("/")[-2:])
