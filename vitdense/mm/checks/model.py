"""Checks of the model: it can be built, and images are prepared as its weights expect."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS

from vitdense.mm.config.base import build_model, explained
from vitdense.mm.config.query import as_list, drop_weights, expected_preprocessor, row_of_weights, trunk_of
from vitdense.mm.data.faults import Fault


def build(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """All types exist and take their options. The model is built without values."""
    cfg, made = copy.deepcopy(cfg), []
    drop_weights(cfg.model)

    def model() -> None:
        try:
            with torch.device("meta"):
                made.append(build_model(cfg))
        except RuntimeError as error:
            if "meta tensors" not in str(error):
                raise
            made.append(build_model(cfg))  # a constructor that reads values, as mmdet's Swin

    yield from _built(cfg, "model", model)
    if made and "train" in splits:
        yield from _built(cfg, "optim_wrapper", lambda: made.append(build_optim_wrapper(made[0], cfg.optim_wrapper)))
    if len(made) > 1:
        for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
            step.pop("convert_to_iter_based", None)  # needs the length of an epoch
            steps = partial(PARAM_SCHEDULERS.build, step, default_args={"optimizer": made[1]})
            yield from _built(cfg, f"param_scheduler.{i}", steps)


def _built(cfg: Config, where: str, construct: Callable[[], object]) -> Iterator[Fault]:
    try:
        logging.disable(logging.INFO)  # such as the table of learning rates
        with explained(cfg):
            construct()
    except Exception as error:  # constructors of other packages can raise anything
        text = " ".join(str(error).split()) or type(error).__name__
        yield Fault(text, "" if text.startswith(where) else where)
    finally:
        logging.disable(logging.NOTSET)


def normalisation(cfg: Config, splits: Sequence[str] = ("train",)) -> Iterator[Fault]:
    """Mean, std and channel order of the data preprocessor are what the pretrained weights expect.

    Wrong values raise no error in training, but cost accuracy. Not checked are weights outside of the model table or
    with ``channels`` in `init_cfg`, models without a data preprocessor, and configs with
    ``settings = dict(normalisation="own")``.
    """
    model, row = cfg.model.get("module", cfg.model), row_of_weights(trunk_of(cfg))
    preprocessor = model.get("data_preprocessor") or cfg.get("data_preprocessor")
    is_own = cfg.get("settings", {}).get("normalisation") == "own"
    if "train" not in splits or not preprocessor or row is None or is_own:
        return
    pairs = expected_preprocessor(row).items()
    if wrong := {key: value for key, value in pairs if not _is_close(preprocessor.get(key), value)}:
        got = ", ".join(f"{key}={preprocessor.get(key)!r}" for key in wrong)
        expected = ", ".join(f"{key}={value!r}" for key, value in wrong.items())
        otherwise = "or, to normalise images otherwise on purpose, settings = dict(normalisation='own')"
        fix = f"set model = dict(data_preprocessor=dict({expected})), {otherwise}"
        yield Fault(f"got {got}, but the weights {row.name} expect {expected}", "model.data_preprocessor", fix=fix)


def _is_close(got: Sequence[float] | bool | None, expected: Sequence[float] | bool) -> bool:
    """Equal up to rounding: half a grey level."""
    if isinstance(expected, bool) or not got:
        return got == expected
    return len(got) == len(expected) and all(abs(a - b) <= 0.5 for a, b in zip(got, expected))


def frozen(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """A frozen or nearly frozen backbone starts from weights; otherwise it would stay random."""
    trunk = trunk_of(cfg)
    parts = as_list(trunk.get("init_cfg"))
    loads = cfg.get("load_from") or any(not isinstance(part, dict) or "checkpoint" in part for part in parts)
    options = {"frozen_stages": (None, -1), "finetune": (None,)}
    fixed = [f"{key}={trunk[key]!r}" for key, none in options.items() if trunk.get(key) not in none]
    if "train" in splits and fixed and not loads:
        what = f"model.backbone has {' and '.join(fixed)} and random weights, which then never learn"
        everything = "model = dict(backbone=dict(frozen_stages=-1, finetune=None))"
        yield Fault(what, fix=f"set its init_cfg or load_from, or train all of it: {everything}", grave=False)


def padding(cfg: Config, splits: Sequence[str] = ()) -> Iterator[Fault]:
    """Images are padded to whole patches of a plain ViT.

    Otherwise the ViT pads its own input: maps reach past the image, and predictions are slightly misaligned.
    """
    model, trunk = cfg.model.get("module", cfg.model), trunk_of(cfg)
    row = row_of_weights(trunk)
    if row is None or row.patch_size is None:
        return
    patch = trunk.get("patch_size") or row.patch_size
    preprocessor, test_cfg = model.get("data_preprocessor") or {}, model.get("test_cfg") or {}
    if cfg.get("default_scope") != "mmseg":
        where, sides = "data_preprocessor.pad_size_divisor", [preprocessor.get("pad_size_divisor", 1)]
    elif test_cfg.get("mode") == "slide":
        where, sides = "test_cfg.crop_size", as_list(test_cfg.get("crop_size"))
    else:
        sides = [(preprocessor.get("test_cfg") or {}).get("size_divisor") or 1]
        where = "data_preprocessor.test_cfg.size_divisor"
    if any(side % patch for side in sides):
        expected = f"expected a multiple of {patch}, the side of the patches of {row.name} in pixels"
        what = f"got {', '.join(map(str, sides))}, {expected}; otherwise predictions are slightly misaligned"
        yield Fault(what, f"model.{where}", grave=False)
