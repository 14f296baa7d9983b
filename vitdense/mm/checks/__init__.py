"""Checks of a config before the first iteration, for faults that appear late or silently train a wrong model.

A check yields `Fault`s of a config and splits; a check `OF_DATA` takes their data sets instead. `CHECKS` has all. The
dry step follows: on a model with random weights in `vitdense check`, on the runner's model in a training.
"""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks import config, data, model, schedule
from vitdense.mm.checks.sets import DataSet, data_sets
from vitdense.mm.data.faults import Fault, caught, refuse

OF_DATA = (data.files, data.classes, data.contents, data.few, data.overlap, data.evaluators)
CHECKS = (
    *(config.loaders, config.types, config.mixing, config.values),
    *OF_DATA,
    *(schedule.monitors, model.build, config.batch_size),
    *(model.normalisation, model.frozen, model.padding, schedule.schedule),
)


def findings(cfg: Config, splits: Sequence[str], sets: Sequence[DataSet], builds: bool = True) -> Iterator[Fault]:
    """The faults that all checks find in these splits and their `data_sets`, without `builds` all but `model.build`."""
    for one in (one for one in CHECKS if builds or one is not model.build):
        yield from caught(one, cfg, sets if one in OF_DATA else splits)


def check(cfg: Config, splits: Sequence[str]) -> None:
    """Raise a ConfigError for the first grave fault of `findings` and of image files; log warnings."""
    sets = data_sets(cfg, splits)
    refuse(findings(cfg, splits, sets))
    refuse(data.images(cfg, sets))
