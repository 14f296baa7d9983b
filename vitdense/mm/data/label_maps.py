"""Check of label maps: their values against the classes and settings of a config.

Labels that are off by one, or unlabelled pixels that are read as a class, silently train a wrong model.
"""

import inspect
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from vitdense.mm.data.images import FILES_READ, evenly_spaced
from vitdense.mm.errors import ConfigError

VALUES_SHOWN = 20  # in a histogram
UNLABELLED = 255  # label of unlabelled pixels in mmseg, and the default ignore_index of its heads


def loads_labels(step: object) -> bool:
    """Whether a step of a pipeline is mmseg's own loader of label maps."""
    kind = step.get("type") if isinstance(step, dict) else None
    return getattr(kind, "__name__", kind) in ("LoadAnnotations", "mmseg.LoadAnnotations")


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
    """

    pixels: Counter
    first_in: dict[int, str]
    read: int
    total: int
    reduced: bool
    label_map: dict[int, int]

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


def read_label_maps(where: str, built: BaseDataset, loader: dict, number: int | None = FILES_READ) -> LabelMaps:
    """Count the raw values of label maps.

    Args:
        where: Name of the data set in messages.
        built: From `build_dataset`.
        loader: The step of the pipeline that loads label maps.
        number: How many files to read, evenly spaced; very rare values are missed. None: all.

    Raises:
        ConfigError: A label map is unreadable or has several channels.
    """
    pixels, first_in = Counter(), {}
    chosen = evenly_spaced(range(len(built)), number)
    for i in chosen:
        sample = built.get_data_info(int(i))
        path = sample.get("seg_map_path")
        if path is None:
            raise ConfigError(f"{where}: set data_prefix.seg_map_path, the folder of label maps")
        found = _histogram(where, path, loader.get("imdecode_backend", "pillow"))
        pixels.update(found)
        first_in = dict.fromkeys(found, path) | first_in
    reduced, label_map = sample["reduce_zero_label"], sample.get("label_map") or {}
    return LabelMaps(pixels, first_in, len(chosen), len(built), reduced, label_map)


def decode_head(cfg: Config) -> dict:
    """The head that predicts the classes, the last of a cascade; empty if the model has none."""
    head = cfg.model.get("decode_head", {})
    return head[-1] if isinstance(head, (list, tuple)) else head


def check_label_maps(where: str, dataset: dict, kind: type, cfg: Config, number: int | None = FILES_READ) -> None:
    """Check that the label maps of an mmseg data set have the values that the head and the settings expect.

    Args:
        where: Name of the data set in messages; starts with ``train`` for a training set.
        dataset: Its config.
        kind: Its class.
        cfg: The whole config.
        number: See `read_label_maps`.

    Raises:
        ConfigError: There are no images, a label map is unreadable or has several channels, a value has no class, or
            ``reduce_zero_label`` is wrong. The message of the last two has the histogram of raw values.
    """
    head = decode_head(cfg)
    num_classes = head.get("num_classes")
    loader = next(filter(loads_labels, dataset.get("pipeline", ())), None)
    if loader is None or num_classes is None:
        return  # no labels, or a loader or model that is not mmseg's
    maps = read_label_maps(where, build_dataset(where, dataset), loader, number)
    ignored = head.get("ignore_index", UNLABELLED)
    outputs = max(2, num_classes) if head.get("out_channels") == 1 else num_classes  # a sigmoid has 0 and 1
    labels = {raw: maps.label(raw) for raw in sorted(maps.pixels)}
    outside = [raw for raw, label in labels.items() if label != ignored and not 0 <= label < outputs]
    if outside:
        fault = f"hold {', '.join(map(str, outside[:10]))} (first in {maps.first_in[outside[0]]}), which have no class"
        fix = "set num_classes and classes, reduce_zero_label (True: 0 means unlabelled) or ignore_index accordingly"
    elif maps.label_map:
        return
    elif where.startswith("train") and not maps.reduced and set(maps.pixels) == {0, UNLABELLED} == {0, ignored}:
        fault, fix = "are masks of 0 and 255, but 255 is ignored", "write 1 in place of 255"
    else:
        fault = _zero_fault(maps.pixels, num_classes, maps.reduced, kind, where.startswith("train"))
        fix = f"set reduce_zero_label={not maps.reduced} in the data set"
    if fault is not None:
        raise ConfigError(
            f"{where}: label maps {fault}. Got raw values {_shares(maps.pixels)} in {maps.read} of {maps.total} maps; "
            f"expected values for num_classes={num_classes}, reduce_zero_label={maps.reduced}, ignore_index={ignored}; "
            f"{fix}"
        )


def _zero_fault(values: Collection[int], num_classes: int, reduced: bool, kind: type, training: bool) -> str | None:
    """What is wrong with ``reduce_zero_label``, if all values have a class; None if nothing certainly is."""
    default = inspect.signature(kind).parameters.get("reduce_zero_label")
    usually_reduced = default is not None and default.default is True
    if not reduced:
        # Files of this type whose labels were already reduced have 255 for unlabelled pixels, not 0.
        if usually_reduced and 0 in values and UNLABELLED not in values:
            return f"have 0 for unlabelled pixels, as is usual for {kind.__name__}, but 0 is read as a class"
        return None
    # A validation set may lack the last class by chance, and so may a type that is usually reduced. There, only pixels
    # of 255 show that 0 does not mean unlabelled.
    likely = UNLABELLED in values or (training and not usually_reduced)
    if likely and set(range(num_classes)) <= set(values) and num_classes not in values:
        return f"have 0 for a class, but 0 is read as unlabelled, and class {num_classes - 1} never occurs"
    return None


def _histogram(where: str, path: str, decoder: str) -> dict[int, int]:
    """Number of pixels per raw value of one label map."""
    try:  # as mmseg's loader; each decoder raises other errors, and one returns None
        labels = mmcv.imfrombytes(Path(path).read_bytes(), flag="unchanged", backend=decoder).squeeze()
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
    return {int(raw): int(count) for raw, count in zip(*np.unique(labels, return_counts=True))}


def _shares(pixels: Counter) -> str:
    """The lowest values, each with its share of the pixels."""
    parts = [f"{raw} ({100 * pixels[raw] / pixels.total():.2g} %)" for raw in sorted(pixels)]
    rest = [f"... {len(parts) - VALUES_SHOWN} more"] if len(parts) > VALUES_SHOWN else []
    return ", ".join(parts[:VALUES_SHOWN] + rest)
