"""Data sets: their type is registered, their files and folders are on the disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, datasets, paths
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for where, dataset, kind in datasets(cfg, splits):
        if kind is None:
            yield ConfigError(f"{where}: no data set of type {dataset['type']!r} is registered")
        root = Path(dataset.get("data_root") or "")
        for what, path in paths(dataset, kind):
            if not path.exists():
                yield ConfigError(
                    f"{where}: {what} {path} does not exist; put the data set at {root} (or link it: ln -s /path/to/it "
                    f"{root}) or set its folder by --cfg-options data_root=/path/to/it"
                )
