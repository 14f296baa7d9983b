"""``train --cache-features``: a frozen trunk runs once for every image and view.

The maps of a frozen trunk depend only on its weights and its input, so they are stored under a digest of both. The
trunk runs only for new inputs. A changed photo, recipe, view, window or padding is a new input; annotations are read
as ever. The ``views`` of the sampler make inputs repeat, see `vitdense.mm.data.seeded`.
"""

import copy
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import DataLoader

import vitdense
from vitdense.extensions.features.map_store import Maps, MapStore, readable, stacked
from vitdense.mm.checks import dry_step
from vitdense.mm.data.images import evenly_spaced
from vitdense.mm.data.transforms import copy_of
from vitdense.mm.errors import ConfigError
from vitdense.mm.guard import unwrapped

OPTION = "--cache-features"
LOOKED_AT = 16  # images to look at before the start
TOLERANCE = 1e-2  # relative error of stored maps against the trunk's
NOT_OF_MAPS = ("init_cfg", "drop_path_rate", "with_cp", "frozen_stages")  # arguments that do not change maps


class FeatureCache:
    """The maps of a trunk by its inputs.

    Args:
        store: Stores the maps.
        spec: The structure in which the trunk returns them.
        expected: Most different inputs of a training; more mean that they do not repeat.

    Attributes:
        computed: Images that the trunk ran for.
        read: Images whose maps were read.
    """

    def __init__(self, store: MapStore, spec: TreeSpec, expected: int) -> None:
        self.store, self.spec, self.expected = store, spec, expected
        self.computed = self.read = 0
        self.trained: set[bytes] = set()  # keys of the training
        self.warned = False

    def maps(self, x: Tensor, training: bool, run: Callable[[Tensor], Any]) -> Any:
        """The output of `run` for images ``[B, 3, H, W]``, stored or computed.

        Raises:
            ConfigError: A training has more inputs than views of its images.
        """
        keys = [input_sha256(image) for image in x]
        found = {key: self.store.read(key) for key in keys}
        absent = [key for key, maps in found.items() if maps is None]
        if training:
            self._count(keys, absent)
        if absent:
            inputs = x if len(absent) == len(x) else x[[keys.index(key) for key in absent]]
            for key, *maps in zip(absent, *tree_flatten(run(inputs))[0]):
                found[key] = self.store.pack(maps)
                self.store.write(key, found[key])
        self.computed += len(absent)
        self.read += len(x) - len(absent)
        return tree_unflatten(stacked([found[key] for key in keys], x.device), self.spec)

    def _count(self, keys: Sequence[str], absent: Sequence[str]) -> None:
        gone = (key for key in absent if bytes.fromhex(key) in self.trained and not self.store.path(key).exists())
        if not self.warned and any(gone):
            self.warned = True
            print_log(
                f"{OPTION}: maps in {self.store.folder} vanished during the training, as by a cleaner of temporary "
                f"files, and are computed again; name a folder that nothing removes",
                "current",
                logging.WARNING,
            )
        self.trained.update(map(bytes.fromhex, keys))
        if len(self.trained) > self.expected:
            raise ConfigError(
                f"{OPTION}: the trunk got more inputs than the training has images and views, so that they do not "
                f"come back: a step of the pipeline or a hook changes them in the course of the training; leave "
                f"it out, or train without {OPTION}"
            )


class CachedTrunk(nn.Module):
    """Mixed into the class of a built trunk, as FSDP2 does, so that names of weights, hooks and copies stay."""

    cache: FeatureCache

    def forward(self, x: Tensor) -> Any:
        return self.cache.maps(x, self.training, super().forward)


def tensors_sha256(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of tensors with their names, data types and shapes."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        value = tensors[key].cpu().contiguous()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def input_sha256(image: Tensor) -> str:
    """Digest of an input ``[3, H, W]`` and the data type in which the trunk computes."""
    return tensors_sha256({f"image in {_computes(image)}": image})


def _computes(image: Tensor) -> torch.dtype:
    kind = image.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else image.dtype


def trunk_sha256(trunk: nn.Module, options: dict[str, Any]) -> str:
    """Digest of the weights of a trunk, its options in the config, and the version of its code."""
    options = {key: value for key, value in options.items() if key not in NOT_OF_MAPS}
    about = json.dumps([vitdense.__version__, options, tensors_sha256(trunk.state_dict())], sort_keys=True, default=str)
    return hashlib.sha256(about.encode()).hexdigest()


def start(runner: Runner, folder: str, dtype: str) -> FeatureCache:
    """Cache the maps of a training's trunk before it begins, and log the disk space and the time saved.

    Args:
        runner: The runner, with its initial weights loaded.
        folder, dtype: See `MapStore`.

    Raises:
        ConfigError: The trunk is not frozen, its inputs do not repeat, the disk is too full, or stored maps differ from
            the trunk's.
    """
    model, loader = unwrapped(runner.model), runner.train_dataloader
    trunk = frozen_trunk(model)
    store = MapStore(folder, trunk_sha256(trunk, runner.cfg.model.backbone.to_dict()), dtype)
    with dry_step.kept(model), torch.no_grad():
        image = first_input(model, loader)
        with getattr(runner.optim_wrapper, "optim_context", nullcontext)(runner.model):
            spec = check_maps(trunk, image, store)
    images, views = len(loader.dataset), loader.batch_sampler.sampler.views
    size, said = _costs(runner, trunk, store, images, views)
    there, free = store.check_room(size, "fewer --views" + (", or --cache-dtype float16" * (dtype == "float32")))
    runner.logger.info(
        f"{OPTION}: {images} images in {views} views, and those of the validation, take "
        f"{readable(size)} in {store.folder}, which has {readable(there)}; {readable(free)} are free. {said}"
    )
    trunk.cache = FeatureCache(store, spec, images * views)
    trunk.__class__ = type(type(trunk).__name__, (CachedTrunk, type(trunk)), {})
    return trunk.cache


def frozen_trunk(model: nn.Module) -> nn.Module:
    trunk = getattr(model, "backbone", None)
    if trunk is None:
        raise ConfigError(f"{OPTION}: got {type(model).__name__}, without a backbone, expected one with a frozen trunk")
    if any(hasattr(x, "device_mesh") for x in trunk.parameters()):
        raise ConfigError(f"{OPTION}: got --shard too, whose parts have no digest of the trunk; give one of the two")
    if trains := [name for name, x in trunk.named_parameters() if x.requires_grad]:
        raise ConfigError(
            f"{OPTION}: model.backbone trains {len(trains)} tensors, such as {trains[0]}, so that its maps change; "
            f"freeze it: --cfg-options model.backbone.frozen_stages=all model.backbone.finetune=None (a ViT-Adapter "
            f"always trains)"
        )
    return trunk


def first_input(model: nn.Module, loader: DataLoader) -> Tensor:
    """The first image as the trunk gets it, ``[1, 3, H, W]``, after a check of `LOOKED_AT` images."""
    dataset, sampler = copy_of(loader.dataset), loader.batch_sampler.sampler
    chosen = [sampler.seeded(i, 0, 0) for i in evenly_spaced(range(len(dataset)), LOOKED_AT)]
    samples = [dataset[index] for index in chosen]
    if not dataset[chosen[0]]["inputs"].equal(samples[0]["inputs"]):
        raise ConfigError(
            f"{OPTION}: the pipeline of the training draws other pixels for the same seed; its first step is to be "
            f"dict(type='vitdense.SeedFromSample'), and no step may go on from the image before"
        )

    def inputs(samples: list) -> Tensor:
        return model.data_preprocessor(loader.collate_fn(copy.deepcopy(samples)), True)["inputs"]

    together = inputs(samples)  # [B, 3, H, W]
    if not all(inputs([sample])[0].equal(image) for sample, image in zip(samples, together)):
        raise ConfigError(
            f"{OPTION}: an image is resized or padded by the others of its batch, so that its maps would depend on "
            f"them; set model.data_preprocessor.batch_augments=None and crop to one size in the pipeline, or pad to "
            f"one size: model.data_preprocessor.batch_augments=\"[dict(type='BatchFixedSizePad',size=(H,W))]\""
        )
    return together[:1]


def check_maps(trunk: nn.Module, image: Tensor, store: MapStore) -> TreeSpec:
    """The structure of a trunk's output; raises unless it has maps, equal at every pass and to stored ones."""
    maps, spec = tree_flatten(trunk.train()(image))
    if not all(isinstance(x, Tensor) and x.is_floating_point() and len(x) == 1 for x in maps):
        raise ConfigError(
            f"{OPTION}: {type(trunk).__name__} returns more than maps (blocks that its head runs); take another recipe"
        )
    if not all(x.equal(y) for x, y in zip(maps, tree_flatten(trunk.eval()(image))[0])):
        raise ConfigError(
            f"{OPTION}: the trunk gives an image other maps in training than in validation, by random numbers or "
            f"statistics; freeze all of it, without model.backbone.rope_augment and batch norms that train"
        )
    # The folder keeps its first input, so that every start can compare, whatever its data.
    name = f"first input in {_computes(image)}"
    before = store.read(name)
    image = image.to(store.dtype).to(image.dtype) if before is None else stacked([before], image.device)[0]
    now = store.pack(x[0] for x in (image, *tree_flatten(trunk(image))[0]))
    if before is None:
        store.write(name, now)
    elif not _alike(now, before):
        raise ConfigError(
            f"{OPTION}: {store.path(name)} has other maps than the trunk gives now: its code, or that of a library, "
            f"changed; remove {store.folder}"
        )
    return spec


def _alike(now: Maps, before: Maps) -> bool:
    if now.layouts != before.layouts or [x.shape for x in now.tensors] != [x.shape for x in before.tensors]:
        return False
    pairs = [(x.double(), y.double()) for x, y in zip(now.tensors, before.tensors)]
    return all((x - y).norm() <= TOLERANCE * x.norm() for x, y in pairs)


@contextmanager
def _watched(trunk: nn.Module) -> Iterator[list[tuple[float, int, int]]]:
    """Record the passes of a trunk: seconds, images, and number of values in the maps."""
    passes, began = [], []

    def now() -> float:
        torch.accelerator.synchronize() if torch.accelerator.is_available() else None
        return time.perf_counter()

    def end(module: nn.Module, args: tuple, output: Any) -> None:
        passes.append((now() - began.pop(), len(args[0]), sum(x.numel() for x in tree_flatten(output)[0])))

    handles = [trunk.register_forward_pre_hook(lambda *_: began.append(now())), trunk.register_forward_hook(end)]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def _costs(runner: Runner, trunk: nn.Module, store: MapStore, images: int, views: int) -> tuple[int, str]:
    """Bytes of all maps, and a sentence on the time of epochs, measured by a step and a validation of few images."""
    loop = runner.val_loop
    with _watched(trunk) as passes:
        began = time.perf_counter()
        dry_step.train(runner.model, runner.train_dataloader, runner.optim_wrapper)
        step = time.perf_counter() - began
        of_trunk, shown, values = sum(one[0] for one in passes), passes[0][1], sum(one[2] for one in passes)
        passes.clear()
        if loop is not None:
            dry_step.validate(runner.model, runner.val_dataloader, runner.val_evaluator, loop.fp16)
    epoch = images / shown / get_world_size()
    of_validation = len(loop.dataloader.dataset) * sum(one[2] for one in passes) if loop is not None else 0
    return round((images * views / shown * values + of_validation) * store.dtype.itemsize), (
        f"An epoch takes about {epoch * step:.0f} s until all views are kept ({views} epochs), and about "
        f"{epoch * (step - of_trunk):.0f} s then"
    )
