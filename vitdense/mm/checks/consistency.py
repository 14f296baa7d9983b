"""Settings of a config that must agree with each other: channels, annotation files, normalisation, schedule."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from vitdense.mm.config.classes import annotation_file
from vitdense.mm.config.walk import as_list
from vitdense.mm.errors import ConfigError
from vitdense.models.rows import Model
from vitdense.models.table import row_of

WARM_UP = ("LinearLR", "ConstantLR")  # schedulers that begin at 0 and may end before the run


def check_channels(cfg: Config) -> None:
    """Check the channels of a backbone of this package against the first module after it: a neck or mmseg's heads.

    Builds the backbone on the meta device, without memory and weights.

    Raises:
        ConfigError: They differ, or the backbone or a neck of this package cannot be built.
    """
    model = cfg.model.get("module", cfg.model)  # inside the TTA wrapper
    backbone = _build_on_meta(model.get("backbone"), "model.backbone")
    if backbone is None:
        return
    source, channels = "the backbone's out_channels", list(backbone.out_channels)
    necks = model.get("neck")
    for i, neck in enumerate(as_list(necks)):
        name = f"model.neck.{i}" if isinstance(necks, (list, tuple)) else "model.neck"
        wanted = neck.get("in_channels", channels)
        # A number: some necks take one map. In any order: some start at the last map.
        if wanted not in channels if isinstance(wanted, int) else sorted(wanted) != sorted(channels):
            raise ConfigError(
                f"{name}.in_channels: got {wanted}, expected {source}, {channels}; set {name}.in_channels"
            )
        built = _build_on_meta(neck, name)
        if built is None:
            return  # its outputs are its own
        source, channels = f"out_channels of {name}", list(built.out_channels)
    for name in ("decode_head", "auxiliary_head"):
        for head in as_list(model.get(name)):
            _check_head(f"model.{name}", head, source, channels)


def _check_head(name: str, head: Mapping, source: str, channels: Sequence[int]) -> None:
    """Check the channels of a head of mmseg, which takes the maps `in_index`."""
    wanted = head.get("in_channels")
    if wanted is None:
        return
    all_maps = -1 if isinstance(wanted, int) else list(range(len(wanted)))
    index = head.get("in_index", all_maps)  # Mask2Former's head has no in_index
    try:
        expected = channels[index] if isinstance(index, int) else [channels[i] for i in index]
    except IndexError as error:
        raise ConfigError(f"{name}.in_index: got {index}, but there are {len(channels)} maps: {source}") from error
    if (wanted if isinstance(wanted, int) else list(wanted)) != expected:
        raise ConfigError(
            f"{name}.in_channels: got {wanted}, expected {expected}: {source} are {channels}, of which in_index {index}"
        )


def _build_on_meta(cfg: Mapping | None, name: str) -> nn.Module | None:
    """A module of this package on the meta device; None for modules of others."""
    if not cfg or not str(cfg.get("type")).startswith("vitdense."):
        return None
    options = {key: value for key, value in cfg.items() if key not in ("type", "init_cfg")}
    kind = MODELS.get(cfg["type"])
    if kind is None:
        raise ConfigError(f"{name}: no module of type {cfg['type']!r} is registered")
    try:
        with torch.device("meta"):
            return kind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error


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


def check_normalisation(cfg: Config) -> None:
    """Check mean, std and channel order of the data preprocessor against what the pretrained weights expect.

    Wrong ones raise no error in training and cost accuracy. Not checked are weights of no row of the model table, or
    with ``channels`` in `init_cfg`, models without a data preprocessor, whose pipeline normalises, and configs with
    ``settings = dict(normalisation="own")``.

    Raises:
        ConfigError: They differ.
    """
    model, row = cfg.model.get("module", cfg.model), _row_of_weights(_trunk(cfg))
    preprocessor = model.get("data_preprocessor") or cfg.get("data_preprocessor")
    if not preprocessor or row is None or cfg.get("settings", {}).get("normalisation") == "own":
        return
    pairs = expected_preprocessor(row).items()
    if wrong := {key: value for key, value in pairs if not _is_close(preprocessor.get(key), value)}:
        got = ", ".join(f"{key}={preprocessor.get(key)!r}" for key in wrong)
        expected = ", ".join(f"{key}={value!r}" for key, value in wrong.items())
        raise ConfigError(
            f"model.data_preprocessor: got {got}, but the weights {row.name} expect {expected}; set "
            f"model = dict(data_preprocessor=dict({expected})), or, to normalise images otherwise on purpose, "
            f"settings = dict(normalisation='own')"
        )


def expected_preprocessor(row: Model) -> dict[str, list[float] | bool]:
    """What a row of the model table expects of mm's data preprocessor: values of 0 to 255, and RGB from mm's BGR."""
    stats = {key: [round(255 * value, 3) for value in getattr(row, key)] for key in ("mean", "std")}
    return {**stats, "bgr_to_rgb": True}


def _is_close(got: Sequence[float] | bool | None, expected: Sequence[float] | bool) -> bool:
    """Equal up to rounding: half a grey level."""
    if isinstance(expected, bool) or not got:
        return got == expected
    return len(got) == len(expected) and all(abs(a - b) <= 0.5 for a, b in zip(got, expected))


def padding_warnings(cfg: Config) -> Iterator[str]:
    """Where images are not padded to whole patches of a plain ViT, a line.

    The ViT then pads its own input: maps reach past the image, and predictions are slightly misaligned.
    """
    model, trunk = cfg.model.get("module", cfg.model), _trunk(cfg)
    row = _row_of_weights(trunk)
    if row is None or row.patch_size is None:
        return
    patch = trunk.get("patch_size") or row.patch_size
    preprocessor, test_cfg = model.get("data_preprocessor") or {}, model.get("test_cfg") or {}
    if cfg.get("default_scope") != "mmseg":
        where, sides = "data_preprocessor.pad_size_divisor", [preprocessor.get("pad_size_divisor", 1)]
    elif test_cfg.get("mode") == "slide":
        where, sides = "test_cfg.crop_size", as_list(test_cfg.get("crop_size"))
    else:
        padding = preprocessor.get("test_cfg") or {}
        where, sides = "data_preprocessor.test_cfg.size_divisor", [padding.get("size_divisor") or 1]
    if any(side % patch for side in sides):
        yield (
            f"model.{where}: got {', '.join(map(str, sides))}, expected a multiple of {patch}, the side of the patches "
            f"of {row.name} in pixels; otherwise predictions are slightly misaligned"
        )


def _trunk(cfg: Config) -> Mapping:
    """The config of the backbone, or of the trunk inside a ViT-Adapter; empty for a model without backbone."""
    backbone = cfg.model.get("module", cfg.model).get("backbone") or {}  # inside the TTA wrapper
    return backbone.get("trunk", backbone)


def _row_of_weights(trunk: Mapping) -> Model | None:
    """The row of the model table that a backbone starts from; None for other weights."""
    for part in as_list(trunk.get("init_cfg")):
        if not isinstance(part, Mapping):
            return row_of(str(part))
        if part.get("type") == "Pretrained" and not part.get("channels"):
            return row_of(str(part.get("checkpoint")))
    return None


def schedule_warnings(cfg: Config, num_images: int) -> Iterator[str]:
    """Where the learning-rate schedule does not fit the length of the run, a line each.

    Args:
        cfg: The config.
        num_images: Of the training data; 0 if unknown.
    """
    if not cfg.get("train_cfg"):
        return
    by_epoch = "max_epochs" in cfg.train_cfg
    unit = "max_epochs" if by_epoch else "max_iters"
    length = cfg.train_cfg.get(unit)
    schedulers = [step for step in as_list(cfg.get("param_scheduler")) if step.get("by_epoch", True) == by_epoch]
    if by_epoch and num_images:
        steps = length * math.ceil(num_images / cfg.train_dataloader.get("batch_size", 1))
        for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
            if not step.get("by_epoch", True) and step.get("end", 0) > steps // 2:
                yield (
                    f"the warm-up, param_scheduler.{i}, takes {step['end']} iterations, but the whole run has {steps} "
                    f"on one GPU; train for more epochs, or warm up for a tenth of it: --cfg-options "
                    f"param_scheduler.{i}.end={max(steps // 10, 2)}"
                )
    ends = [
        step["end"]
        for step in schedulers
        if step.get("end") is not None
        and not (step["type"] in WARM_UP and step.get("begin", 0) == 0 and step["end"] <= length)
    ]
    starts = [start for step in schedulers for start in (step.get("begin", 0), *step.get("milestones", ()))]
    if ends and max(ends) != length:
        fault = f"ends at {max(ends)}"
    elif late := [start for start in starts if start >= length]:
        fault = f"changes at {', '.join(f'{start:g}' for start in late)}, which is never reached"
    else:
        return
    yield (
        f"param_scheduler {fault}, but train_cfg.{unit} is {length}; set settings = dict({unit}={length}) in place of "
        f"train_cfg.{unit}, and the schedule follows"
    )
