"""What the checks share: what they find, and the data sets that they look at."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.errors import OptionError
from vitdense.mm.config.query import find_class, leaf_datasets

Finding = Exception | str  # an error, or the text of a warning


def caught(function: Callable[..., None], *args: Any) -> Iterator[Finding]:
    """The error that `function` raises about what a user gave, if it does."""
    try:
        function(*args)
    except OptionError as error:
        yield error


def datasets(cfg: Config, splits: Sequence[str]) -> Iterator[tuple[str, dict, type | None]]:
    """The name of the loader, the config and the class of every data set, without wrappers."""
    for split in splits:
        loader = cfg.get(f"{split}_dataloader")
        for dataset in leaf_datasets(loader.dataset) if loader else ():
            yield f"{split}_dataloader", dataset, find_class(DATASETS, dataset["type"], cfg)


def datasets_on_disk(cfg: Config, splits: Sequence[str]) -> Iterator[tuple[str, dict, type]]:
    """Those of `datasets` whose files are here: they are not drawn on demand and not of a storage service."""
    for where, dataset, kind in datasets(cfg, splits):
        of_disk = list(paths(dataset, kind))
        if of_disk and all(path.exists() for _, path in of_disk):
            yield where, dataset, kind


def paths(dataset: dict, kind: type | None) -> Iterator[tuple[str, Path]]:
    """What a data set reads from the disk, and where: its annotation file and folders.

    Files of a storage service (s3://) are left to mmengine's file client.
    """
    root = str(dataset.get("data_root") or "")
    if kind is None or getattr(kind, "drawn_on_demand", False) or "://" in root:
        return
    if dataset.get("ann_file"):
        yield "annotation file", Path(root, dataset["ann_file"])
    for name, prefix in (dataset.get("data_prefix") or {}).items():
        if prefix is not None:
            yield f"folder ({name})", Path(root, prefix)
