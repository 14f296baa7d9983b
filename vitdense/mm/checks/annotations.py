"""Annotations of COCO files: what `vitdense check` calls errors stops a training too."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from mmengine.config import Config

from vitdense.files import atomic_write, sha256_of
from vitdense.mm.checks.base import Finding, datasets_on_disk
from vitdense.mm.config.classes import annotation_file, reads_coco
from vitdense.mm.data.annotations import examine, read_annotations
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError

VERSION = 2  # of what is examined


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module. One process of a machine reads the files, for all."""
    if int(os.environ.get("LOCAL_RANK", 0)):
        return
    seen = set()
    for where, dataset, kind in datasets_on_disk(cfg, splits):
        if annotation_file(dataset) and reads_coco(kind):
            ann_file = Path(annotation_file(dataset))
            if ann_file in seen:
                continue
            seen.add(ann_file)
            try:
                errors = _errors(ann_file)
            except ConfigError as error:
                yield error
            else:
                if where.startswith("train") and not overview(ann_file).annotations:
                    yield ConfigError(f"{where}: {ann_file} has no annotations: there is nothing to learn")
                yield from (ConfigError(f"{where}: {ann_file}: {line}") for line in errors)


def _errors(ann_file: Path) -> list[str]:
    """The errors of a file. That it has none is remembered by its digest: a large one takes a while."""
    passed = Path(torch.hub.get_dir(), "vitdense", f"annotations-{VERSION}-{sha256_of(ann_file)}")
    if passed.exists():
        return []
    errors = examine(read_annotations(ann_file)).errors
    if not errors:
        with suppress(OSError), atomic_write(passed) as scratch:  # or else the next start reads the file again
            scratch.touch()
    return errors
