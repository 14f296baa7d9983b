"""The classes of the training data decide: the other data sets, the heads and the metrics follow."""

import os
from pathlib import Path

from mmengine.config import Config
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS, METRICS, MODELS

from vitdense.families import arguments
from vitdense.inspect.draw import distinct_colours
from vitdense.mm.config.walk import as_list, class_heads, find_class, leaf_datasets, nodes
from vitdense.mm.data.coco import overview


def reads_coco(kind: type) -> bool:
    """Whether a data set reads instances as mmdet's CocoDataset does. Panoptic data and LVIS have other keys."""
    coco = next((base for base in kind.__mro__ if base.__name__ == "CocoDataset"), None)
    return all(getattr(kind, name) is getattr(coco, name, None) for name in ("parse_data_info", "load_data_list"))


def is_panoptic(kind: type) -> bool:
    """Whether a data set has segments of things and of stuff, as mmdet's CocoPanopticDataset."""
    return "thing_classes" in getattr(kind, "METAINFO", {})


def annotation_file(dataset: dict) -> str | None:
    """Path or address of the JSON file of annotations of a data set, which may not exist; None if it has none."""
    name = str(dataset.get("ann_file") or "")
    return os.path.join(dataset.get("data_root") or "", name) if name.endswith(".json") else None


def _states_classes(dataset: dict) -> bool:
    """Whether a data set says which classes it has, rather than its type."""
    ann_file = annotation_file(dataset)
    return "classes" in (dataset.get("metainfo") or {}) or (ann_file is not None and Path(ann_file).is_file())


def dataset_classes(dataset: dict, kind: type) -> tuple[str, ...] | None:
    """Class names of a data set: of its `metainfo`, else of its annotation file, else of its type.

    Raises:
        ConfigError: The annotation file is not in COCO format.
    """
    given = (dataset.get("metainfo") or {}).get("classes")
    if given is not None:
        return tuple(list_from_file(given) if isinstance(given, str) else given)
    ann_file = annotation_file(dataset)
    if ann_file is not None and Path(ann_file).is_file():
        found = overview(Path(ann_file))
        return found.things_first if is_panoptic(kind) else found.categories
    known = kind.METAINFO.get("classes")
    return None if known is None else tuple(known)


def _set_things(cfg: Config, things: int, stuff: int) -> None:
    """Set the numbers of classes of panoptic heads that do not state them."""
    for head in nodes(cfg.get("model")):
        head_kind = find_class(MODELS, head["type"], cfg) if "type" in head else None
        if head_kind is not None and {"num_things_classes", "num_stuff_classes"} <= (arguments(head_kind) or {}).keys():
            head.setdefault("num_things_classes", things)
            head.setdefault("num_stuff_classes", stuff)


def follow_classes(cfg: Config) -> None:
    """Complete a config by the classes of its training data, in place.

    Set only where they are missing: `metainfo` of the data sets of the same type, `num_classes` of the heads in
    `CLASS_HEADS`, and `ann_file` of metrics, which is that of their data set.
    """
    loaders = {split: cfg.get(f"{split}_dataloader") for split in ("train", "val", "test")}
    datasets = {split: list(leaf_datasets(loader.dataset)) for split, loader in loaders.items() if loader}
    leaves = [dataset for parts in datasets.values() for dataset in parts]
    leaves = [dataset for dataset in leaves if dataset["type"] == leaves[0]["type"]]
    kind = find_class(DATASETS, leaves[0]["type"], cfg) if leaves else None
    stated = [dataset for dataset in leaves if _states_classes(dataset)]  # the training file may be on another machine
    classes = dataset_classes((stated or leaves)[0], kind) if kind is not None else None
    if classes is not None:
        if classes != kind.METAINFO.get("classes"):  # with a palette, for the type's may be shorter
            colours = [tuple(colour) for colour in distinct_colours(len(classes)).tolist()]  # mmdet takes no lists
            own = {"classes": classes, "palette": colours}
            if is_panoptic(kind) and (ann_file := annotation_file((stated or leaves)[0])) and Path(ann_file).is_file():
                things = overview(Path(ann_file)).things
                own |= {"thing_classes": things, "stuff_classes": tuple(x for x in classes if x not in set(things))}
                _set_things(cfg, len(things), len(classes) - len(things))
            for dataset in leaves:
                given = dataset.get("metainfo") or {}
                if tuple(given.get("classes", classes)) == classes:
                    dataset["metainfo"] = own | given
        for _, head in class_heads(cfg.get("model")):
            head_kind = find_class(MODELS, head["type"], cfg) if "type" in head else None
            # A part that states it, as of K-Net, speaks for the whole head.
            takes = head_kind is not None and "num_classes" in (arguments(head_kind) or ())
            if takes and all(part.get("num_classes") is None for part in nodes(head)):
                head["num_classes"] = len(classes)
    for split in datasets.keys() & {"val", "test"}:
        ann_file = annotation_file(datasets[split][0]) if len(datasets[split]) == 1 else None
        for metric in as_list(cfg.get(f"{split}_evaluator")):
            metric_kind = find_class(METRICS, metric["type"], cfg)
            if ann_file is not None and metric_kind is not None and "ann_file" in (arguments(metric_kind) or ()):
                metric.setdefault("ann_file", ann_file)
