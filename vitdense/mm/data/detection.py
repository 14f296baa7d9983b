"""For mmdet: data sets with labels by name, and panoptic data without panopticapi."""

import io
import json
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import mmdet.datasets
import numpy as np
import torch
from mmcv.transforms.utils import cache_randomness
from mmdet.datasets.api_wrappers import COCO, COCOPanoptic
from mmdet.datasets.transforms import LoadAnnotations, RandomCrop, Resize
from mmdet.datasets.transforms import LoadPanopticAnnotations as _LoadPanopticAnnotations
from mmdet.datasets.transforms import Mosaic as _Mosaic
from mmdet.structures.mask import BitmapMasks
from mmengine.logging import print_log

from vitdense.files import state_of
from vitdense.mm.data.classes import category_ids
from vitdense.mm.data.coco import KEPT, ImageId, Source, forget, overview, parse, without_doubles
from vitdense.mm.data.kept import cache_file, evict, read_tensors, write_tensors
from vitdense.mm.data.panoptic import ids_of_colours
from vitdense.mm.data.shapes import CLASSES, PALETTE, STUFF, DrawnOnDemand
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATASETS, TRANSFORMS

NOT_OF_ROWS = ("pipeline", "max_refetch", "data_list")  # attributes of a data set


class ByName:
    """Mixin for a reader of annotations: ids of categories are in the order of the requested names, not the file's."""

    by_name = True  # read by the checks

    def __init__(self, annotation_file: str, drop_doubles: bool = False) -> None:
        super().__init__()
        content = parse(Path(annotation_file))
        self.index(without_doubles(content) if drop_doubles else content)

    def index(self, content: Mapping) -> None:
        self.dataset = content
        with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
            self.createIndex()
        self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    def getCatIds(self, catNms: Sequence[str] = (), supNms: Any = (), catIds: Any = ()) -> list[int]:
        if not len(catNms):
            return super().getCatIds(catNms, supNms, catIds)
        return category_ids(catNms, list(self.cats.values()))


class NamedCOCO(ByName, COCO):
    pass


class NamedPanoptic(ByName, COCOPanoptic):
    pass


class Kept:
    """Mixin for a data set: keeps the rows of a large file on disk, for later starts and other processes to map.

    The key is the file's state, the options and the versions. Only our own classes do so; others may read more files.
    """

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        if (file := self._kept_file()) is None:
            return super().full_init()
        of = str(state_of(self.ann_file))
        if self._map(file, of):
            return
        super().full_init()
        rows = [torch.from_numpy(self.data_bytes), torch.from_numpy(self.data_address)]
        with suppress(OSError):  # without it, the next start reads the annotations again
            write_tensors(file, of, rows, cat_ids=json.dumps(self.cat_ids))
            evict(file.parent, "rows")
            self._map(file, of)

    def _kept_file(self) -> Path | None:
        path, is_ours = Path(self.ann_file), type(self).__module__.startswith("vitdense.")
        is_plain = self.serialize_data and not (self.backend_args or self.proposal_file)
        if not (is_ours and is_plain and path.is_file()) or path.stat().st_size < KEPT:
            return None
        options = sorted((key, value) for key, value in vars(self).items() if key not in NOT_OF_ROWS)
        return cache_file("rows", mmdet.__version__, type(self).__name__, path.absolute(), options)

    def _map(self, file: Path, of: str) -> bool:
        """Map stored rows, unless they belong to another user: mmengine unpickles them."""
        if not file.exists() or (hasattr(os, "getuid") and file.stat().st_uid != os.getuid()):  # Windows has none
            return False
        try:
            found = read_tensors(file, of)
        except ConfigError as error:
            print_log(f"{error}; the annotations are read again", "current")
            return False
        if found is None:  # another process has evicted it
            return False
        with suppress(OSError):  # the time of use, for `evict`
            os.utime(file)
        (rows, ends), about = found
        self.data_bytes, self.data_address = rows.numpy(), ends.numpy()  # [bytes] uint8, [images] int64
        self.cat_ids = json.loads(about["cat_ids"])
        self.cat2label = {key: label for label, key in enumerate(self.cat_ids)}
        self._fully_initialized = True
        return True

    def load_data_list(self) -> list[dict]:
        found = super().load_data_list()
        if not self.test_mode:  # nobody reads the file again; in a validation the metric does
            forget()
        return found

    def filter_data(self) -> list[dict]:
        found = super().filter_data()
        del self.cat_img_map  # read only here
        return found


@DATASETS.register_module()
class CocoDataset(Kept, mmdet.datasets.CocoDataset):
    """mmdet's `CocoDataset` with labels in the order of `metainfo.classes`, not of the file.

    Args:
        drop_doubles: Keep only the first of annotations with the same image, class and box. Metrics of the data follow.
        *args, **options: Arguments of mmdet's class.
    """

    COCOAPI = NamedCOCO

    def __init__(self, *args: Any, drop_doubles: bool = False, **options: Any) -> None:
        self.drop_doubles = drop_doubles
        if drop_doubles:
            self.COCOAPI = partial(self.COCOAPI, drop_doubles=True)
        super().__init__(*args, **options)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        """One image, with an `ImageId`, by which metrics find its annotation file."""
        info = super().parse_data_info(raw_data_info)
        if not self.backend_args and isinstance(info["img_id"], int):
            info["img_id"] = ImageId(info["img_id"], Source(self.ann_file, self.drop_doubles))
        return info


@DATASETS.register_module()
class PanopticDataset(Kept, mmdet.datasets.CocoPanopticDataset):
    """mmdet's `CocoPanopticDataset` for any categories, in any order in the file, and for images of any suffix.

    Labels are the things, then the stuff, as in mmdet's heads; without `metainfo` they are the categories of
    `ann_file`. The PNG of an image has its stem.
    """

    COCOAPI = NamedPanoptic

    def __init__(self, *args: Any, ann_file: str = "", metainfo: dict | None = None, **options: Any) -> None:
        file = Path(options.get("data_root") or "", ann_file)
        classes = (metainfo or {}).get("classes")
        if ann_file and file.is_file():
            names, known = classes or overview(file).categories, set(overview(file).things)
            things = tuple(name for name in names if name in known)
            stuff = tuple(name for name in names if name not in known)
            own = {"classes": things + stuff, "thing_classes": things, "stuff_classes": stuff}
            metainfo = {**own, **(metainfo or {})}
        super().__init__(*args, ann_file=ann_file, metainfo=metainfo, **options)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        info = super().parse_data_info(raw_data_info)
        if info["seg_map_path"] is not None:
            info["seg_map_path"] = str(Path(info["seg_map_path"]).with_suffix(".png"))
        return info


@DATASETS.register_module()
class ShapesDataset(DrawnOnDemand, CocoDataset):
    """Boxes and masks of the embedded data set.

    Usual paths under ``data_root``: ``ann_file='annotations/instances_train.json'``,
    ``data_prefix=dict(img='train/', seg='semantic/train/')``, and the same with ``val``.
    """

    METAINFO = {"classes": CLASSES, "palette": PALETTE}  # noqa: RUF012


@DATASETS.register_module()
class ShapesPanopticDataset(DrawnOnDemand, PanopticDataset):
    """Segments of the embedded data set: shapes are things, the background is stuff, a crowd is one segment.

    Usual paths under ``data_root``: ``ann_file='panoptic/panoptic_train.json'``, ``data_prefix=dict(img='train/',
    seg='panoptic/train/')``, and the same with ``val``.
    """

    METAINFO = {  # noqa: RUF012
        "classes": (*CLASSES, *STUFF),
        "thing_classes": CLASSES,
        "stuff_classes": STUFF,
        "palette": [*PALETTE, (90, 90, 90)],
    }


@TRANSFORMS.register_module()
class FitImage(Resize):
    """mmdet's `Resize` to the largest size within `scale` (width, height) that has the ratio of the image.

    With ``keep_ratio=True`` mmdet turns `scale` with the image, so that an upright one is higher than it.
    """

    def __init__(self, scale: int | tuple[int, int], **options: Any) -> None:
        super().__init__(scale, keep_ratio=True, **options)

    def _resize_img(self, results: dict) -> None:
        sides = zip(self.scale, results["img"].shape[1::-1])
        results["scale"] = min(new / old for new, old in sides)
        super()._resize_img(results)


@TRANSFORMS.register_module()
class CropBetween(RandomCrop):
    """mmdet's `RandomCrop` to a random size from `smallest` to `crop_size`, (width, height) in pixels each.

    mmdet's ``crop_type="absolute_range"`` has one range for both sides.
    """

    def __init__(self, smallest: tuple[int, int], crop_size: tuple[int, int], **options: Any) -> None:
        super().__init__(crop_size, **options)
        self.smallest = smallest

    @cache_randomness
    def _get_crop_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        ranges = zip(image_size, self.smallest[::-1], self.crop_size[::-1])
        return tuple(np.random.randint(min(n, least), min(n, most) + 1) for n, least, most in ranges)  # noqa: NPY002


@TRANSFORMS.register_module()
class Mosaic(_Mosaic):
    """mmdet's `Mosaic` with the masks of all four images, for the pipeline of a `MultiImageMixDataset`.

    It draws only indices within the data set; mmdet's may draw the one after the last.
    """

    def get_indexes(self, dataset: Sequence) -> list[int]:
        return [random.randrange(len(dataset)) for _ in range(3)]

    def _mosaic_combine(self, loc: str, center: tuple[int, int], size: tuple[int, int]) -> tuple[tuple, tuple]:
        paste, crop = super()._mosaic_combine(loc, center, size)
        self._placed.append((size, paste, crop))
        return paste, crop

    def transform(self, results: dict) -> dict:
        self._placed: list[tuple] = []
        parts = [results, *results["mix_results"]]
        if "gt_masks" not in results:
            return super().transform(results)
        labels = np.concatenate([part["gt_bboxes_labels"] for part in parts])
        numbers = np.split(np.arange(len(labels)), np.cumsum([len(part["gt_bboxes_labels"]) for part in parts])[:-1])
        first, *others = ({**part, "gt_bboxes_labels": number} for part, number in zip(parts, numbers))
        mixed = super().transform({**first, "mix_results": others})
        if not self._placed:  # skipped by `prob`
            return results
        height, width = mixed["img_shape"]
        masks = np.zeros((len(labels), height, width), np.uint8)
        for part, of, (size, (x1, y1, x2, y2), (left, top, right, bottom)) in zip(parts, numbers, self._placed):
            small = part["gt_masks"].resize(size[::-1]).to_ndarray()  # [objects, h, w]
            masks[of, y1:y2, x1:x2] = small[:, top:bottom, left:right]
        kept = mixed["gt_bboxes_labels"]
        return {**mixed, "gt_bboxes_labels": labels[kept], "gt_masks": BitmapMasks(masks[kept], height, width)}


@TRANSFORMS.register_module()
class LoadPanopticAnnotations(_LoadPanopticAnnotations):
    """mmdet's step of this name, without panopticapi."""

    def __init__(self, with_bbox: bool = True, with_mask: bool = True, with_seg: bool = True) -> None:
        self.rgb2id = ids_of_colours
        LoadAnnotations.__init__(self, with_bbox=with_bbox, with_mask=with_mask, with_seg=with_seg)
