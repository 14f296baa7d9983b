"""Transforms of pipelines: apply the seed of a sample, load images, pad them."""

import copy
import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mmengine.registry
import numpy as np
from mmcv.transforms import BaseTransform, LoadImageFromFile, Pad
from mmengine import fileio
from mmengine.dataset import ClassBalancedDataset
from mmengine.logging import print_log

from vitdense.errors import OptionError
from vitdense.mm.data.images import by, decode
from vitdense.mm.data.seeded import Seeded, SeededIndex, SeededList, seed_everything
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import TRANSFORMS


@TRANSFORMS.register_module()
class SeedFromSample(BaseTransform):
    """First transform of a pipeline: seeds Python, numpy and torch with the seed of the index.

    Steps with their own generators, such as mmdet's and mmseg's `Albu`, are seeded too; `seed_steps` finds them. An
    index without a seed leaves the generators unchanged. mmengine draws such an index when a sample cannot be used; the
    run stays reproducible, because the first index of that draw has set the seed. With a sampler without seeds the run
    is not reproducible. A wrapper of the data set that drops seeds is refused, see `seed_steps`.
    """

    steps: Sequence[Any] | None = None  # steps of the same data set with `aug` of albumentations

    def transform(self, results: dict) -> dict:
        index = results["sample_idx"]
        if isinstance(index, SeededIndex):
            seed = seed_everything(*index.key)
            if self.steps is None:  # `seed_steps` was not called: another runner built the pipeline
                pipelines = [found for found in gc.get_referrers(self) if isinstance(found, list)]
                self.steps = _with_generators(step for steps in pipelines for step in steps)
            for i, step in enumerate(self.steps):
                step.aug.set_random_seed((seed + i) % 2**32)
        return results


@TRANSFORMS.register_module()
class PackArray(BaseTransform):
    """Another step that packs, but the image stays as it is loaded, ``[H, W, C]``: for a detector in tiles."""

    def __init__(self, pack: dict) -> None:
        self.pack = mmengine.registry.TRANSFORMS.build(pack)

    def transform(self, results: dict) -> dict:
        image = results.pop("img")
        return {**self.pack(results), "inputs": image}


@TRANSFORMS.register_module()
class LoadImage(LoadImageFromFile):
    """mmcv's `LoadImageFromFile`, whose errors name the file; see `vitdense.mm.data.images.decode`.

    Args:
        skip_unreadable: Skip an unreadable image with a warning; mmengine then draws another sample. For training only.
        to_float32, **options: See mmcv's class.

    Raises:
        ConfigError: In `transform`: an image is missing, unreadable or truncated, or of another size than annotated.
    """

    def __init__(self, skip_unreadable: bool = False, to_float32: bool = False, **options: Any) -> None:
        super().__init__(to_float32, **options)
        self.skip_unreadable, self.skipped = skip_unreadable, 0

    def transform(self, results: dict) -> dict | None:
        path = results["img_path"]
        try:
            content = fileio.get(path, backend_args=self.backend_args)
            image = decode(content, self.color_type, self.imdecode_backend)
            annotated = results.get("width"), results.get("height")  # of COCO files
            if None not in annotated and annotated != (loaded := image.shape[1::-1]):
                raise OptionError(f"it is {by(loaded)}, but annotated as {by(annotated)}: its objects are elsewhere")
        except Exception as error:  # decoders have no error in common
            reason = f"image {path} cannot be used ({type(error).__name__}: {str(error).strip()})"
            if not self.skip_unreadable:
                option = "skip_unreadable=True of vitdense.LoadImage in the training pipeline"
                raise ConfigError(f"{reason}; replace it, or set {option} to train without such images") from error
            self.skipped += 1
            print_log(f"{reason}; skipped, {self.skipped} so far in this process", "current", logging.WARNING)
            return None
        if self.to_float32:
            image = image.astype("float32")
        return {**results, "img": image, "img_shape": image.shape[:2], "ori_shape": image.shape[:2]}


@TRANSFORMS.register_module()
class PadImage(Pad):
    """mmcv's `Pad` for tests: `img_shape` stays the image's own, so that results are cropped to it."""

    def transform(self, results: dict) -> dict:
        return {**super().transform(results), "img_shape": results["img_shape"]}


def parts(dataset: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A built data set and all data sets inside of it, with their keys in the config."""
    yield path, dataset
    inside = [(f"datasets.{i}", part) for i, part in enumerate(getattr(dataset, "datasets", None) or ())]
    for name, part in (*inside, ("dataset", getattr(dataset, "dataset", None))):
        if part is not None:
            yield from parts(part, f"{path}.{name}")


def seed_steps(dataset: Any, sampler: Any = None) -> None:
    """Let the seeds of a sampler reach every `SeedFromSample` of a built data set, and steps with own generators.

    A wrapper that drops the seeds is a ConfigError.
    """
    for _, part in parts(dataset):
        if isinstance(part, ClassBalancedDataset):
            part.full_init()
            part.repeat_indices = SeededList(part.repeat_indices)
    steps = [step for _, step, _, _ in steps_of(dataset)]
    own, seeding = _with_generators(steps), [step for step in steps if isinstance(step, SeedFromSample)]
    for step in seeding:
        step.steps = own
    if seeding and isinstance(sampler, Seeded) and hasattr(dataset, "get_data_info") and len(dataset):
        index = dataset.get_data_info(SeededIndex(0, (0,))).get("sample_idx")
        if not isinstance(index, SeededIndex):
            kinds = ", ".join(type(part).__name__ for _, part in parts(dataset))
            raise ConfigError(
                f"sampler {type(sampler).__name__}: its seeds do not reach the pipeline, for a wrapper of the data set "
                f"drops them ({kinds}); let it return SeededIndex(index, given.key), or take mmengine's sampler: a "
                f"resumed training then draws other pictures"
            )


def _with_generators(steps: Iterable[Any]) -> list[Any]:
    return [step for step in steps if hasattr(getattr(step, "aug", None), "set_random_seed")]


def steps_of(dataset: Any, where: str = "") -> Iterator[tuple[str, Any, list, int]]:
    """The steps of a built data set's pipelines: key in the config, step, and its list and index there."""
    for path, part in parts(dataset, where):
        steps = getattr(part, "pipeline", None)
        steps = getattr(steps, "transforms", steps)
        for i, step in enumerate(steps if isinstance(steps, list) else ()):
            yield f"{path}.pipeline.{i} ({type(step).__name__})", step, steps, i


def places(dataset: Any, loader: str) -> dict[int, str]:
    """The keys in the config of the steps of a loader's data set, by their ids."""
    return {id(step): place for place, step, _, _ in steps_of(dataset, f"{loader}.dataset")}


def copy_of(dataset: Any) -> Any:
    """A copy of a built data set that shares its data, but not the state of its transforms, such as cached images."""
    arrays = [x for _, part in parts(dataset) for x in vars(part).values() if isinstance(x, np.ndarray)]
    return copy.deepcopy(dataset, {id(x): x for x in arrays})
