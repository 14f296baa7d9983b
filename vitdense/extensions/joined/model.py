"""Several trained models on one trunk, whose blocks run once for all of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from vitdense.families import arguments
from vitdense.mm.config.model_index import load_trained
from vitdense.mm.config.query import pixel_steps
from vitdense.mm.data.images import Images
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor, check_batches
from vitdense.mm.work_folder import find_checkpoint
from vitdense.models.base import Backbone, tap
from vitdense.models.vit.model import ViT
from vitdense.models.vit.tokens import TokenViT
from vitdense.results.result import Result

# Options of trunks that change no map of an image, or that the tensors show.
FREE = (
    *("init_cfg", "with_cp", "drop_path_rate", "frozen_stages", "finetune", "rope_augment"),
    *("out_indices", "out_norm", "output_cls_token"),
    *("pretrain_img_size", "img_size"),
)
WHOLE = Backbone.forward, Backbone.forward_patches
OUTPUT_NORMS = r"norm\d*(\..+)?"  # each model has its own


def join(*models: str | Path, names: Sequence[str] | None = None, **options: Any) -> "Joined":
    """Several trained models on one trunk.

    ``results = vitdense.join("work_dirs/a", "work_dirs/b")("photo.jpg")`` is a dict; ``results["a"]`` equals
    ``vitdense.load("work_dirs/a")("photo.jpg")``.

    Args:
        *models: Work folders, or names of published models; see `vitdense.load`.
        names: Names of the models in results; by default the folders' names.
        **options: Options of `vitdense.mm.precision.Inference`, as for `vitdense.load`.

    Raises:
        ConfigError: Fewer than two models, or two of one name; see also `Joined` and `vitdense.load`.
    """
    found, inference = find_models(models, names), Inference(**options)
    return Joined({name: Predictor(*trained, inference) for name, trained in found.items()})


def find_models(models: Sequence[str | Path], names: Sequence[str] | None = None) -> dict[str, tuple[Config, str]]:
    """The config and the checkpoint of each model by name; see `join`."""
    names = [Path(model).resolve().name for model in models] if names is None else names
    if len(models) < 2 or not len(models) == len(names) == len({*names}) or "/" in "".join(names):
        raise ConfigError(f"join: got {join_some(models)} as {list(names)}, expected models of different names=[...]")
    found = [load_trained(str(model), None) for model in models]
    return {name: (cfg, find_checkpoint(saved)) for name, (cfg, saved) in zip(names, found)}


class Joined:
    """Several trained models on one trunk.

    Args:
        models: The models by name. They share a trunk from then on.

    Attributes:
        models: See above.
        trunk: The shared trunk.

    Raises:
        ConfigError: The trunks or the preparation of images differ, or a head runs blocks of its trunk.
    """

    def __init__(self, models: Mapping[str, Predictor]) -> None:
        self.models = dict(models)
        first, *others = self.models.items()
        for other in others:
            check_same(first, other)
        self.trunk = SharedTrunk([model.model.backbone for model in self.models.values()])
        for i, model in enumerate(self.models.values()):
            model.model.backbone = Reader(self.trunk, i)

    def __call__(
        self, images: Images | Iterable[Images], score_thr: float | None = None, batch_size: int = 8
    ) -> dict[str, Result] | list[dict[str, Result]]:
        """Predict as `Predictor` does; every image has a dict of results by model name."""
        if isinstance(images, Images):
            return next(self.stream([images], score_thr, batch_size))
        return list(self.stream(images, score_thr, batch_size))

    def stream(
        self, images: Iterable[Images], score_thr: float | None = None, batch_size: int = 8
    ) -> Iterator[dict[str, Result]]:
        """Predict on any number of images; see `Predictor.stream`."""
        check_batches(images, batch_size)
        models = [(model, model.threshold(score_thr)) for model in self.models.values()]
        return self._stream(iter(images), models, batch_size)

    def _stream(
        self, images: Iterator[Images], models: Sequence[tuple], batch_size: int
    ) -> Iterator[dict[str, Result]]:
        while batch := list(islice(images, batch_size)):
            pixels = [models[0][0].reader.pixels(image) for image in batch]
            with self.trunk.once():
                found = [[*model.results(batch, pixels, threshold)] for model, threshold in models]
            for results in zip(*found):
                yield dict(zip(self.models, results))


class SharedTrunk(nn.Module):
    """Trunks that differ only in their outputs, joined.

    Args:
        trunks: They share their modules from then on, except output norms.
    """

    def __init__(self, trunks: Sequence[Backbone]) -> None:
        super().__init__()
        self.source = max(trunks, key=lambda trunk: trunk.out_indices[-1])
        for trunk in trunks:
            for name, child in self.source.named_children():
                if not re.fullmatch(OUTPUT_NORMS, name):
                    setattr(trunk, name, child)
        self.trunks = nn.ModuleList(trunks)
        self._seen: list[tuple[Tensor, list[tuple]]] | None = None

    @contextmanager
    def once(self) -> Iterator[None]:
        """Within this context, the same batch runs through the trunk once."""
        self._seen = []
        try:
            yield
        finally:
            self._seen = None

    def forward(self, x: Tensor) -> list[tuple]:
        """An image ``[B, 3, H, W]`` to the outputs of each trunk."""
        for batch, outs in self._seen or ():
            # A program has one image, and all models pad it in the same way, as was checked.
            if torch.compiler.is_compiling() or (batch.shape == x.shape and batch.equal(x)):
                return outs
        outs = tap([*self.trunks], [*self.source.unroll(self.source.embed(x))])
        if self._seen is not None:
            self._seen.append((x, outs))
        return outs


class Reader(nn.Module):
    """One trunk of a `SharedTrunk`, in place of a model's backbone."""

    def __init__(self, trunk: SharedTrunk, index: int) -> None:
        super().__init__()
        self.trunk, self.index = trunk, index

    def forward(self, x: Tensor) -> tuple:
        """An image ``[B, 3, H, W]`` to the outputs of this trunk."""
        return self.trunk(x)[self.index]


def check_same(first: tuple[str, Predictor], other: tuple[str, Predictor]) -> None:
    """Raise a ConfigError unless the trunks of two models get the same image and compute the same maps, bit by bit."""
    want, got = (facts_of(model) for _, model in (first, other))
    for key in want | got:
        one, two = want.get(key), got.get(key)
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            if one.dtype == two.dtype and one.equal(two):
                continue
            differs = f"{list(two.shape)} and {list(one.shape)}, with other values"
        elif type(one) is type(two) and one == two:
            continue
        else:
            differs = " and ".join("absent" if isinstance(x, Tensor | None) else f"{x}" for x in (two, one))
        raise ConfigError(
            f"join: {key} of {other[0]} and {first[0]} is {differs}; models are joined that were trained on one trunk, "
            f"frozen (frozen_stages='all'), with the same images"
        )


def facts_of(model: Predictor) -> dict[str, Any]:
    """The facts that the maps of a model's trunk depend on, by the name of the option or tensor.

    Raises:
        ConfigError: The trunk cannot be shared.
    """
    cfg, trunk, of_images = model.model.cfg, model.model.backbone, model.model.data_preprocessor
    kind, config = type(trunk), f"join: {cfg.filename} has"
    if not isinstance(trunk, Backbone) or (kind.forward, kind.forward_patches) != WHOLE:
        raise ConfigError(f"{config} the backbone {kind.__name__}, expected one of vitdense that ends before the head")
    if any(".lora." in key for key in trunk.state_dict()):
        raise ConfigError(f"{config} model.backbone.finetune='lora', whose updates make it another trunk")
    if cfg.model.get("test_cfg", {}).get("mode") == "slide":
        raise ConfigError(f"{config} model.test_cfg.mode='slide', expected 'whole': its trunk sees parts of an image")
    given = arguments(kind) | dict(cfg.model.backbone)
    facts = {"model.backbone.type": ViT if kind is TokenViT else kind}
    facts |= {f"model.backbone.{key}": getattr(trunk, key, given[key]) for key in sorted({*given} - {*FREE, "type"})}
    steps = pixel_steps(cfg)
    facts |= {f"step {i} of the test pipeline": step for i, step in enumerate(steps)}
    options = cfg.model.data_preprocessor
    facts |= {f"model.data_preprocessor.{key}": options.get(key) for key in ("mean", "std", "bgr_to_rgb", "rgb_to_bgr")}
    facts["padding of model.data_preprocessor"] = padding_of(of_images, steps)
    tensors = {key: x for key, x in trunk.state_dict().items() if not re.fullmatch(OUTPUT_NORMS, key)}
    return facts | {f"model.backbone.{key}": x for key, x in tensors.items()}


def padding_of(preprocessor: nn.Module, steps: Sequence[Mapping]) -> tuple | None:
    """How test images are padded: (divisor, size, value); None if their sizes need no padding."""
    of_test = getattr(preprocessor, "test_cfg", {"size_divisor": preprocessor.pad_size_divisor}) or {}  # of mmseg
    divisor, size = of_test.get("size_divisor") or 1, of_test.get("size")
    scales = [step["scale"] for step in steps if step["type"] == "Resize" and not step.get("keep_ratio")]
    is_whole = divisor == 1 or (scales and not any(side % divisor for side in scales[-1]))
    return None if is_whole and size is None else (divisor, size, float(preprocessor.pad_value))
