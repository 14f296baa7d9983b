"""Build: what a config names exists and takes its options."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.build import build_model
from vitdense.mm.config.query import as_list, drop_weights
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module. The model is built without values."""
    cfg, made = copy.deepcopy(cfg), []
    drop_weights(cfg.model)

    def model() -> None:
        try:
            with torch.device("meta"):
                made.append(build_model(cfg))
        except RuntimeError as error:
            if "meta tensors" not in str(error):
                raise
            made.append(build_model(cfg))  # its constructor reads values, as that of mmdet's Swin

    yield from _built("model", model)
    if made and "train" in splits:
        yield from _built("optim_wrapper", lambda: made.append(build_optim_wrapper(made[0], cfg.optim_wrapper)))
    if len(made) > 1:
        for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
            step.pop("convert_to_iter_based", None)  # which needs the length of an epoch
            build = partial(PARAM_SCHEDULERS.build, step, default_args={"optimizer": made[1]})
            yield from _built(f"param_scheduler.{i}", build)


def _built(where: str, build: Callable[[], object]) -> Iterator[Finding]:
    try:
        logging.disable(logging.INFO)  # such as the table of learning rates
        build()
    except Exception as error:  # constructors of other packages can raise anything
        yield ConfigError(f"{where}: {' '.join(str(error).split()) or type(error).__name__}")
    finally:
        logging.disable(logging.NOTSET)
