"""mmdet's readers of COCO files, with labels by name. Text is UTF-8, whatever the locale."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from mmdet.datasets.api_wrappers import COCO, COCOPanoptic

from vitdense.mm.data.classes import category_ids
from vitdense.mm.errors import ConfigError


class ByName:
    """Mixin for a reader: the ids of categories have the order of the names that are asked for, not of the file."""

    by_name = True  # read by the checks

    def __init__(self, annotation_file: str) -> None:
        super().__init__()
        self.index(json.loads(Path(annotation_file).read_bytes()))

    def index(self, content: Mapping) -> None:
        """Take the content of a file."""
        self.dataset = content
        with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
            self.createIndex()
        self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    def getCatIds(self, catNms: Sequence[str] = (), supNms: Any = (), catIds: Any = ()) -> list[int]:
        """As pycocotools', for names: see `category_ids`."""
        if not len(catNms):
            return super().getCatIds(catNms, supNms, catIds)
        return category_ids(catNms, list(self.cats.values()))


class NamedCOCO(ByName, COCO):
    """Boxes and masks."""


class NamedPanoptic(ByName, COCOPanoptic):
    """Segments."""


class Truth(ByName, COCO):
    """Boxes and masks of a metric, numbered for COCO's evaluation.

    The evaluation takes an annotation of id 0 for none, keeps ids as floating point, and gives its results by class in
    the order of the ids. So annotations and images are numbered from 1, and categories in the order of the classes.

    Args:
        content: Of an annotation file.

    Attributes:
        ids: Category ids of the file, in the order of the classes; after `number`.
        images: The number of every image id of the file.
    """

    def __init__(self, content: Mapping) -> None:
        COCO.__init__(self)
        self.content, self.classes = content, None

    def number(self, classes: Sequence[str]) -> None:
        """Number the content; once, for the same classes."""
        if self.classes == tuple(classes):
            return
        self.classes, categories = tuple(classes), self.content["categories"]
        self.ids = category_ids(classes, categories)
        others = [category for category in categories if category["id"] not in set(self.ids)]
        self.numbers = {key: i for i, key in enumerate([*self.ids, *(category["id"] for category in others)], 1)}
        self.images = {key: i for i, key in enumerate(sorted({image["id"] for image in self.content["images"]}), 1)}
        names = [*classes, *(category["name"] for category in others)]
        kept = [  # faults that the checks name
            one
            for one in self.content.get("annotations", ())
            if one["image_id"] in self.images and one["category_id"] in self.numbers
        ]
        self.index(
            {
                "images": [{**image, "id": self.images[image["id"]]} for image in self.content["images"]],
                "annotations": [{"iscrowd": 0, **self._numbered(one), "id": i} for i, one in enumerate(kept, 1)],
                "categories": [{"id": i, "name": name} for i, name in enumerate(names, 1)],
            }
        )

    def _numbered(self, one: Mapping) -> dict:
        numbers = {"image_id": self.images[one["image_id"]], "category_id": self.numbers[one["category_id"]]}
        return {**one, **numbers}

    def number_images(self, ids: Sequence[int]) -> list[int]:
        """The numbers of images.

        Raises:
            ConfigError: One is not in the file.
        """
        if unknown := [key for key in ids if key not in self.images]:
            raise ConfigError(
                f"metric: {len(unknown)} of {len(ids)} images of the data set are not in its annotation file, the "
                f"first with the id {unknown[0]}; leave ann_file of the metric out, and it follows the data set"
            )
        return [self.images[key] for key in ids]

    def loadRes(self, resFile: Sequence[Mapping]) -> COCO:
        """As pycocotools', of detections with the ids of the file."""
        return super().loadRes([self._numbered(one) for one in resFile])
