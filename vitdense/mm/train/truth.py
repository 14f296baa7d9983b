"""The truth of COCO's evaluation."""

import io
from collections.abc import Hashable, Mapping, Sequence
from contextlib import redirect_stdout

from mmdet.datasets.api_wrappers import COCO

from vitdense.mm.data.classes import category_ids
from vitdense.mm.errors import ConfigError


class Truth(COCO):
    """The annotations of one file, or of several joined files, numbered for COCO's evaluation.

    That evaluation takes an annotation with id 0 for a missing one, keeps ids in floating point, and orders classes by
    id. So annotations and images are numbered from 1, and categories in the order of the classes.

    Args:
        contents: `Source` (or another key) -> content of an annotation file.
    """

    def __init__(self, contents: Mapping[Hashable, Mapping]) -> None:
        super().__init__()
        self.contents, self.classes = contents, None
        self.images: dict[tuple[Hashable, int], int] = {}  # (file, id) -> number

    def number(self, classes: Sequence[str]) -> None:
        """Number images and annotations of these classes; once, for the same classes."""
        if self.classes == tuple(classes):
            return
        self.classes, self.images, self.anns = tuple(classes), {}, {}
        self.dataset = {"images": [], "annotations": []}
        self.dataset["categories"] = [{"id": i, "name": name} for i, name in enumerate(classes, 1)]
        for source, content in self.contents.items():
            images = {one["id"]: one for one in content["images"]}
            for key in sorted(images):
                self.images[source, key] = number = len(self.images) + 1
                self.dataset["images"].append({**images[key], "id": number})
            numbers = {key: i for i, key in enumerate(category_ids(classes, content["categories"]), 1)}
            annotations = content.get("annotations", ())
            last = {one["id"]: one for one in annotations}  # pycocotools takes the last of equal ids
            for annotation in annotations:
                own = last[annotation["id"]]
                if all(one["image_id"] in images and one["category_id"] in numbers for one in (annotation, own)):
                    given = {"iscrowd": own.get("iscrowd") or 0, "id": len(self.dataset["annotations"]) + 1}
                    given["image_id"] = self.images[source, own["image_id"]]
                    given["category_id"] = numbers[own["category_id"]]
                    self.dataset["annotations"].append({**own, **given})

    def number_images(self, images: Sequence[tuple[Hashable, int]]) -> list[int]:
        """The numbers of images, given as (file, id); a ConfigError if one is not in the file."""
        if unknown := [key for key in images if key not in self.images]:
            raise ConfigError(
                f"metric: {len(unknown)} of {len(images)} images of the data set are not in its annotation file, the "
                f"first with the id {unknown[0][1]}; leave ann_file of the metric out, and it follows the data set"
            )
        return [self.images[key] for key in images]

    def indexed(self) -> "Truth":
        """Build the index that pycocotools needs; returns itself."""
        if not self.anns:
            with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
                self.createIndex()
        return self

    def detections(self, rows: Sequence[Mapping]) -> COCO:
        self.indexed()
        with redirect_stdout(io.StringIO()):
            return super().loadRes(rows)
