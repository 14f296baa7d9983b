"""What label maps hold against what a segmentor is told they hold.

Labels that are off by one, or a background that is taken for a class, train without a word into a model that is wrong.
"""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from vitdense.engine.config import ConfigError

# Label maps read per data set, evenly spaced: all 20210 of ADE20K would take minutes. A value as rare as one map in
# hundreds is therefore not seen. What rests on a value's absence is called an error only if more maps lack it too.
MAPS_READ, MAPS_READ_IN_DOUBT = 100, 1000
RUNS_SHOWN = 16  # of consecutive values, in a histogram
IGNORED = 255  # what mmseg turns an unlabelled pixel into, and what a head ignores unless told otherwise


def loads_labels(step: object) -> bool:
    """Whether a step of a pipeline is mmseg's own loader of label maps."""
    kind = step.get("type") if isinstance(step, dict) else None
    return getattr(kind, "__name__", kind) in ("LoadAnnotations", "mmseg.LoadAnnotations")


def _label_loader(node: object) -> dict | None:
    """The first loader of label maps in a pipeline; it may stand in a step that holds others, as for test time."""
    if loads_labels(node):
        return node
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return next((loader for loader in map(_label_loader, parts) if loader is not None), None)


@dataclass(frozen=True)
class _Labels:
    """What a config makes of the raw values of label maps."""

    num_classes: int
    reduce_zero_label: bool
    ignore_index: int
    one_output: bool  # a sigmoid, which tells 0 from 1 also where `num_classes` is 1
    label_map: Mapping[int, int] | None  # where classes were chosen among those of the data set's type
    own_classes: bool  # the type of the data set brings its classes
    usually_reduced: bool  # and takes 0 out unless told otherwise
    for_training: bool

    def trained_on(self, raw: int) -> int | None:
        """The label that mmseg makes of a raw value: 0 taken out first, then classes chosen. None: it is ignored."""
        label = raw
        if self.reduce_zero_label:
            label = IGNORED if raw in (0, IGNORED) else raw - 1
        label = (self.label_map or {}).get(label, label)
        return None if label == self.ignore_index else label

    def outside(self, values: Mapping[int, int]) -> list[int]:
        """The raw values that no output stands for; beyond 8 bits mmseg reads another value."""
        outputs = max(2, self.num_classes) if self.one_output else self.num_classes
        labels = {raw: self.trained_on(raw) for raw in values}
        return sorted(raw for raw, x in labels.items() if not 0 <= raw <= 255 or not (x is None or 0 <= x < outputs))

    def fault(self, values: Mapping[int, int]) -> str | None:
        """What is wrong with these settings for maps of these raw values, given as pixels by value; None: nothing."""
        outside, labels = self.outside(values), {self.trained_on(raw) for raw in values} - {None}
        if outside:
            wide = ", and mmseg reads 8 bits alone" if outside[-1] > 255 else ""
            return f"hold {_runs(outside)}, which no class stands for{wide}"
        if not labels:
            return "have no pixel with a label: all are ignored"
        if self.label_map is None and self._are_shifted(values):
            if self.reduce_zero_label:
                return f"start at class 0; with 0 taken out, class {self.num_classes - 1} never occurs"
            return "have 0 for unlabelled pixels, as is usual for this type of data set; all labels would be one up"
        if self.for_training and self.num_classes == 2 and set(values) == {0, IGNORED} and labels == {0}:
            return "hold 0 and 255 alone, and 255 is ignored, so that class 1 never occurs; write 1 in place of 255"
        return None

    def _are_shifted(self, values: Mapping[int, int]) -> bool:
        """Whether all labels fit, but surely are those of the next class."""
        if self.reduce_zero_label:
            # A split to evaluate on may just lack the last class, as may one of a type that is usually reduced; there
            # it takes pixels of 255 to tell that 0 does not mean unlabelled.
            sure = IGNORED in values or (self.for_training and not self.usually_reduced)
            return sure and set(range(self.num_classes)) <= set(values) and self.num_classes not in values
        # Maps of such a type whose labels were moved down beforehand have 255 where these have 0.
        return self.usually_reduced and 0 in values and IGNORED not in values

    def fitting(self, values: Mapping[int, int]) -> list[str]:
        """Settings without fault, as one would write them, with what they mean; of two changes only if one will not do.

        Args:
            values: Pixels by raw value, for which these settings have a fault.
        """
        toggled = replace(self, reduce_zero_label=not self.reduce_zero_label)
        toggle = f"reduce_zero_label={toggled.reduce_zero_label} in the data set"
        tries = [(f"{toggle} (0 {'means unlabelled' if toggled.reduce_zero_label else 'is a class'})", toggled)]
        tries += self._with_more_classes(values)
        outside = self.outside(values)
        if len(outside) == 1:
            index = self.trained_on(outside[0])
            how = f"ignore_index={index} in decode_head and evaluator ({outside[0]} means unlabelled)"
            tries.append((how, replace(self, ignore_index=index)))
        fits = [how for how, labels in tries if labels.fault(values) is None]
        both = [(f"{toggle} and {how}", labels) for how, labels in toggled._with_more_classes(values)]
        return fits or [how for how, labels in both if labels.fault(values) is None]

    def _with_more_classes(self, values: Mapping[int, int]) -> list[tuple[str, "_Labels"]]:
        """As many classes as labels need, unless most would have no pixel: then a stray value is more likely."""
        labels = {self.trained_on(raw) for raw in values} - {None}
        count = max(labels, default=0) + 1
        if self.own_classes or not self.num_classes < count <= 2 * max(len(labels), self.num_classes):
            return []
        how = f"num_classes={count} in the heads and {count} names in metainfo.classes (every value is a class)"
        return [(how, replace(self, num_classes=count))]


def check_label_maps(where: str, dataset: dict, kind: type, cfg: Config) -> None:
    """The label maps of a data set of mmseg must hold what the heads and settings of a config expect.

    Args:
        where: Names the data set in messages; starts with ``train`` if it is to train on.
        dataset: Its config.
        kind: Its class.
        cfg: The whole config.

    Raises:
        ConfigError: They do not; with the histogram of raw values, and the settings that would fit.
    """
    loader = _label_loader(dataset.get("pipeline"))
    backend = (dataset.get("backend_args") or {}).get("backend", "local")
    if loader is None or backend != "local":
        return  # without labels; or read in a way, or from a place, that only the data set knows
    with DATASETS.switch_scope_and_registry("mmseg") as registry:
        built = registry.build({**dataset, "pipeline": [], "serialize_data": False})  # which fails on no image
    if len(built) == 0:
        raise ConfigError(
            f"{where}: the data set is empty: img_suffix, ann_file, indices and filter_cfg leave no image of those in "
            f"{built.data_prefix}"
        )
    sample = built.get_data_info(0)
    heads = cfg.model.get("decode_head") or {}
    for head in heads if isinstance(heads, (list, tuple)) else [heads]:
        classes = head.get("num_classes") or len(built.metainfo.get("classes") or ())
        if classes and "seg_map_path" in sample:
            index = head.get("ignore_index")  # None where a loss masks the ignored itself
            labels = _Labels(
                num_classes=classes,
                reduce_zero_label=sample.get("reduce_zero_label", False),
                ignore_index=IGNORED if index is None else index,
                one_output=head.get("out_channels", classes) == 1,
                label_map=sample.get("label_map"),
                own_classes=bool(kind.METAINFO.get("classes")),
                usually_reduced=_usually_reduced(kind),
                for_training=where.startswith("train"),
            )
            _check_values(where, built, labels, loader.get("imdecode_backend", "pillow"))


def _usually_reduced(kind: type) -> bool:
    """Whether a type of data set takes 0 out of its label maps unless told otherwise."""
    signatures = (inspect.signature(base.__init__).parameters for base in kind.__mro__[:-1])
    return next((bool(x["reduce_zero_label"].default) for x in signatures if "reduce_zero_label" in x), False)


def _check_values(where: str, dataset: BaseDataset, labels: _Labels, decoder: str) -> None:
    """Read label maps, and more where an error would rest on what the first do not hold."""
    values, first_in, read = Counter(), {}, set()
    for limit in (MAPS_READ, MAPS_READ_IN_DOUBT):
        spaced = np.linspace(0, len(dataset) - 1, min(limit, len(dataset))).astype(int).tolist()
        for i in (i for i in spaced if i not in read):
            sample = dataset.get_data_info(i)
            found = _histogram(where, sample["seg_map_path"], sample["img_path"], decoder)
            values.update(found)
            for raw in found:
                first_in.setdefault(raw, sample["seg_map_path"])
        read.update(spaced)
        fault = labels.fault(values)
        if fault is None:
            return
        outside = labels.outside(values)
        if outside:
            break
    fits = labels.fitting(values)
    index = "" if labels.ignore_index == IGNORED else f" and ignore_index={labels.ignore_index}"
    raise ConfigError(
        f"{where}: label maps {fault}. Got raw values {_runs(sorted(values), values)} in {len(read)} of {len(dataset)} "
        f"maps, {f'{outside[0]} first in' if outside else 'such as'} {first_in[(outside or sorted(values))[0]]}; "
        f"expected those of num_classes={labels.num_classes} with reduce_zero_label={labels.reduce_zero_label}{index}. "
        + (
            f"What fits: {'; or '.join(fits)}"
            if fits
            else f"No setting fits: write the maps anew, 0 to {labels.num_classes - 1} for the classes and 255 for "
            "unlabelled pixels"
        )
    )


def _histogram(where: str, path: str, image: str, decoder: str) -> dict[int, int]:
    """Pixels by raw value of one label map.

    Raises:
        ConfigError: There is no such file, it is not an image, or not one of class indices.
    """
    if not Path(path).is_file():
        raise ConfigError(
            f"{where}: {image} has no label map {path}; seg_map_suffix and data_prefix.seg_map_path say where they are"
        )
    try:
        # As mmseg's loader does it. Its decoders fail each in its own way, and one returns None.
        pixels = mmcv.imfrombytes(Path(path).read_bytes(), flag="unchanged", backend=decoder).squeeze()
    except Exception as error:
        raise ConfigError(f"{where}: label map {path} cannot be read ({type(error).__name__}: {error})") from error
    if pixels.ndim != 2 or pixels.dtype.kind not in "biu":
        alike = pixels.ndim == 3 and (pixels[..., :3] == pixels[..., :1]).all()
        raise ConfigError(
            f"{where}: label map {path} has shape {pixels.shape} and type {pixels.dtype}; expected one channel of "
            f"class indices, [height, width] of uint8. "
            + (
                "Its channels are alike: save the first alone"
                if alike
                else "If its colours stand for classes, write the index of each pixel's colour instead"
            )
        )
    return {int(raw): int(count) for raw, count in zip(*np.unique(pixels, return_counts=True))}


def _runs(values: Sequence[int], pixels: Mapping[int, int] | None = None) -> str:
    """Ascending values as runs of consecutive ones, each with its share of the pixels if those are given."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = []
    for run in runs:
        part = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
        if pixels is not None:
            part += f" ({100 * sum(pixels[v] for v in run) / sum(pixels.values()):.2g} %)"
        parts.append(part)
    if len(parts) > RUNS_SHOWN:  # the ends tell most
        half = RUNS_SHOWN // 2
        parts = [*parts[:half], f"... {len(parts) - 2 * half} runs ...", *parts[-half:]]
    return ", ".join(parts)
