"""Label maps: their values against the classes and settings of a config.

Labels that are off by one, or unlabelled pixels that are read as a class, silently train a wrong model.
"""

import inspect
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught, datasets_on_disk
from vitdense.mm.config.query import loads_labels
from vitdense.mm.data.images import FILES_READ, keeps_orientation
from vitdense.mm.data.label_maps import UNLABELLED, LabelMaps, build_dataset, decode_head, read_label_maps
from vitdense.mm.errors import ConfigError, join_some

VALUES_SHOWN = 20  # in a histogram


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for where, dataset, kind in datasets_on_disk(cfg, splits) if cfg.get("default_scope") == "mmseg" else ():
        yield from caught(check_label_maps, where, dataset, kind, cfg)


def check_label_maps(where: str, dataset: dict, kind: type, cfg: Config, number: int | None = FILES_READ) -> None:
    """Check that the label maps of an mmseg data set have the values that the head and the settings expect.

    Args:
        where: Name of the data set in messages; starts with ``train`` for a training set.
        dataset: Its config.
        kind: Its class.
        cfg: The whole config.
        number: See `read_label_maps`.

    Raises:
        ConfigError: There are no images, a label map is unreadable or has several channels or another size than its
            image, a value has no class, or ``reduce_zero_label`` is wrong. The message of the last two has the
            histogram of raw values.
    """
    head = decode_head(cfg)
    num_classes = head.get("num_classes")
    loader = next(filter(loads_labels, dataset.get("pipeline", ())), None)
    if loader is None or num_classes is None:
        return  # no labels, or a loader or model that is not mmseg's
    maps = read_label_maps(where, build_dataset(where, dataset), loader, number, keeps_orientation(dataset))
    check_sizes(where, maps)
    ignored = head.get("ignore_index", UNLABELLED)
    outputs = max(2, num_classes) if head.get("out_channels") == 1 else num_classes  # a sigmoid has 0 and 1
    labels = {raw: maps.label(raw) for raw in sorted(maps.pixels)}
    outside = [raw for raw, label in labels.items() if label != ignored and not 0 <= label < outputs]
    if set(labels.values()) <= {ignored} and where.startswith(("train", "val")):
        fault = f"have no pixel of a class: there is nothing to {'learn' if where.startswith('train') else 'evaluate'}"
        fix = "set ignore_index, label_map or reduce_zero_label, or label the images"
    elif outside:
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


def check_sizes(where: str, maps: LabelMaps) -> None:
    """Raise if label maps have another size than their image, as transposed ones do: mmseg would train on them."""
    if wrong := maps.wrong_sizes:
        raise ConfigError(f"{where}: {len(wrong)} label maps have another size than their image: {join_some(wrong)}")


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


def _shares(pixels: Counter) -> str:
    """The lowest values, each with its share of the pixels."""
    parts = [f"{raw} ({100 * pixels[raw] / pixels.total():.2g} %)" for raw in sorted(pixels)]
    rest = [f"... {len(parts) - VALUES_SHOWN} more"] if len(parts) > VALUES_SHOWN else []
    return ", ".join(parts[:VALUES_SHOWN] + rest)
