"""Export of detectors (mmdet), their maps, and segmentors (mmseg)."""

import argparse
import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor
from torch.export import ExportedProgram

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, save_program
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.query import leaf_datasets
from vitdense.mm.errors import ConfigError
from vitdense.mm.export import INT8_BOUND
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.samples import Sample, of_noise, of_one_size, of_photos, paths_of
from vitdense.mm.export.tasks import Part, Task
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor
from vitdense.runtime import ENGINES
from vitdense.seams import call

EXAMPLE, UNSEEN = (2, 320, 384), (1, 97, 131)  # batch, height, width of the example, and of images to compare on
PHOTOS, HELD_BACK, CALIBRATION = 3, 20, 100  # photos to compare on, the same for int8, and to calibrate with


@dataclass(frozen=True)
class Wish:
    """The file to write.

    Attributes:
        path: The file.
        to: One of `vitdense.mm.export.FORMATS`.
        static: Size (h, w) in pixels for one image of this size; None for all sizes and batches.
        precision: ``float32``; ``float16`` for weights and maps; or ``int8``, see `vitdense.export.int8`.
        maps: Export a detector's maps instead of its objects.
        images: Photos to compare objects on, or any program in int8; some of the config's test data when
            empty. For int8 they must not be among the calibration photos.
        calibration: Photos for int8; some of the config's training data when empty.
        unchecked: Write the file even if the model finds nothing to compare on.
        int8_bound: Most lost and new objects in int8, as a share; for a segmentor, most pixels with another class.
    """

    path: Path
    to: str
    static: tuple[int, int] | None = None
    precision: str = "float32"
    maps: bool = False
    images: Sequence[str] = ()
    calibration: Sequence[str] = ()
    unchecked: bool = False
    int8_bound: float = INT8_BOUND

    def __post_init__(self) -> None:
        if self.to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
            raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
        if self.int8 and (self.to != "onnx" or self.maps):
            raise ConfigError(f"--int8: got --to {self.to}{' --maps' * self.maps}, expected --to onnx without --maps")
        if not 0 <= self.int8_bound <= 1:
            raise ConfigError(f"--int8-bound: got {self.int8_bound}, expected a share, 0 to 1")
        check_writable(self.path, "--out")

    @classmethod
    def of(cls, args: argparse.Namespace, path: Path) -> "Wish":
        precision = "int8" if args.int8 else "float16" if args.half else "float32"
        static = tuple(args.static) if args.static else None
        options = (args.images, args.calibrate, args.unchecked, args.int8_bound)
        return cls(path, args.to, static, precision, args.maps, *options)

    @property
    def int8(self) -> bool:
        return self.precision == "int8"

    def load(self, cfg: Config, checkpoint: str, classes: Sequence[str] | None = None) -> Predictor:
        cfg = of_one_size(cfg, self.static) if self.static else cfg
        return Predictor(cfg, checkpoint, Inference(score_thr=0.0), classes)


class Made(NamedTuple):
    """The task to export, in float32, and its models."""

    wish: Wish
    task: Task
    parts: Sequence[Part]

    @property
    def is_read(self) -> bool:
        """Whether `vitdense.runtime` can read the file and prepare images as the config does."""
        return self.wish.to == "onnx" and not self.wish.maps and "resize" in self.parts[0].about


def export(
    cfg: Config,
    checkpoint: str,
    wish: Wish,
    classes: Sequence[str] | None = None,
    args: argparse.Namespace | None = None,
) -> str:
    """Export a detector or a segmentor, compare the program with the model, and return what was found, as text.

    Args:
        cfg, checkpoint, classes: See `vitdense.mm.predictor.load_model`, also for errors.
        wish: The file to write.
        args: The parsed arguments, for options of extensions.

    Raises:
        ConfigError: Nothing is written, because the model has no such program, there are no photos, the model finds
            nothing in them, or the program differs from the model by more than `BOUNDS`.
    """
    predictor = wish.load(cfg, checkpoint, classes)
    part = Part("", predictor, wish.maps, "", wish.precision)
    return write(Made(wish, part.task, [part]), args)


def write(made: Made, args: argparse.Namespace | None = None) -> str:
    wish, task, parts = made
    check(made, args)
    samples = _samples(made)
    with torch.no_grad():
        for part in parts:
            part.want(samples, by_results=_needs_photos(made))
            if not part.compares and not wish.unchecked:
                raise ConfigError(
                    f"export: {part.kind} finds no object with a score above {part.bounds.score} in {len(samples)} "
                    f"photos, so the program could not be compared with it; give other --images, or --unchecked to "
                    f"write it all the same"
                )
        for part in parts:
            fix(part.predictor.model)
        outputs = [*task(samples[0].image)]
    _say("exporting the program, a minute or more")
    half = wish.precision == "float16"
    example = torch.zeros(_shape(made, EXAMPLE), dtype=torch.float16 if half else torch.float32)
    program = export_program(copy.deepcopy(task).half() if half else task, example, not wish.static)
    with atomic_write(wish.path) as scratch:
        _save(program, scratch, made, outputs)
        if args is not None:
            call("export", "rewrite", args, program=scratch, model=made)
        said, got = _compare(scratch, made, samples)
    if args is not None:
        call("export", "after", args, program=wish.path, model=made, cfg=parts[0].predictor.model.cfg)
    sizes = " and ".join(dict.fromkeys(str(list(sample.given.shape)) for sample in samples))
    listed = ", ".join(f"{name} {list(out.shape)}" for name, out in got.items())
    return "\n".join((f"{wish.path} ({wish.path.stat().st_size / 1e6:.1f} MB) at {sizes}", *said, listed))


def check(made: Made, args: argparse.Namespace | None) -> None:
    """Raise a ConfigError if a model has no program of the wished kind."""
    wish = made.wish
    for part in made.parts:
        if wish.int8 and not part.task.finds:
            raise ConfigError(f"--int8: got {part.kind}, expected a detector or a segmentor")
        if not (wish.static or part.task.any_size):
            raise ConfigError(f"export: {part.kind} has a program for one size only; add --static H W")
    if args is not None:
        call("export", "check", args, model=made)


def _shape(made: Made, shape: Sequence[int]) -> tuple[int, ...]:
    """[B, C, H, W] of the wished size, or of (B, H, W)."""
    channels = made.parts[0].predictor.model.cfg.model.backbone.get("in_channels", 3)
    return (1, channels, *made.wish.static) if made.wish.static else (shape[0], channels, *shape[1:])


def _samples(made: Made) -> list[Sample]:
    wish, predictor, about = made.wish, made.parts[0].predictor, made.parts[0].about
    if not _needs_photos(made):
        return [of_noise(_shape(made, UNSEEN))]
    photos = paths_of(predictor.dataset, wish.images, HELD_BACK if wish.int8 else PHOTOS)
    if wish.int8:
        seen = {*map(os.path.abspath, _calibrating(made))}
        photos = [path for path in photos if os.path.abspath(path) not in seen]
        if not photos:
            raise ConfigError("--int8: all photos to compare at are calibrated on; give others: --images")
    return [*of_photos(photos, predictor, about, made.parts[0].of_photos)]


def _needs_photos(made: Made) -> bool:
    return made.wish.int8 or any(part.task.needs_photos or part.of_photos for part in made.parts)


def _calibrating(made: Made) -> Sequence[str]:
    cfg = made.parts[0].predictor.model.cfg
    return paths_of(next(leaf_datasets(cfg.train_dataloader.dataset)), made.wish.calibration, CALIBRATION)


def _save(program: ExportedProgram, path: Path, made: Made, outputs: Sequence[str]) -> None:
    metadata = {key: value for part in made.parts for key, value in part.metadata.items()}
    wish, predictor, about = made.wish, made.parts[0].predictor, made.parts[0].about
    _say(f"writing {wish.to}")
    if wish.to == "pt2":
        save_program(program, path, metadata)
        return
    for name in ("onnxscript", "onnx_ir"):  # they name constants that they do not fold
        logging.getLogger(name).setLevel(logging.ERROR)
    save_onnx(program, path, outputs, metadata)
    if wish.int8:
        from vitdense.export.int8 import quantise

        _say("calibrating int8")
        read_photos = of_photos(_calibrating(made), predictor, about)
        quantise(path, (sample.given.numpy() for sample in read_photos))


def _compare(path: Path, made: Made, samples: Sequence[Sample]) -> tuple[list[str], Mapping]:
    """Compare in each runtime: lines of text, and the outputs for an image; a ConfigError if they differ."""
    wish, said = made.wish, []
    for name, run in _runs(path, wish.to).items():
        _say(f"comparing in {name}")
        half = wish.precision == "float16" and not made.parts[0].of_photos
        try:
            with torch.no_grad():
                got = [run(sample.given.half() if half else sample.given) for sample in samples]
        except (AssertionError, RuntimeError) as error:  # a guard of torch's program, or an assertion in it
            if isinstance(error, RuntimeError) and "Runtime assertion failed" not in str(error):
                raise
            raise ConfigError(
                f"{wish.path}: the program takes no images of {list(samples[0].given.shape)} ({error}); not written; "
                f"export for one size (--static H W) or --to onnx, or give larger --images"
            ) from error
        for part in made.parts:
            fits, compared = part.compare(got, samples, wish.int8_bound)
            said.append(f"{name}: {compared}")
            if not fits:
                hint = "" if wish.precision == "float32" else "; export in float32"
                raise ConfigError(f"{wish.path}: got in {name} {compared}; not written{hint}")
    return said, got[0]


def _say(text: str) -> None:
    print_log(f"export: {text}", logger="current")


def _runs(path: Path, to: str) -> dict[str, Callable[[Tensor], Mapping]]:
    if to == "pt2":
        return {"torch": torch.export.load(path).module()}
    engines = {name: ENGINES[name](path) for name in ENGINES if find_spec(name)}
    return {
        name: lambda image, engine=engine: dict(zip(engine.outputs, engine.run(image.numpy())))
        for name, engine in engines.items()
    }
