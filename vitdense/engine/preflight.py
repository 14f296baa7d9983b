"""Checks before the first iteration, for errors that would appear late, or silently train on wrong labels."""

from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS

from vitdense.engine.coco import category_names
from vitdense.engine.config import ConfigError
from vitdense.engine.label_maps import check_label_maps

# Heads with the classes of the data set. Others, such as the semantic branch of a detector, have their own.
CLASS_HEADS = ("bbox_head", "mask_head", "decode_head", "auxiliary_head")


def check(cfg: Config, splits: tuple[str, ...]) -> None:
    """Check the data sets of a config against the disk, the annotation files and the heads.

    Args:
        cfg: The config.
        splits: Among ``train``, ``val`` and ``test``.

    Raises:
        ConfigError: A file or folder is missing, the classes are not those of the annotation file, a head has
            another number of classes, or values of label maps do not match the config.
    """
    for split in splits:
        loader = cfg.get(f"{split}_dataloader")
        for dataset in leaf_datasets(loader.dataset) if loader else ():
            _check_dataset(f"{split}_dataloader", dataset, cfg)


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """Configs of the data sets inside wrappers such as `RepeatDataset` and `ConcatDataset`."""
    if "datasets" in dataset:
        for part in dataset["datasets"]:
            yield from leaf_datasets(part)
    elif "dataset" in dataset:
        yield from leaf_datasets(dataset["dataset"])
    else:
        yield dataset


def _check_dataset(where: str, dataset: dict, cfg: Config) -> None:
    with DATASETS.switch_scope_and_registry(cfg.get("default_scope", "mmdet")) as registry:
        kind = registry.get(dataset["type"])
    if kind is None:
        raise ConfigError(f"{where}: no data set of type {dataset['type']!r} is registered")
    classes = (dataset.get("metainfo") or {}).get("classes", kind.METAINFO.get("classes"))
    if isinstance(classes, str):
        classes = list_from_file(classes)
    if classes is not None:
        _check_heads(cfg.model, len(classes), f"{where}: the data set has {len(classes)} classes")
    # Files of a storage service (s3://) are left to mmengine's file client.
    if getattr(kind, "drawn_on_demand", False) or "://" in str(dataset.get("data_root")):
        return
    root = Path(dataset.get("data_root") or "")
    ann_file = dataset.get("ann_file")
    if ann_file:
        _must_exist(where, root, root / ann_file, "annotation file")
    for name, prefix in (dataset.get("data_prefix") or {}).items():
        if prefix is not None:
            _must_exist(where, root, root / prefix, f"folder ({name})")
    if ann_file and str(ann_file).endswith(".json") and classes is not None:
        _check_categories(where, root / ann_file, tuple(classes))
    if cfg.get("default_scope") == "mmseg":
        check_label_maps(where, dataset, kind, cfg)


def _must_exist(where: str, root: Path, path: Path, what: str) -> None:
    if not path.exists():
        raise ConfigError(
            f"{where}: {what} {path} does not exist; put the data set at {root} (or link it: ln -s /path/to/it {root}) "
            f"or set its folder by --cfg-options data_root=/path/to/it"
        )


def _check_categories(where: str, ann_file: Path, classes: tuple[str, ...]) -> None:
    """The classes must be categories of the file, in its order: mmdet numbers labels in that order."""
    names = category_names(ann_file)
    if classes != tuple(name for name in names if name in set(classes)):
        unknown = [name for name in classes if name not in names]
        raise ConfigError(
            f"{where}: got classes {', '.join(classes)}; expected categories of {ann_file}, in its order, or labels "
            f"would be swapped: {', '.join(names)}. Not in the file: {', '.join(unknown) or 'none'}. Set "
            f"metainfo=dict(classes=(...)) of the data set"
        )


def _check_heads(node: object, num_classes: int, reason: str, path: str = "model", head: bool = False) -> None:
    if isinstance(node, dict):
        found = node.get("num_classes")
        if head and found is not None and found != num_classes:
            raise ConfigError(f"{reason}, but {path}.num_classes is {found}; set it to {num_classes}")
        for key, value in node.items():
            _check_heads(value, num_classes, reason, f"{path}.{key}", key in CLASS_HEADS)
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            _check_heads(value, num_classes, reason, f"{path}[{i}]", head)
