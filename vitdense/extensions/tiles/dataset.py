"""A data set of tiles, and the step that crops them."""

from collections.abc import Mapping, Sequence
from typing import Any

import mmengine.registry
import numpy as np
from mmcv.transforms import BaseTransform

from vitdense.mm.config.query import type_name
from vitdense.mm.data.coco import has_box
from vitdense.mm.data.images import by, header_size, keeps_orientation
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATASETS, TRANSFORMS
from vitdense.results.tiles import cut

SEED = 0


@DATASETS.register_module()
class TiledDataset:
    """The tiles of the images of a data set, as `vitdense.results.tiles.cut` makes them, for training.

    A tile has an object if it keeps at least `min_kept` of the area of its box, or as much as any other tile: so every
    object is in one. Smaller pieces are ignored (`ignore_flag`).

    Args:
        dataset: Config of a data set of mmdet or mmseg with a `pipeline`. All tiles of label maps and panoptic segments
            are used.
        side, overlap: See `cut`.
        min_kept: Share of a box, above 0 and at most 1.
        keep_empty: Share of the tiles without objects that are used, 0 to 1; drawn by a fixed seed.

    Raises:
        ConfigError: An argument is out of range, all images are smaller than a tile, or objects have keypoints.
    """

    def __init__(
        self,
        dataset: Mapping[str, Any],
        side: int | Sequence[int],
        overlap: float = 0.2,
        min_kept: float = 0.5,
        keep_empty: float = 0.1,
    ) -> None:
        cut((1, 1), side, overlap)  # raises if an argument is out of range
        if not 0 < min_kept <= 1 or not 0 <= keep_empty <= 1:
            got = f"got min_kept={min_kept} and keep_empty={keep_empty}"
            raise ConfigError(f"tiles: {got}, expected shares: above 0 and at most 1, and 0 to 1")
        self.side, self.overlap, self.min_kept = side, overlap, min_kept
        self.stored, steps = keeps_orientation(dataset), list(dataset["pipeline"])
        loads = [i for i, step in enumerate(steps) if type_name(step).startswith("Load")]
        steps.insert(max(loads, default=-1) + 1, {"type": "vitdense.CropTile"})
        self.dataset = mmengine.registry.DATASETS.build({**dataset, "pipeline": steps})
        self.metainfo = self.dataset.metainfo
        draw, largest, used = np.random.default_rng(SEED), np.zeros(2, int), []
        for i in range(len(self.dataset)):
            info = self.dataset.get_data_info(i)
            tiles, size, shares = self._tiles(info)
            is_object = np.array([not one.get("ignore_flag") for one in info.get("instances", ())], bool)
            is_used = draw.random(len(tiles)) < keep_empty
            is_used |= self._present(shares)[:, is_object].any(1)
            is_used |= "instances" not in info or "segments_info" in info
            used += [(i, row) for row in is_used.nonzero()[0].tolist()]
            largest = np.maximum(largest, size)
        self.windows = np.array(used, np.int64).reshape(-1, 2)  # [N, 2]: image, and tile of the image
        refuse_large(side, largest)

    def _tiles(self, info: Mapping[str, Any]) -> tuple[np.ndarray, Sequence[int], np.ndarray]:
        """The tiles of an image, [tiles, 4], its height and width, and `shares_of` its objects."""
        loaded = (info["width"], info["height"]) if "height" in info else header_size(info["img_path"], self.stored)
        if loaded is None:
            raise ConfigError(f"tiles: image {info['img_path']} has no readable size; replace it")
        if any("keypoints" in one for one in info.get("instances", ())):
            raise ConfigError("tiles: got keypoints, expected boxes, masks or label maps; leave the tiles out")
        tiles = cut(loaded[::-1], self.side, self.overlap)
        corners = [np.reshape(one["bbox"], (-1, 2)) for one in info.get("instances", ())]  # two, or four if oriented
        boxes = np.array([[*x.min(0), *x.max(0)] for x in corners]).reshape(-1, 4)
        return tiles, loaded[::-1], shares_of(boxes, tiles, loaded)

    def _present(self, shares: np.ndarray) -> np.ndarray:
        """Which tiles have which objects, [tiles, objects] bool."""
        is_best = shares.argmax(0) == np.arange(len(shares))[:, None]
        return (shares >= self.min_kept) | (is_best & (shares > 0))

    def full_init(self) -> None:
        """Do nothing: wrappers of mmengine call it, and the constructor has read the data set."""

    def __len__(self) -> int:
        return len(self.windows)

    def get_data_info(self, idx: int) -> dict:
        """What the pipeline of a tile starts from: its image's, with the objects seen, and its edges, `tile`."""
        image, row = self.windows[idx].tolist()
        info = self.dataset.get_data_info(image)
        tiles, _, shares = self._tiles(info)
        is_seen, is_present = shares[row] > 0, self._present(shares)[row]
        if "segments_info" in info:  # its things are the instances
            seen = iter(is_seen)
            info["segments_info"] = [one for one in info["segments_info"] if not one["is_thing"] or next(seen)]
        if "instances" in info:
            for one, present in zip(info["instances"], is_present):
                one["ignore_flag"] = int(bool(one.get("ignore_flag")) or not present)
            info["instances"] = [info["instances"][i] for i in is_seen.nonzero()[0]]
        return {**info, "tile": tiles[row], "sample_idx": idx}

    def __getitem__(self, idx: int) -> Any:
        for _ in range(self.dataset.max_refetch + 1):
            data = self.dataset.pipeline(self.get_data_info(idx))
            if data is not None:
                return data
            idx = np.random.randint(len(self))  # noqa: NPY002 -- by the seed of the sample, as in mmengine
        raise ConfigError(f"tiles: no usable image in {self.dataset.max_refetch + 1} draws; see the warnings before")


def refuse_large(side: int | Sequence[int], largest: np.ndarray) -> None:
    """Raise a ConfigError for tiles larger than all images; `largest` is their greatest height and width, [2]."""
    if (largest < side).all():
        got = f"got tiles of {side} pixels and images of at most {by(largest[::-1].tolist())}"
        raise ConfigError(f"tiles: {got}, expected larger images; give a smaller side, or train without tiles")


def shares_of(boxes: np.ndarray, tiles: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """The share of each box [N, 4] in an image of `size` (W, H) that each tile keeps, [tiles, N]."""
    boxes = boxes.astype(np.float64).clip(0, [*size, *size])
    lower = np.maximum(boxes[:, :2], tiles[:, None, :2])
    upper = np.minimum(boxes[:, 2:], tiles[:, None, 2:])
    return (upper - lower).clip(0).prod(-1) / (boxes[:, 2:] - boxes[:, :2]).prod(-1).clip(1e-9)


def densest_of(content: Mapping[str, Any], side: int | Sequence[int], overlap: float) -> int:
    """Most objects of a COCO file that a tile sees, without crowds."""
    boxes: dict[Any, list] = {image["id"]: [] for image in content["images"]}
    for one in content.get("annotations", ()):
        if has_box(one) and not one.get("iscrowd") and one["image_id"] in boxes:
            x, y, width, height = one["bbox"]
            boxes[one["image_id"]].append([x, y, x + width, y + height])
    densest = 0
    for image in content["images"]:
        size, of_image = (image["width"], image["height"]), np.array(boxes[image["id"]]).reshape(-1, 4)
        shares = shares_of(of_image, cut(size[::-1], side, overlap), size)
        densest = max(densest, *(shares > 0).sum(1).tolist())
    return densest


@TRANSFORMS.register_module()
class CropTile(BaseTransform):
    """Crop image, boxes, masks and label map to ``tile``; `TiledDataset` puts the step after those that load.

    A step that loads may give an object that reads the image where it is sliced.
    """

    def transform(self, results: dict) -> dict:
        x1, y1, x2, y2 = tile = results["tile"]
        size = int(y2 - y1), int(x2 - x1)
        for key in {"img", "gt_seg_map"} & results.keys():
            results[key] = np.ascontiguousarray(results[key][y1:y2, x1:x2])
        if "gt_bboxes" in results:
            results["gt_bboxes"].translate_((-x1, -y1))
            results["gt_bboxes"].clip_(size)
        if "gt_masks" in results:
            results["gt_masks"] = results["gt_masks"].crop(tile)
        return {**results, "img_shape": size, "ori_shape": size}
