"""Checks of a config before the first iteration, for what would fail late, or silently train a wrong model.

A check gives `Fault`s of a config and of splits or, if it is one `OF_DATA`, of their data sets; `CHECKS` has all. The
dry step follows: in `vitdense check` on a model with random weights, in a training on that of the runner.
"""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks import config, data, model, schedule
from vitdense.mm.checks.sets import DataSet, data_sets
from vitdense.mm.data.faults import Fault, caught, refuse

OF_DATA = (data.files, data.classes, data.contents, data.few, data.overlap, data.evaluators)
CHECKS = (
    *(config.loaders, config.types, config.values),
    *OF_DATA,
    *(schedule.monitors, model.channels, model.build, config.batch_size),
    *(model.normalisation, model.frozen, model.padding, schedule.schedule),
)


def findings(cfg: Config, splits: Sequence[str], sets: Sequence[DataSet] | None = None) -> Iterator[Fault]:
    """What all checks find in some of ``train``, ``val`` and ``test``; `sets`: of `data_sets`, if there already."""
    sets = data_sets(cfg, splits) if sets is None else sets
    for one in CHECKS:
        yield from caught(one, cfg, sets if one in OF_DATA else splits)


def check(cfg: Config, splits: Sequence[str]) -> None:
    """Raise the first grave fault of `findings` and of image files, which `vitdense check` decodes; log warnings.

    Raises:
        ConfigError: There is one.
    """
    sets = data_sets(cfg, splits)
    refuse(findings(cfg, splits, sets))
    refuse(data.images(cfg, sets))
