"""Check of label maps: the values they hold against the classes and settings of a config.

Labels that are off by one, or a background that is taken for a class, silently train a wrong model.
"""

import inspect
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.engine.config import ConfigError

MAPS_READ = 200  # per data set, evenly spaced: all 20210 of ADE20K would take minutes. A very rare value is not seen.
VALUES_SHOWN = 20  # in a histogram
UNLABELLED = 255  # what mmseg makes of an unlabelled pixel, and what a head ignores by default


def loads_labels(step: object) -> bool:
    """Whether a step of a pipeline is mmseg's own loader of label maps."""
    kind = step.get("type") if isinstance(step, dict) else None
    return getattr(kind, "__name__", kind) in ("LoadAnnotations", "mmseg.LoadAnnotations")


def _label_loader(node: object) -> dict | None:
    """The first loader of label maps in a pipeline; a step may hold others, as in test-time augmentation."""
    if loads_labels(node):
        return node
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return next((loader for loader in map(_label_loader, parts) if loader is not None), None)


def check_label_maps(where: str, dataset: dict, kind: type, cfg: Config) -> None:
    """Check that the label maps of a data set of mmseg hold what the head and settings of a config expect.

    Args:
        where: Name of the data set in messages; starts with ``train`` for a training set.
        dataset: Its config.
        kind: Its class.
        cfg: The whole config.

    Raises:
        ConfigError: There are no images, or a label map is missing, unreadable or not of one channel. Or a value
            stands for no class, or ``reduce_zero_label`` is wrong: the message has the histogram of raw values.
    """
    loader = _label_loader(dataset.get("pipeline"))
    backend = (dataset.get("backend_args") or {}).get("backend", "local")
    if loader is None or backend != "local":
        return  # no labels, or a loader or storage service that only the data set knows
    with DATASETS.switch_scope_and_registry("mmseg") as registry:
        built = registry.build({**dataset, "pipeline": [], "serialize_data": False})
    if len(built) == 0:
        raise ConfigError(
            f"{where}: the data set is empty: img_suffix, ann_file, indices and filter_cfg leave no image of those in "
            f"{built.data_prefix}"
        )
    head = cfg.model.get("decode_head") or {}
    head = head[-1] if isinstance(head, (list, tuple)) else head
    num_classes = head.get("num_classes") or len(built.metainfo.get("classes") or ())
    sample = built.get_data_info(0)
    if not num_classes or "seg_map_path" not in sample:
        return
    pixels, first_in = Counter(), {}
    chosen = np.linspace(0, len(built) - 1, min(MAPS_READ, len(built))).astype(int).tolist()
    for i in chosen:
        path = built.get_data_info(i)["seg_map_path"]
        found = _histogram(where, path, loader.get("imdecode_backend", "pillow"))
        pixels.update(found)
        first_in = dict.fromkeys(found, path) | first_in

    reduced, label_map = sample.get("reduce_zero_label", False), sample.get("label_map")
    ignored = UNLABELLED if head.get("ignore_index") is None else head["ignore_index"]
    outputs = max(2, num_classes) if head.get("out_channels") == 1 else num_classes  # one sigmoid tells 0 from 1
    trained = {raw: _trained_label(raw, reduced, label_map or {}) for raw in sorted(pixels)}
    outside = [raw for raw, label in trained.items() if label != ignored and not 0 <= label < outputs]
    if outside:
        fault = f"hold {', '.join(map(str, outside[:10]))} (first in {first_in[outside[0]]}), which no class stands for"
        fix = "set num_classes and classes, reduce_zero_label (True: 0 means unlabelled) or ignore_index to fit them"
    else:
        fault = _zero_fault(pixels, num_classes, reduced, kind, where.startswith("train")) if not label_map else None
        fix = f"set reduce_zero_label={not reduced} in the data set"
    if fault is not None:
        raise ConfigError(
            f"{where}: label maps {fault}. Got raw values {_shares(pixels)} in {len(chosen)} of {len(built)} maps; "
            f"expected those of num_classes={num_classes}, reduce_zero_label={reduced}, ignore_index={ignored}; {fix}"
        )


def _trained_label(raw: int, reduced: bool, label_map: Mapping[int, int]) -> int:
    """The label that mmseg makes of a raw value: 0 is taken out first, then classes are chosen."""
    if reduced:
        raw = UNLABELLED if raw in (0, UNLABELLED) else raw - 1
    return label_map.get(raw, raw)


def _zero_fault(values: Collection[int], num_classes: int, reduced: bool, kind: type, training: bool) -> str | None:
    """What is wrong with ``reduce_zero_label`` for maps whose labels all fit; None: nothing is surely wrong."""
    default = inspect.signature(kind).parameters.get("reduce_zero_label")
    usually_reduced = default is not None and default.default is True
    if not reduced:
        # Maps of such a type whose labels were moved down beforehand have 255 where these have 0.
        if usually_reduced and 0 in values and UNLABELLED not in values:
            return f"have 0 for unlabelled pixels, as is usual for {kind.__name__}, but 0 is taken for a class"
        return None
    # The last class may just not occur in a validation set, or in a type that is usually reduced. There, only pixels
    # of 255 show that 0 does not mean unlabelled.
    if UNLABELLED not in values and (usually_reduced or not training):
        return None
    if set(range(num_classes)) <= set(values) and num_classes not in values:
        return f"have 0 for a class, but 0 is taken out, and class {num_classes - 1} never occurs"
    return None


def _histogram(where: str, path: str, decoder: str) -> dict[int, int]:
    """Pixels by raw value of one label map.

    Raises:
        ConfigError: There is no such file, it is not an image, or not one of class indices.
    """
    if not Path(path).is_file():
        raise ConfigError(
            f"{where}: label map {path} is not there; seg_map_suffix and data_prefix.seg_map_path say where they are"
        )
    try:  # as mmseg's loader does it; each decoder fails in its own way, and one returns None
        labels = mmcv.imfrombytes(Path(path).read_bytes(), flag="unchanged", backend=decoder).squeeze()
    except Exception as error:
        raise ConfigError(f"{where}: label map {path} cannot be read ({type(error).__name__}: {error})") from error
    if labels.ndim != 2 or labels.dtype.kind not in "biu":
        raise ConfigError(
            f"{where}: label map {path}: got shape {labels.shape} and type {labels.dtype}, expected one channel of "
            "class indices, [height, width] of uint8; write the index of each pixel's colour, or one of equal channels"
        )
    return {int(raw): int(count) for raw, count in zip(*np.unique(labels, return_counts=True))}


def _shares(pixels: Counter) -> str:
    """The values in ascending order, each with its share of the pixels; of many, the lowest and highest."""
    parts = [f"{raw} ({100 * pixels[raw] / pixels.total():.2g} %)" for raw in sorted(pixels)]
    if len(parts) > VALUES_SHOWN:
        half = VALUES_SHOWN // 2
        parts[half:-half] = [f"... {len(parts) - 2 * half} more ..."]
    return ", ".join(parts)
