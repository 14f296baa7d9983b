"""Checks of a config before the first iteration, for what would fail late, or silently train a wrong model.

Every check is a function of a config and of splits that gives `Fault`s, and an entry of `CHECKS`. The dry step follows:
in `vitdense check` on a model with random weights, in a training on that of the runner.
"""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks import config, data, model, schedule
from vitdense.mm.data.faults import Fault, caught, refuse

CHECKS = (
    *(config.loaders, config.types, config.values),
    *(
        data.files,
        data.classes,
        data.annotations,
        data.voc,
        data.label_maps,
        data.overlap,
        data.evaluators,
        schedule.monitors,
    ),
    *(model.channels, model.build, config.batch_size, model.normalisation, model.frozen, model.padding),
    schedule.schedule,
)


def findings(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """What all checks find.

    Args:
        cfg: The config.
        splits: Among ``train``, ``val`` and ``test``.
    """
    for one in CHECKS:
        yield from caught(one, cfg, splits)


def check(cfg: Config, splits: Sequence[str]) -> None:
    """Raise the first grave fault of `findings` and of image files, which `vitdense check` decodes; log warnings.

    Raises:
        ConfigError: There is one.
    """
    refuse(findings(cfg, splits))
    refuse(data.images(cfg, splits))
