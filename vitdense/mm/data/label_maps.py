"""Label maps of mmseg's data sets: their raw values, and the labels that mmseg makes of them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from vitdense.mm.data.images import FILES_READ, by, evenly_spaced, header_size
from vitdense.mm.errors import ConfigError

UNLABELLED = 255  # label of unlabelled pixels in mmseg, and the default ignore_index of its heads


@dataclass
class LabelMaps:
    """Raw values in label maps of a data set.

    Attributes:
        pixels: Number of pixels per raw value.
        first_in: The first file of every raw value.
        read: How many files were read.
        total: How many there are.
        reduced: The data set's ``reduce_zero_label``.
        label_map: New label per old one, for a subset of classes; may be empty.
        wrong_sizes: Files of another size than their image, with both.
    """

    pixels: Counter
    first_in: dict[int, str]
    read: int
    total: int
    reduced: bool
    label_map: dict[int, int]
    wrong_sizes: list[str]

    def label(self, raw: int) -> int:
        """The label that mmseg makes of a raw value."""
        label = raw
        if self.reduced:  # same order as in mmseg: first this, then label_map
            label = UNLABELLED if raw in (0, UNLABELLED) else raw - 1
        return self.label_map.get(label, label)


def build_dataset(where: str, dataset: dict) -> BaseDataset:
    """Build an mmseg data set without its pipeline: a list of files.

    Raises:
        ConfigError: There are no images, or mmseg refuses the classes.
    """
    try:
        with DATASETS.switch_scope_and_registry("mmseg") as registry:
            built = registry.build({**dataset, "pipeline": [], "serialize_data": False})
    except ValueError as error:  # classes that are not among those of the type
        raise ConfigError(f"{where}: {error}; for classes of your own set type='BaseSegDataset'") from error
    if len(built) == 0:
        raise ConfigError(f"{where}: no images in {built.data_prefix}; check img_suffix, ann_file and indices")
    return built


def read_label_maps(
    where: str, built: BaseDataset, loader: dict, number: int | None = FILES_READ, stored: bool = False
) -> LabelMaps:
    """Count the raw values of label maps.

    Args:
        where: Name of the data set in messages.
        built: From `build_dataset`.
        loader: The step of the pipeline that loads label maps.
        number: How many files to read, evenly spaced; very rare values are missed. None: all.
        stored: Images keep their size in the file, and are not turned by their EXIF orientation.

    Raises:
        ConfigError: A label map is unreadable or has several channels.
    """
    pixels, first_in, wrong = Counter(), {}, []
    chosen = evenly_spaced(range(len(built)), number)
    for i in chosen:
        sample = built.get_data_info(int(i))
        path = sample.get("seg_map_path")
        if path is None:
            raise ConfigError(f"{where}: set data_prefix.seg_map_path, the folder of label maps")
        labels = _read(where, path, loader.get("imdecode_backend", "pillow"))  # [H, W]
        size = header_size(sample["img_path"], stored)
        if size not in (None, labels.shape[::-1]):
            wrong.append(f"{path} ({by(labels.shape[::-1])}, the image {by(size)})")
        found = {int(raw): int(count) for raw, count in zip(*np.unique(labels, return_counts=True))}
        pixels.update(found)
        first_in = dict.fromkeys(found, path) | first_in
    reduced, label_map = sample["reduce_zero_label"], sample.get("label_map") or {}
    return LabelMaps(pixels, first_in, len(chosen), len(built), reduced, label_map, wrong)


def decode_head(cfg: Config) -> dict:
    """The head that predicts the classes, the last of a cascade; empty if the model has none."""
    head = cfg.model.get("decode_head", {})
    return head[-1] if isinstance(head, (list, tuple)) else head


def _read(where: str, path: str, decoder: str) -> np.ndarray:
    """One label map, [H, W]."""
    try:  # as mmseg's loader; each decoder raises other errors, and one returns None
        labels = mmcv.imfrombytes(Path(path).read_bytes(), flag="unchanged", backend=decoder)
        labels = labels[..., 0] if labels.ndim == 3 and labels.shape[2] == 1 else labels  # [H, W]
    except Exception as error:
        raise ConfigError(
            f"{where}: label map {path} cannot be read ({type(error).__name__}: {error}); its path is made of "
            "data_prefix.seg_map_path and seg_map_suffix"
        ) from error
    if labels.ndim != 2:
        raise ConfigError(
            f"{where}: label map {path}: got shape {labels.shape}, expected one channel of class indices; convert "
            "colours to indices, or keep one of equal channels"
        )
    return labels
