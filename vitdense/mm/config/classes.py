"""Propagate class names from the training data to the other data sets, the heads and the metrics."""

import os
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS, METRICS, MODELS, Registry

from vitdense.families import arguments
from vitdense.files import read_text
from vitdense.mm.config.query import SPLITS, as_list, class_heads, find_class, leaf_datasets, nodes
from vitdense.mm.data.classes import clean, colours, difference
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError

# mmdet's types that number labels by the order or the ids of a file -> our types, which go by name.
BY_NAME = {
    "mmdet.datasets.coco.CocoDataset": "vitdense.CocoDataset",
    "mmdet.evaluation.metrics.coco_metric.CocoMetric": "vitdense.CocoMetric",
    "mmdet.evaluation.metrics.faster_coco_metric.FasterCocoMetric": "vitdense.FasterCocoMetric",
}


PARTS = ("num_things_classes", "num_stuff_classes")  # of a panoptic head


def reads_coco(kind: type) -> bool:
    """Whether a data set reads instances as mmdet's CocoDataset does. Panoptic data and LVIS have other keys."""
    coco = next((base for base in kind.__mro__ if base.__name__ == "CocoDataset"), None)
    return all(getattr(kind, name) is getattr(coco, name, None) for name in ("parse_data_info", "load_data_list"))


def is_panoptic(kind: type) -> bool:
    """Whether a data set has segments of things and of stuff, as mmdet's CocoPanopticDataset."""
    return "thing_classes" in getattr(kind, "METAINFO", {})


def numbers_by_file(kind: type) -> bool:
    """Whether a data set numbers labels by the order of categories in its file, whatever its `metainfo` says."""
    return hasattr(kind, "COCOAPI") and not hasattr(kind.COCOAPI, "by_name")


def annotation_file(dataset: dict) -> str | None:
    """Path or address of the JSON file of annotations of a data set, which may not exist; None if it has none."""
    name = str(dataset.get("ann_file") or "")
    return os.path.join(dataset.get("data_root") or "", name) if name.endswith(".json") else None


def _file_here(dataset: dict) -> Path | None:
    path = Path(annotation_file(dataset) or os.sep)
    return path if path.is_file() else None


def _states_classes(dataset: dict) -> bool:
    """Whether the config or the annotation file of a data set names its classes, and not only its type."""
    return "classes" in (dataset.get("metainfo") or {}) or _file_here(dataset) is not None


def dataset_classes(dataset: dict, kind: type) -> tuple[str, ...] | None:
    """Class names of a data set: from its `metainfo`, else its annotation file, else its type."""
    given = (dataset.get("metainfo") or {}).get("classes")
    if given is not None:
        return tuple(map(clean, read_text(given).splitlines() if isinstance(given, str) else given))
    if file := _file_here(dataset):
        found = overview(file)
        return found.things_first if is_panoptic(kind) else found.categories
    known = kind.METAINFO.get("classes")
    return None if known is None else tuple(known)


def _read_by_name(node: dict, kind: type | None) -> None:
    if kind is not None and (ours := BY_NAME.get(f"{kind.__module__}.{kind.__name__}")):
        node["type"] = ours


def effective_classes(dataset: dict, kind: type) -> tuple[str, ...] | None:
    """Class names that mm will give a data set: from its `metainfo`, else its type."""
    return dataset_classes({"metainfo": dataset.get("metainfo")}, kind)


def model_classes(cfg: Config) -> tuple[str, ...] | None:
    """Class names of the model in the order of its labels: of all training data sets without duplicates, else of the
    other data."""
    deciding, kind = _deciding(cfg)
    if len(deciding) == 1:
        return dataset_classes(deciding[0], kind) if kind else None
    names = dict.fromkeys(name for dataset in deciding for name in dataset_classes(dataset, kind) or ())
    if kind is not None and is_panoptic(kind):
        things = {name for dataset in deciding for name in _things(dataset, kind) or ()}
        return tuple(sorted(names, key=lambda name: name not in things))
    return tuple(names) or None


def model_things(cfg: Config) -> int | None:
    """How many of `model_classes` are things; None for data without stuff."""
    deciding, kind = _deciding(cfg)
    if kind is None or not is_panoptic(kind):
        return None
    things = [_things(dataset, kind) for dataset in deciding]
    return None if None in things else len({name for names in things for name in names})


def lacks_classes(cfg: Config) -> bool:
    """Whether a config has the classes of an annotation file that is not on this machine."""
    deciding, kind = _deciding(cfg)
    absent = any(annotation_file(dataset) and not _states_classes(dataset) for dataset in deciding)
    return absent and kind is not None and not getattr(kind, "drawn_on_demand", False)


def _things(dataset: dict, kind: type) -> Sequence[str] | None:
    return (dataset.get("metainfo") or kind.METAINFO).get("thing_classes")


def _deciding(cfg: Config) -> tuple[list[dict], type | None]:
    """The data sets that decide the classes, all of one split and type; and that type."""
    leaves = _data_sets(cfg)
    alike = [leaf for leaf in leaves if leaf[1]["type"] == leaves[0][1]["type"]]
    # The training file may be on another machine.
    stating = [leaf for leaf in alike if _states_classes(leaf[1])] or alike[:1]
    datasets = [dataset for split, dataset, _ in stating if split == stating[0][0]]
    stated = [dataset for dataset in datasets if "classes" in (dataset.get("metainfo") or {})]
    return stated or datasets, stating[0][2] if stating else None


def _data_sets(cfg: Config) -> list[tuple[str, dict, type | None]]:
    found = []
    for split in SPLITS:
        for dataset in leaf_datasets(cfg[f"{split}_dataloader"].dataset) if cfg.get(f"{split}_dataloader") else ():
            found.append((split, dataset, find_class(DATASETS, dataset["type"], cfg)))
    return found


def _follow(dataset: dict, kind: type, classes: tuple[str, ...], decides: bool) -> None:
    """Give a data set the classes of the model in their order; the checks report data sets that lack them.

    `decides`: the model has its classes from data of this type.
    """
    given, own = dict(dataset.get("metainfo") or {}), dataset_classes(dataset, kind)
    if "classes" in given:
        if own != classes and (not set(own) <= set(classes) or numbers_by_file(kind)):
            return
        # Only `metainfo` names the values of label maps.
        if own != classes and hasattr(kind, "get_label_map") and not kind.METAINFO.get("classes"):
            dataset.setdefault("values", own)
            dataset["type"] = "vitdense.SegDataset"
        if own != classes and "palette" in given:
            given["palette"] = colours(classes, own, given["palette"])
    elif classes == kind.METAINFO.get("classes"):
        return  # mm's data set has them
    elif not decides and (own is None or numbers_by_file(kind) or not set(own) & set(classes)):
        return
    dataset["metainfo"] = {"palette": colours(classes), **given, "classes": classes}
    if is_panoptic(kind) and (file := _file_here(dataset)):
        things = set(overview(file).things)
        parts = {"thing_classes": things & set(classes), "stuff_classes": set(classes) - things}
        dataset["metainfo"] |= {key: tuple(name for name in classes if name in part) for key, part in parts.items()}


def follow_classes(cfg: Config, classes: Sequence[str] | None = None) -> None:
    """Propagate the classes of the training data through a config, in place.

    Data sets get them in one order and read labels by name. Heads get their number. Metrics without `ann_file` get the
    annotation file of their data set.

    Args:
        cfg: The config.
        classes: The same classes in the order of a checkpoint.
    """
    for _, dataset, kind in _data_sets(cfg):
        _read_by_name(dataset, kind)
    leaves, before = _data_sets(cfg), model_classes(cfg)
    classes = before if classes is None else tuple(classes)
    for _, dataset, kind in leaves:
        if kind is not None and classes is not None:
            _follow(dataset, kind, classes, decides=dataset["type"] == leaves[0][1]["type"])
    if classes is not None:
        _set_heads(cfg, len(classes), model_things(cfg))
        _order_weights(cfg, before, classes)
    for split in ("val", "test"):
        parts = [dataset for of, dataset, _ in leaves if of == split]
        files = list(map(annotation_file, parts))
        for metric in as_list(cfg.get(f"{split}_evaluator")):
            _read_by_name(metric, find_class(METRICS, metric["type"], cfg))
            taken = _options(METRICS, metric, cfg)
            if len(files) == 1 and files[0] is not None and "ann_file" in taken:
                metric.setdefault("ann_file", files[0])
                if parts[0].get("drop_doubles") and "drop_doubles" in taken:
                    metric.setdefault("drop_doubles", True)
    follow_points(cfg)


def follow_points(cfg: Config, names: Sequence[str] | None = None) -> None:
    """Give data sets with named points, such as keypoints, the order of the first data set, or of `names`.

    Other names in a data set are a ConfigError.
    """
    leaves = [leaf for leaf in _data_sets(cfg) if hasattr(leaf[2], "follow")]
    found = next(filter(None, (kind.points_of(dataset) for _, dataset, kind in leaves)), None)
    for split, dataset, kind in leaves if found else ():
        kind.follow(dataset, found.in_order(names or found.keypoints), is_learned=split == leaves[0][0])


def follows(head: dict, cfg: Config) -> bool:
    """Whether a head gets the number of classes of the data.

    It does if it states none, or the number at the top of a recipe. If a part states another number, as in K-Net, the
    whole head keeps its own.
    """
    return all(part.get("num_classes") in (None, cfg.get("num_classes")) for part in nodes(head))


def _set_heads(cfg: Config, number: int, things: int | None) -> None:
    for _, head in class_heads(cfg.get("model")):
        if "num_classes" in _options(MODELS, head, cfg) and follows(head, cfg):
            head["num_classes"] = number
    for head in nodes(cfg.get("model")) if things is not None else ():
        if _options(MODELS, head, cfg).issuperset(PARTS):
            head.setdefault(PARTS[0], things)
            head.setdefault(PARTS[1], number - things)


def _options(registry: Registry, part: dict, cfg: Config) -> set[str]:
    kind = find_class(registry, part["type"], cfg) if "type" in part else None
    return set(arguments(kind) or ()) if kind is not None else set()


def class_counts(model: dict) -> set[int]:
    """The numbers of classes that a model's heads state; things and stuff are summed."""
    found = {head.get("num_classes") for _, head in class_heads(model)} - {None}
    return found | {sum(head[part] for part in PARTS) for head in nodes(model) if head.keys() >= {*PARTS}}


def _order_weights(cfg: Config, before: Sequence[str], classes: Sequence[str]) -> None:
    """Reorder the class weights of losses. A last extra weight is for the background, or for no object."""
    for loss in nodes(cfg.get("model")) if before != classes else ():
        weights = loss.get("class_weight")
        if isinstance(weights, (list, tuple)) and len(weights) in (len(classes), len(classes) + 1):
            loss["class_weight"] = [*(weights[before.index(name)] for name in classes), *weights[len(classes) :]]


def follow_checkpoint(cfg: Config, checkpoint: str, classes: Sequence[str] | None, fresh: bool = False) -> None:
    """Give a config, after `follow_classes`, the classes in the order of a checkpoint's outputs and optimizer.

    A checkpoint with other classes is refused, unless its heads are `fresh`, that is not loaded.
    """
    own = model_classes(cfg)
    if None in (own, classes) or own == tuple(classes):
        return
    if sorted(own) == sorted(classes):
        follow_classes(cfg, classes)
        print_log(f"the order of the classes is that of {checkpoint}: {', '.join(classes)}", logger="current")
    # If the number differs, the loader raises and names the parameters.
    if not fresh and len(own) == len(classes) and (fault := difference(classes, model_classes(cfg))):
        raise ConfigError(f"{checkpoint}: {fault}")
