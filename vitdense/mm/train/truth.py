"""The truth of COCO's evaluation."""

import io
from collections.abc import Hashable, Mapping, Sequence
from contextlib import redirect_stdout

from mmdet.datasets.api_wrappers import COCO

from vitdense.mm.data.classes import category_ids
from vitdense.mm.errors import ConfigError


class Truth(COCO):
    """The annotations of one file, or of several that are joined, numbered for COCO's evaluation.

    It takes an annotation of id 0 for none, keeps ids as floating point, and has results by class in the order of ids.
    So annotations and images are numbered from 1, and categories in the order of the classes; the rest is as in files.

    Args:
        contents: The content of each annotation file, by `Source`, or by any other name.
    """

    def __init__(self, contents: Mapping[Hashable, Mapping]) -> None:
        super().__init__()
        self.contents, self.classes = contents, None
        self.images: dict[tuple[Hashable, int], int] = {}  # the number of each, by its file and its id

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
            last = {one["id"]: one for one in annotations}  # which pycocotools takes for each of an id
            for annotation in annotations:
                own = last[annotation["id"]]
                if all(one["image_id"] in images and one["category_id"] in numbers for one in (annotation, own)):
                    given = {"iscrowd": own.get("iscrowd") or 0, "id": len(self.dataset["annotations"]) + 1}
                    given["image_id"] = self.images[source, own["image_id"]]
                    given["category_id"] = numbers[own["category_id"]]
                    self.dataset["annotations"].append({**own, **given})

    def number_images(self, images: Sequence[tuple[Hashable, int]]) -> list[int]:
        """The numbers of images, each given by its file and its id; a ConfigError if one is not in the file."""
        if unknown := [key for key in images if key not in self.images]:
            raise ConfigError(
                f"metric: {len(unknown)} of {len(images)} images of the data set are not in its annotation file, the "
                f"first with the id {unknown[0][1]}; leave ann_file of the metric out, and it follows the data set"
            )
        return [self.images[key] for key in images]

    def indexed(self) -> "Truth":
        """Itself, where pycocotools looks annotations up."""
        if not self.anns:
            with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
                self.createIndex()
        return self

    def detections(self, rows: Sequence[Mapping]) -> COCO:
        """Numbered detections, as pycocotools has them."""
        self.indexed()
        with redirect_stdout(io.StringIO()):
            return super().loadRes(rows)
