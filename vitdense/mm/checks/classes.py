"""Classes: those of the model against the heads, the data sets and their annotation files. All meet by name."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught, datasets
from vitdense.mm.config.classes import (
    annotation_file,
    effective_classes,
    model_classes,
    model_things,
    numbers_by_file,
)
from vitdense.mm.config.query import class_heads, nodes
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError, join_some


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    found = [(where, dataset, kind) for where, dataset, kind in datasets(cfg, splits) if kind is not None]
    yield from caught(_check_heads, cfg)
    for where, dataset, kind in found:
        yield from caught(_check_data, where, dataset, kind, cfg)
    trained = [dataset for where, dataset, _ in found if where.startswith("train")]
    for where, dataset, kind in found:
        yield from _compare_file(where, dataset, kind, trained)


def _categories(dataset: dict) -> tuple[str, ...] | None:
    """Names in the annotation file of a data set, if it is here and can be read; what is wrong with it others say."""
    ann_file = annotation_file(dataset)
    with suppress(ConfigError):
        return overview(Path(ann_file)).categories if ann_file and Path(ann_file).is_file() else None


def _check_data(where: str, dataset: dict, kind: type, cfg: Config) -> None:
    """A data set has the classes of the model, in its order: `follow_classes` gives them to all that can have them."""
    model, own = model_classes(cfg), effective_classes(dataset, kind)
    if None not in (model, own) and own != model:
        raise ConfigError(
            f"{where}: got the classes {join_some(own)}, expected those of the model, which are those of the training "
            f"data: {join_some(model)}; give the same class the same name in both"
        )


def _compare_file(where: str, dataset: dict, kind: type, trained: Sequence[dict]) -> Iterator[Finding]:
    """The classes of a data set are categories of its annotation file. A validation may lack some."""
    names, classes, ann_file = _categories(dataset), effective_classes(dataset, kind), annotation_file(dataset)
    if names is None or classes is None:
        return
    if numbers_by_file(kind) and classes != tuple(name for name in names if name in set(classes)):
        yield ConfigError(
            f"{where}: {kind.__name__} numbers labels in the order of {ann_file}, {join_some(names)}; the model has "
            f"{join_some(classes)}; set type='vitdense.CocoDataset', which reads them by name"
        )
        return
    if not (absent := [name for name in classes if name not in names]):
        return
    fault = f"{where}: {ann_file} has no category {join_some(absent)} of the classes; it has {join_some(names)}"
    anywhere = {name for part in trained for name in _categories(part) or ()}
    if len(absent) == len(classes) or (where.startswith("train") and not set(absent) <= anywhere):
        yield ConfigError(f"{fault}. Give the same class the same name, or leave it out of metainfo")
    else:
        yield fault


def _check_heads(cfg: Config) -> None:
    """Heads have the classes of the model, or its things alone: panoptic data also have classes of stuff. An RPN tells
    objects from background.

    Raises:
        ConfigError: One has another number.
    """
    if (got := (cfg.model.get("rpn_head") or {}).get("num_classes", 1)) != 1:
        raise ConfigError(f"model.rpn_head.num_classes: got {got}, expected 1, an object; leave it out of your config")
    if (classes := model_classes(cfg)) is None:
        return
    things = model_things(cfg)
    for path, head in class_heads(cfg.model):
        if head.get("num_classes") not in (None, len(classes), things):
            raise ConfigError(
                f"the data have {len(classes)} classes, but {path}.num_classes is {head['num_classes']}; set it to "
                f"{len(classes)}, or leave it out of your config: heads follow the data"
            )
        number = head.get("num_classes") or len(classes)
        for loss in nodes(head):
            weights = loss.get("class_weight")
            if isinstance(weights, (list, tuple)) and len(weights) not in (number, number + 1):
                raise ConfigError(
                    f"class_weight of {loss.get('type', 'a loss')} in {path}: got {len(weights)} weights, expected one "
                    f"for each of {number} classes, and one more for the background of a softmax"
                )
    expected = {"num_things_classes": len(classes) if things is None else things}
    expected["num_stuff_classes"] = len(classes) - expected["num_things_classes"]
    for head in nodes(cfg.model):  # Mask2Former's
        for key, number in expected.items():
            if head.get(key, number) != number:
                weights = " and the class_weight of its loss_cls" if "class_weight" in head.get("loss_cls", {}) else ""
                raise ConfigError(
                    f"the data have {number} classes of {key.split('_')[1]}, but {key} of "
                    f"{head.get('type', 'a part of the model')} is {head[key]}; set it{weights} accordingly, or leave "
                    f"it out of your config: heads follow the data"
                )
