"""Label maps of mmseg's data sets: their raw values, mmseg's labels for these, and faults."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mmcv
import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES, by, evenly_spaced, header_size
from vitdense.mm.errors import ConfigError

UNLABELLED = 255  # label of unlabelled pixels in mmseg, and the default ignore_index of its heads


@dataclass
class LabelMaps:
    """Raw values in label maps of a data set."""

    total: int  # number of files
    read: int = 0  # number of files read
    pixels: Counter = field(default_factory=Counter)  # raw value -> number of pixels
    first_in: dict[int, str] = field(default_factory=dict)  # raw value -> first file with it
    reduced: bool = False  # the data set's reduce_zero_label
    label_map: dict[int, int] = field(default_factory=dict)  # new label per old one, for a subset of classes
    names: tuple[str, ...] = ()  # of the labels
    faults: list[Fault] = field(default_factory=list)

    def label(self, raw: int) -> int:
        """mmseg's label for a raw value."""
        label = raw if raw >= 0 else raw & 255  # mmseg keeps 8 bits
        if self.reduced:  # same order as in mmseg: first this, then label_map
            label = UNLABELLED if label in (0, UNLABELLED) else label - 1
        return self.label_map.get(label, label)


def build_dataset(dataset: dict) -> BaseDataset:
    """Build an mmseg data set without its pipeline; a ConfigError without images, or if mmseg refuses the classes."""
    try:
        with DATASETS.switch_scope_and_registry("mmseg") as registry:
            built = registry.build({**dataset, "pipeline": [], "serialize_data": False})
    except ValueError as error:  # classes that the type does not have
        raise ConfigError(f"{error}; for classes of your own set type='BaseSegDataset'") from error
    if len(built) == 0:
        raise ConfigError(f"no images in {built.data_prefix}; check img_suffix, ann_file and indices")
    return built


def read_label_maps(
    built: BaseDataset, samples: Sequence[dict], backend: str, number: int | None, stored: bool
) -> LabelMaps:
    """Count the raw values of label maps.

    Args:
        built: From `build_dataset`.
        samples: Its entries of images.
        backend: Decoder of label maps.
        number: Files to read, evenly spaced; None for all.
        stored: Whether images are loaded as stored, not turned by their EXIF orientation.
    """
    maps, faults = LabelMaps(len(built), names=tuple(built.metainfo.get("classes") or ())), Faults()
    maps.reduced, maps.label_map = samples[0]["reduce_zero_label"], samples[0].get("label_map") or {}
    if "seg_map_path" not in samples[0]:
        maps.faults.append(Fault("set data_prefix.seg_map_path, the folder of label maps"))
        return maps
    absent = {path for sample in samples if not os.path.isfile(path := sample["seg_map_path"])}
    where = "of paths made of data_prefix.seg_map_path and seg_map_suffix"
    faults.add(f"label maps do not exist, {where}", *sorted(absent))
    if not built.ann_file or not os.path.isfile(built.ann_file):
        folder, suffix = Path(built.data_prefix["img_path"]), built.img_suffix
        images = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        others = sorted(str(path) for path in images if not path.name.endswith(suffix))
        faults.add(f"images have another suffix than img_suffix={suffix!r}, and are left out", *others, grave=False)
    for sample in evenly_spaced([one for one in samples if one["seg_map_path"] not in absent], number):
        path = sample["seg_map_path"]
        try:
            labels = read_label_map(path, backend)  # [H, W]
        except Exception as error:  # decoders have no error in common
            faults.add(f"label maps cannot be read ({type(error).__name__}: {error})", path)
            continue
        if labels.ndim != 2 or labels.dtype.kind == "f":
            got, fix = f"got {labels.dtype} {labels.shape}", "convert colours to indices, or keep one of equal channels"
            faults.add(f"label maps: {got}, expected one channel of class indices", path, fix=fix)
            continue
        if path.lower().endswith((".jpg", ".jpeg")):
            faults.add("label maps are JPEG, whose compression changes values; save them as PNG", path, grave=False)
        size = header_size(sample["img_path"], stored)
        if size not in (None, labels.shape[::-1]):  # such as transposed maps, on which mmseg would train
            sizes = f"{by(labels.shape[::-1])}, the image {by(size)}"
            faults.add("label maps have another size than their image", f"{path} ({sizes})")
        found = {int(raw): int(count) for raw, count in zip(*np.unique(labels, return_counts=True))}
        maps.read += 1
        maps.pixels.update(found)
        maps.first_in = dict.fromkeys(found, path) | maps.first_in
    maps.faults = list(faults)
    return maps


def read_label_map(path: str, decoder: str) -> np.ndarray:
    """A label map as mmseg's loader reads it: [H, W] if it has one channel."""
    labels = mmcv.imfrombytes(Path(path).read_bytes(), flag="unchanged", backend=decoder)
    return labels[..., 0] if labels.ndim == 3 and labels.shape[2] == 1 else labels
