"""Checks before the first iteration, for errors that would appear late, or silently train on wrong labels."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.mm.checks.consistency import check_channels, check_evaluator, check_normalisation
from vitdense.mm.config.classes import annotation_file, dataset_classes, reads_coco
from vitdense.mm.config.options import DATALOADER
from vitdense.mm.config.walk import class_heads, find_class, leaf_datasets, nodes
from vitdense.mm.data.annotations import check_masks
from vitdense.mm.data.coco import overview
from vitdense.mm.data.label_maps import check_label_maps
from vitdense.mm.errors import ConfigError


def check(cfg: Config, splits: tuple[str, ...]) -> None:
    """Check a config: its data sets against the disk and the annotation files, and settings that must agree.

    Args:
        cfg: The config.
        splits: Among ``train``, ``val`` and ``test``.

    Raises:
        ConfigError: A file or folder is missing, the classes are not those of the annotation file, a head has
            another number of classes, values of label maps do not match the config, annotations have no masks that
            the pipeline loads, a metric reads another annotation file, channels differ, or, before training, images
            are not normalised as the pretrained weights expect.
    """
    for check_part in checks(cfg, splits):
        check_part()


def checks(cfg: Config, splits: tuple[str, ...]) -> Iterator[Callable[[], None]]:
    """The parts of `check`. Each may raise an error of its own."""
    for split in splits:
        loader = cfg.get(f"{split}_dataloader")
        if loader:
            yield partial(_check_loader, f"{split}_dataloader", loader)
            leaves = list(leaf_datasets(loader.dataset))
            for dataset in leaves:
                yield partial(_check_dataset, f"{split}_dataloader", dataset, cfg)
            if split != "train":
                yield partial(check_evaluator, split, leaves, cfg)
    yield partial(check_channels, cfg)
    if "train" in splits:  # a trained model has the statistics of its training
        yield partial(check_normalisation, cfg)


def _check_loader(where: str, loader: dict) -> None:
    if unknown := loader.keys() - DATALOADER:
        raise ConfigError(
            f"{where}: got {', '.join(sorted(unknown))}, expected arguments of torch's DataLoader, `dataset` and "
            f"`num_batch_per_epoch`"
        )


def _check_dataset(where: str, dataset: dict, cfg: Config) -> None:
    kind = find_class(DATASETS, dataset["type"], cfg)
    if kind is None:
        raise ConfigError(f"{where}: no data set of type {dataset['type']!r} is registered")
    classes = dataset_classes(dataset, kind)
    if classes is not None:
        _check_heads(where, cfg, len(classes), len(kind.METAINFO.get("thing_classes", classes)))
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
    if classes is not None and (json_file := annotation_file(dataset)):
        _check_categories(where, Path(json_file), classes)
        if reads_coco(kind):
            check_masks(where, dataset)
    if cfg.get("default_scope") == "mmseg":
        check_label_maps(where, dataset, kind, cfg)


def _check_heads(where: str, cfg: Config, num_classes: int, num_things: int) -> None:
    """Heads have the classes of the data set, or its things alone: panoptic data also have classes of stuff."""
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


def _must_exist(where: str, root: Path, path: Path, what: str) -> None:
    if not path.exists():
        raise ConfigError(
            f"{where}: {what} {path} does not exist; put the data set at {root} (or link it: ln -s /path/to/it {root}) "
            f"or set its folder by --cfg-options data_root=/path/to/it"
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
