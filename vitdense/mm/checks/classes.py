"""Classes: those of the data set against the heads, and against its annotation file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught, datasets
from vitdense.mm.config.classes import annotation_file, dataset_classes, is_panoptic
from vitdense.mm.config.walk import class_heads, nodes
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for where, dataset, kind in datasets(cfg, splits):
        if kind is not None:
            yield from caught(_check, where, dataset, kind, cfg)


def _check(where: str, dataset: dict, kind: type, cfg: Config) -> None:
    classes = dataset_classes(dataset, kind)
    if classes is None:
        return
    _check_heads(where, cfg, len(classes), len(kind.METAINFO.get("thing_classes", classes)))
    json_file = annotation_file(dataset)
    if json_file and Path(json_file).is_file() and not is_panoptic(kind):  # whose labels are by name
        _check_categories(where, Path(json_file), classes)


def _check_heads(where: str, cfg: Config, num_classes: int, num_things: int) -> None:
    """Heads have the classes of the data set, or its things alone: panoptic data also have classes of stuff. An RPN
    tells objects from background."""
    if (got := (cfg.model.get("rpn_head") or {}).get("num_classes", 1)) != 1:
        raise ConfigError(f"model.rpn_head.num_classes: got {got}, expected 1, an object; leave it out of your config")
    for path, head in class_heads(cfg.model):
        if head.get("num_classes") not in (None, num_classes, num_things):
            raise ConfigError(
                f"{where}: the data set has {num_classes} classes, but {path}.num_classes is {head['num_classes']}; "
                f"set it to {num_classes}, or leave it out of your config: heads follow the data set"
            )
    for head in nodes(cfg.model):  # Mask2Former's
        total = head.get("num_things_classes", num_classes) + head.get("num_stuff_classes", 0)
        if total not in (num_classes, num_things):
            raise ConfigError(
                f"{where}: the data set has {num_classes} classes, but num_things_classes + num_stuff_classes of "
                f"{head.get('type', 'a part of the model')} is {total}; set them, and the class_weight of its loss"
            )


def _check_categories(where: str, ann_file: Path, classes: tuple[str, ...]) -> None:
    """The classes must be categories of the file, in its order: mmdet numbers labels in that order."""
    names = overview(ann_file).categories
    if classes != tuple(name for name in names if name in set(classes)):
        unknown = [name for name in classes if name not in names]
        raise ConfigError(
            f"{where}: got classes {', '.join(classes)}; expected categories of {ann_file}, in its order, or labels "
            f"would be swapped: {', '.join(names)}. Not in the file: {', '.join(unknown) or 'none'}. Set "
            f"metainfo=dict(classes=(...)) of the data set"
        )
