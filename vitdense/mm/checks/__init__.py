"""Checks of a config before the first iteration, for what would fail late, or silently train a wrong model.

Every check is a function `find(cfg, splits)` in a file that says what it checks, and an entry of `CHECKS`. The dry step
follows: in `vitdense check` on a model with random weights, in a training on that of the runner.
"""

import logging
from collections.abc import Iterator, Sequence
from types import ModuleType

from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.mm.checks import (
    annotations,
    batch_size,
    build,
    channels,
    classes,
    evaluators,
    files,
    frozen,
    label_maps,
    loaders,
    masks,
    monitors,
    normalisation,
    padding,
    schedule,
    types,
    values,
)
from vitdense.mm.checks.base import Finding

CHECKS: tuple[ModuleType, ...] = (
    *(loaders, types, values, files, classes, annotations, masks, label_maps, evaluators, monitors),
    *(channels, build, batch_size, normalisation, frozen, padding, schedule),
)


def findings(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """What all checks find: errors, and warnings as text.

    Args:
        cfg: The config.
        splits: Among ``train``, ``val`` and ``test``.
    """
    for module in CHECKS:
        yield from module.find(cfg, splits)


def check(cfg: Config, splits: Sequence[str]) -> None:
    """Raise the first error of `findings`, and log the warnings.

    Raises:
        ConfigError: A file or folder is missing, the classes are not those of the annotation file, a head has
            another number of classes, values of label maps do not match the config, annotations have no masks that
            the pipeline loads, a metric reads another annotation file, channels differ, or, before training, images
            are not normalised as the pretrained weights expect.
    """
    for found in findings(cfg, splits):
        if isinstance(found, Exception):
            raise found
        print_log(found, logger="current", level=logging.WARNING)
