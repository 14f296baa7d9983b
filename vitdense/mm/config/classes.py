"""Propagate class names from the training data to the other data sets, the heads and the metrics."""

from collections.abc import Sequence

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import METRICS, MODELS, Registry

from vitdense.families import arguments
from vitdense.mm.config import query
from vitdense.mm.data.classes import colours, difference
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError

# mmdet's types that number labels by the order or the ids of a file -> our types, which go by name.
BY_NAME = {
    "mmdet.datasets.coco.CocoDataset": "vitdense.CocoDataset",
    "mmdet.evaluation.metrics.coco_metric.CocoMetric": "vitdense.CocoMetric",
    "mmdet.evaluation.metrics.faster_coco_metric.FasterCocoMetric": "vitdense.FasterCocoMetric",
}


def _read_by_name(node: dict, kind: type | None) -> None:
    if kind is not None and (ours := BY_NAME.get(f"{kind.__module__}.{kind.__name__}")):
        node["type"] = ours


def _follow(dataset: dict, kind: type, classes: tuple[str, ...], decides: bool) -> None:
    """Give a data set the classes of the model in their order; the checks report data sets that lack them.

    `decides`: the model has its classes from data of this type.
    """
    given, own = dict(dataset.get("metainfo") or {}), query.dataset_classes(dataset, kind)
    if "classes" in given:
        if own != classes and (not set(own) <= set(classes) or query.numbers_by_file(kind)):
            return
        # Only `metainfo` names the values of label maps.
        if own != classes and hasattr(kind, "get_label_map") and not kind.METAINFO.get("classes"):
            dataset.setdefault("values", own)
            dataset["type"] = "vitdense.SegDataset"
        if own != classes and "palette" in given:
            given["palette"] = colours(classes, own, given["palette"])
    elif classes == kind.METAINFO.get("classes"):
        return  # mm's data set has them
    elif not decides and (own is None or query.numbers_by_file(kind) or not set(own) & set(classes)):
        return
    dataset["metainfo"] = {"palette": colours(classes), **given, "classes": classes}
    if query.is_panoptic(kind) and (file := query.local_file(dataset)):
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
    for _, dataset, kind in query.all_datasets(cfg):
        _read_by_name(dataset, kind)
    leaves, before = query.all_datasets(cfg), query.model_classes(cfg)
    classes = before if classes is None else tuple(classes)
    for _, dataset, kind in leaves:
        if kind is not None and classes is not None:
            _follow(dataset, kind, classes, decides=dataset["type"] == leaves[0][1]["type"])
    if classes is not None:
        _set_heads(cfg, len(classes), query.model_things(cfg))
        _order_weights(cfg, before, classes)
    for split in ("val", "test"):
        parts = [dataset for of, dataset, _ in leaves if of == split]
        files = list(map(query.annotation_file, parts))
        for metric in query.as_list(cfg.get(f"{split}_evaluator")):
            _read_by_name(metric, query.find_class(METRICS, metric["type"], cfg))
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
    leaves = [leaf for leaf in query.all_datasets(cfg) if hasattr(leaf[2], "follow")]
    found = next(filter(None, (kind.points_of(dataset) for _, dataset, kind in leaves)), None)
    for split, dataset, kind in leaves if found else ():
        kind.follow(dataset, found.in_order(names or found.keypoints), is_learned=split == leaves[0][0])


def follows(head: dict, cfg: Config) -> bool:
    """Whether a head gets the number of classes of the data.

    It does if it states none, or the number at the top of a recipe. If a part states another number, as in K-Net, the
    whole head keeps its own.
    """
    return all(part.get("num_classes") in (None, cfg.get("num_classes")) for part in query.nodes(head))


def _set_heads(cfg: Config, number: int, things: int | None) -> None:
    for _, head in query.class_heads(cfg.get("model")):
        if "num_classes" in _options(MODELS, head, cfg) and follows(head, cfg):
            head["num_classes"] = number
    for head in query.nodes(cfg.get("model")) if things is not None else ():
        if _options(MODELS, head, cfg).issuperset(query.PARTS):
            head.setdefault(query.PARTS[0], things)
            head.setdefault(query.PARTS[1], number - things)


def _options(registry: Registry, part: dict, cfg: Config) -> set[str]:
    kind = query.find_class(registry, part["type"], cfg) if "type" in part else None
    return set(arguments(kind) or ()) if kind is not None else set()


def _order_weights(cfg: Config, before: Sequence[str], classes: Sequence[str]) -> None:
    """Reorder the class weights of losses. A last extra weight is for the background, or for no object."""
    for loss in query.nodes(cfg.get("model")) if before != classes else ():
        weights = loss.get("class_weight")
        if isinstance(weights, (list, tuple)) and len(weights) in (len(classes), len(classes) + 1):
            loss["class_weight"] = [*(weights[before.index(name)] for name in classes), *weights[len(classes) :]]


def follow_checkpoint(cfg: Config, checkpoint: str, classes: Sequence[str] | None, fresh: bool = False) -> None:
    """Give a config, after `follow_classes`, the classes in the order of a checkpoint's outputs and optimizer.

    A checkpoint with other classes is refused, unless its heads are `fresh`, that is not loaded.
    """
    own = query.model_classes(cfg)
    if None in (own, classes) or own == tuple(classes):
        return
    if sorted(own) == sorted(classes):
        follow_classes(cfg, classes)
        print_log(f"the order of the classes is that of {checkpoint}: {', '.join(classes)}", logger="current")
    # If the number differs, the loader raises and names the parameters.
    if not fresh and len(own) == len(classes) and (fault := difference(classes, query.model_classes(cfg))):
        raise ConfigError(f"{checkpoint}: {fault}")
