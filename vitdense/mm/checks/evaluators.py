"""Metrics: they read the annotation file of their data set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught
from vitdense.mm.config.classes import annotation_file
from vitdense.mm.config.query import as_list, leaf_datasets
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for split in splits:
        if split != "train" and cfg.get(f"{split}_dataloader"):
            yield from caught(check_evaluator, split, list(leaf_datasets(cfg[f"{split}_dataloader"].dataset)), cfg)


def check_evaluator(split: str, datasets: Sequence[dict], cfg: Config) -> None:
    """Check that the metrics of a split read the annotation file of its data set.

    Otherwise the first evaluation fails, after hours, or compares with other annotations.

    Args:
        split: ``val`` or ``test``.
        datasets: Configs of the data sets of the split, without wrappers. Several of them, or several metrics, are not
            checked.
        cfg: The whole config.

    Raises:
        ConfigError: A metric reads another file.
    """
    metrics = as_list(cfg.get(f"{split}_evaluator"))
    if len(datasets) != 1 or len(metrics) != 1:
        return
    named, of_data = metrics[0].get("ann_file"), annotation_file(datasets[0])
    if named and of_data and Path(named).resolve() != Path(of_data).resolve():
        raise ConfigError(
            f"{split}_evaluator.ann_file: got {named}, expected the file of {split}_dataloader, {of_data}; leave it "
            f"out, and it follows the data set"
        )
