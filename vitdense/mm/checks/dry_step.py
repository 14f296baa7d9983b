"""Dry step: losses, gradients and a validation of one or two images, before the first iteration.

It finds parts of a config that do not fit together: a loss with weights for another number of classes, a pipeline step
that takes no masks, a metric whose inputs are missing. It changes nothing, see `kept`. `vitdense check` builds a model
with random weights, and uses smaller images on a CPU; a training validates an image with its own model.
"""

import copy
import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.device import get_device
from mmengine.evaluator import Evaluator
from mmengine.model import is_model_wrapper
from mmengine.optim import build_optim_wrapper
from mmengine.runner import autocast
from torch import nn
from torch.utils.data import DataLoader

from vitdense.errors import OptionError
from vitdense.mm.config.base import build_evaluator, build_loader, build_model
from vitdense.mm.config.query import all_datasets, annotation_file, as_list, drop_weights, image_size
from vitdense.mm.config.settings import set_image_size, shown
from vitdense.mm.data.faults import Fault
from vitdense.mm.data.transforms import copy_of, places
from vitdense.mm.errors import ConfigError
from vitdense.seams import options_of

SIDE = 256  # image size on a CPU, where a recipe's size would take minutes
IMAGES = 2  # images of a step, if the batch has as many: norms may need two
WRITES = ("format_only", "outfile_prefix", "out_file_path", "output_dir")  # options of metrics that write files
NOT_DETERMINISTIC = "does not have a deterministic implementation"  # torch's error for an operation on a GPU
OF_CPU = "can't allocate memory"  # torch's error for a CPU


class ShortOfMemory(ConfigError):
    """The device has no room for the dry step."""


def find(cfg: Config, splits: Sequence[str], say: Callable[[str], None] = print) -> Iterator[Fault]:
    """The dry step of `vitdense check`. A model too large for the memory is a warning.

    Args:
        cfg: The config.
        splits: Some of ``train``, ``val`` and ``test``.
        say: Gets a line with seconds and memory of the losses and gradients.
    """
    with TemporaryDirectory() as folder, _quiet():
        cfg = _own_copy(cfg, Path(folder))
        step = (cfg.model.get("data_preprocessor") or {}).get("pad_size_divisor") or 32
        side = max(SIDE // step, 1) * step
        with suppress(OptionError):  # it may have no size, or the small one may be the cause: the full size decides
            if get_device() == "cpu" and min(image_size(cfg)) > side:
                small = copy.deepcopy(cfg)
                small.settings = {**cfg.get("settings", {}), "image_size": side}
                set_image_size(small)
                yield from _make(small, splits, say)
                return
        try:
            yield from _make(cfg, splits, say)
        except OptionError as error:
            yield Fault(str(error), grave=not isinstance(error, ShortOfMemory))


def _make(cfg: Config, splits: Sequence[str], say: Callable[[str], None]) -> list[Fault]:
    with _parts({}, "train_dataloader"):
        loaders = {split: build_loader(cfg, split) for split in splits if split != "test"}
    evaluator = build_evaluator(cfg, loaders["val"]) if "val" in loaders else None
    with _parts({}, "model"):
        model = build_model(cfg)
        model.init_weights()
        model = model.to(get_device()).train()
    wrapper, start = build_optim_wrapper(model, cfg.optim_wrapper), time.perf_counter()
    train(model, loaders["train"], wrapper)
    seconds, size = time.perf_counter() - start, cfg.get("settings", {}).get("image_size")
    number = min(IMAGES, loaders["train"].batch_size or 1)
    of_size = f" of {shown(size)} pixels" if size else ""
    say(f"images: {number}{of_size}, of a batch of {loaders['train'].batch_size}: {seconds:.2g} s{_peak_memory()}")
    warnings: list[Fault] = []
    for module in (module for module in options_of("check") if hasattr(module, "look")):
        looked, named = _copied(loaders["train"], "train_dataloader")
        with _parts(named, "train_dataloader"):
            warnings += module.look(looked, "train_dataloader.dataset")
    if evaluator is not None:
        validate(model, loaders["val"], evaluator, cfg.val_cfg.get("fp16", False))
    return warnings


def train(model: nn.Module, loader: DataLoader, wrapper: Any) -> None:
    """Compute losses and gradients of a training's first images.

    Args:
        model: On its device. If it is wrapped for several processes, all of them must call this.
        loader: The training's data loader.
        wrapper: The optimizer wrapper, for its data type. No step is made.
    """
    model = model.module if is_model_wrapper(model) else model
    with kept(model):
        batch = _batch(loader, "train_dataloader")
        with _parts(_modules(model), "the losses"):
            with getattr(wrapper, "optim_context", nullcontext)(model):
                data = model.data_preprocessor(batch, True)
                losses, _ = model.parse_losses(model(**data, mode="loss"))
            losses.backward()


def validate(model: nn.Module, loader: DataLoader, evaluator: Evaluator, half: bool) -> None:
    """Predict on an image of the validation and compute metrics; `half`: under mmengine's autocast. See `train`."""
    model = model.module if is_model_wrapper(model) else model
    named = _modules(model) | {id(metric): f"val_evaluator ({type(metric).__name__})" for metric in evaluator.metrics}
    with kept(model), torch.no_grad():
        batch = _batch(loader, "val_dataloader", images=1)
        model.eval()
        with _parts(named, "the validation"):
            with autocast(enabled=half):
                found = model.val_step(batch)
            for metric in evaluator.metrics:
                if not any(getattr(metric, name, None) for name in WRITES):
                    _evaluate(metric, batch, [sample.to_dict() for sample in found])


def _evaluate(metric: Any, batch: Mapping, samples: Sequence[dict]) -> None:
    before = dict(vars(metric))
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as means of empty arrays
        metric.process(batch, samples)
        metric.evaluate(len(samples))
    metric.__dict__ = before


def _batch(loader: DataLoader, where: str, images: int = IMAGES) -> Any:
    """The first images of a loader, through a copy of its pipeline: steps such as `CachedMosaic` keep images."""
    dataset, named = _copied(loader, where)
    size = getattr(loader.batch_sampler, "batch_size", None) or 1
    with _parts(named, where):
        repeats = isinstance(loader.sampler, InfiniteSampler)  # fills a batch from fewer images
        images = min(images, size) if repeats else min(images, size, len(dataset))
        return loader.collate_fn([dataset[i % len(dataset)] for i in range(images)])


def _copied(loader: DataLoader, where: str) -> tuple[Any, dict[int, str]]:
    """A copy of a loader's data set, and the names of its steps for `_parts`."""
    dataset = copy_of(loader.dataset)
    return dataset, places(dataset, where)


def _modules(model: nn.Module) -> dict[int, str]:
    return {id(module): f"model.{name}".rstrip(".") for name, module in model.named_modules()}


@contextmanager
def _parts(named: Mapping[int, str], where: str) -> Iterator[None]:
    """Turn errors into ones that name the innermost of the objects `named` in their trace, or else `where`."""
    try:
        yield
    except OptionError:  # names its cause
        raise
    except Exception as error:  # any part of any package may raise anything
        if isinstance(error, torch.OutOfMemoryError) or OF_CPU in str(error):
            reason = f"{get_device()} is short of memory ({str(error).splitlines()[0]})"
            raise ShortOfMemory(f"dry step: {reason}; train with a smaller --batch-size or --image-size") from error
        trace = error.__traceback__
        while trace is not None:
            where = named.get(id(trace.tb_frame.f_locals.get("self")), where)
            trace = trace.tb_next
        reason = " ".join(str(error).split())[:300]
        if "'InstanceData' object has no attribute" in reason:
            reason += "; let a step of the pipeline load it, as with_mask=True of LoadAnnotations does"
        if NOT_DETERMINISTIC in reason:
            reason = f"{reason.split(',')[0]}: set randomness.deterministic=False, or train on a CPU"
        raise ConfigError(f"dry step: {where}: {type(error).__name__}: {reason}") from error


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Restore a model and the random generators afterwards: buffers such as statistics of norms, numbers and lists of
    modules, modes and gradients."""
    numbers, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 -- mm's transforms draw from it
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    plain = []  # with the mode, numbers and lists of modules, such as the history of a dynamic threshold
    for module in model.modules():
        own = {name: x for name, x in vars(module).items() if type(x) in (bool, int, float, list) and name[0] != "_"}
        plain.append((module, {name: copy.copy(x) for name, x in own.items()}, dict(module._buffers)))
    values = [(x, x.detach().clone()) for x in model.buffers()]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(numpy_state)  # noqa: NPY002
            for module, attributes, buffers in plain:
                vars(module).update(attributes)
                module._buffers.update(buffers)
            with torch.no_grad():
                for x, value in values:
                    x.copy_(value)
            model.zero_grad()


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _own_copy(cfg: Config, folder: Path) -> Config:
    """A config whose drawn data sets, if they do not exist yet, are small ones in `folder`."""
    cfg = copy.deepcopy(cfg)
    for split, dataset, kind in all_datasets(cfg):
        is_here = Path(dataset.get("data_root") or "").exists()
        if split == "test" or is_here or not getattr(kind, "drawn_on_demand", False):
            continue
        file = annotation_file(dataset)
        dataset.data_root = str(folder / "drawn")
        dataset.draw = {**dataset.get("draw", {}), "num_train": IMAGES, "num_val": 1}
        for metric in as_list(cfg.get("val_evaluator")) if split == "val" else ():
            if file is not None and metric.get("ann_file") == file:
                metric.ann_file = annotation_file(dataset)
    drop_weights(cfg.model)
    return cfg


def _peak_memory() -> str:
    if get_device() == "cuda":
        return f" and {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    if sys.platform != "linux":
        return ""
    import resource  # Unix only

    return f" and {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"
