"""Masks: annotations have them if the pipeline loads masks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught, datasets_on_disk
from vitdense.mm.config.classes import annotation_file, reads_coco
from vitdense.mm.config.query import nodes
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for where, dataset, kind in datasets_on_disk(cfg, splits):
        if annotation_file(dataset) and reads_coco(kind):
            yield from caught(check_masks, where, dataset)


def check_masks(where: str, dataset: Mapping) -> None:
    """Check that annotations have masks if the pipeline loads masks. A worker would raise ``KeyError: 'mask'``.

    Args:
        where: Name of the data set in messages.
        dataset: Its config: one with a COCO annotation file that exists.

    Raises:
        ConfigError: Annotations have no mask.
    """
    if not any(step.get("with_mask") for step in nodes(dataset.get("pipeline", ()))):
        return
    ann_file = Path(annotation_file(dataset))
    found = overview(ann_file)
    without = found.annotations - found.masks
    if without > 0:
        raise ConfigError(
            f"{where}: {without} of {found.annotations} annotations of {ann_file} have no 'segmentation', but "
            f"the pipeline loads masks (with_mask=True). Remove them or add masks. To train on boxes alone, start from "
            f"configs/cascade_rcnn_swin_t_coco.py or configs/faster_rcnn_swin_t_coco.py, or let `python -m vitdense "
            f"new detection --boxes` write a config"
        )
