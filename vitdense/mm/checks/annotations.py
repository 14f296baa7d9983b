"""Annotations of COCO files: what `vitdense check` calls errors stops a training too."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from mmengine.config import Config

from vitdense.files import atomic_write, sha256_of
from vitdense.mm.checks.base import Finding, datasets_on_disk
from vitdense.mm.config.classes import annotation_file, is_panoptic, reads_coco
from vitdense.mm.data.coco import examine, overview, read_annotations
from vitdense.mm.data.images import FILES_READ
from vitdense.mm.data.panoptic import examine_panoptic, read_panoptic
from vitdense.mm.errors import ConfigError

VERSION = 3  # of what is examined


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module. One process of a machine reads the files, for all."""
    if int(os.environ.get("LOCAL_RANK", 0)):
        return
    seen = set()
    for where, dataset, kind in datasets_on_disk(cfg, splits):
        ann_file = Path(annotation_file(dataset) or "")
        if ann_file in seen or not (annotation_file(dataset) and (reads_coco(kind) or is_panoptic(kind))):
            continue
        seen.add(ann_file)
        try:
            errors = _errors(ann_file, dataset, kind)
            objects = overview(ann_file).annotations
        except ConfigError as error:
            yield error
            continue
        if not objects:
            fault = f"{where}: {ann_file} has no annotations: there is nothing to"
            yield ConfigError(f"{fault} learn") if where.startswith("train") else f"{fault} evaluate"
        yield from (ConfigError(f"{where}: {ann_file}: {line}") for line in errors)


def _errors(ann_file: Path, dataset: dict, kind: type) -> list[str]:
    """The errors of a file. That it has none is remembered by its digest: a large one takes a while."""
    passed = Path(torch.hub.get_dir(), "vitdense", f"annotations-{VERSION}-{sha256_of(ann_file)}")
    if passed.exists():
        return []
    if is_panoptic(kind):
        segments = Path(dataset.get("data_root") or "", (dataset.get("data_prefix") or {}).get("seg") or "")
        errors = examine_panoptic(read_panoptic(ann_file), segments, FILES_READ).errors
    else:
        errors = examine(read_annotations(ann_file)).errors
    if not errors:
        with suppress(OSError), atomic_write(passed) as scratch:  # or else the next start reads the file again
            scratch.touch()
    return errors
