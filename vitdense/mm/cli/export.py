"""Export of detectors (mmdet), or their maps, and of segmentors (mmseg)."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, save_program
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.query import leaf_datasets
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.part import Part
from vitdense.mm.export.proof import Record, write_records
from vitdense.mm.export.samples import of_noise, of_one_size, of_photos, paths_of
from vitdense.mm.export.tasks import JoinedTask
from vitdense.mm.joined import Joined
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor
from vitdense.runtime import ENGINES

FORMATS = ("pt2", "onnx")
EXAMPLE, UNSEEN = (2, 320, 384), (1, 97, 131)  # batch, height, width: to export with, and to compare at
PHOTOS, HELD_BACK, CALIBRATION = 3, 20, 100  # of the test data to compare at, for int8; of the training data
INT8_BOUND = 0.1


def export(cfg: Config, checkpoint: str, *args: Any, **options: Any) -> str:
    """As `export_joined`, of one model."""
    return export_joined({"": (cfg, checkpoint)}, *args, **options)


def export_joined(
    models: Mapping[str, tuple[Config, str]],
    path: Path,
    to: str,
    static: tuple[int, int] | None = None,
    precision: str = "float32",
    maps: bool = False,
    images: Sequence[str] = (),
    preprocessing: bool = False,
    calibration: Sequence[str] = (),
    unchecked: bool = False,
    classes: Sequence[str] | None = None,
    proof: bool = True,
    int8_bound: float = INT8_BOUND,
) -> str:
    """Export a detector or a segmentor, or several models on one trunk, and compare the result with the model, from the
    photo to its objects.

    Args:
        models: Config and checkpoint, see `vitdense.mm.predictor.load_model`, by the name before the names of outputs,
            ``NAME/boxes``; empty for one model.
        path: File to write.
        to: One of `FORMATS`.
        static: Image (h, w) in pixels, for one image of this size; all sizes and batches when None.
        precision: ``float32``; ``float16``, of weights and maps; or ``int8``, see `vitdense.export.int8`.
        maps: Of a detector of boxes, its maps instead of its objects.
        images: Photos to compare a detector's objects on, or any program in int8 or of photos; some of the config's
            test data when empty. For int8 they are others than those of the calibration.
        preprocessing: The program takes photos; see `vitdense.export.preprocessing.of_photos`.
        calibration: Photos for int8; some of the config's training data when empty.
        unchecked: Write it also where the model finds nothing to compare at.
        classes: See `vitdense.mm.predictor.load_model`.
        proof: Write ``NAME.proof`` beside an ONNX file that `vitdense.runtime` reads; see `vitdense.export.proof`.
        int8_bound: Lost and new objects of int8, as a share of the model's; of a segmentor, pixels with another class.

    Returns:
        What was written and compared.

    Raises:
        ConfigError: onnx is not installed; options do not go together, or the model has no such program; there are no
            photos, or the model finds nothing in them; or the result differs from the model by more than `BOUNDS`:
            nothing is written. See also `load_model` and `vitdense.mm.joined.Joined`.
    """
    if to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
    int8, is_joined = precision == "int8", len(models) > 1
    if is_joined and (int8 or maps or preprocessing):
        raise ConfigError("--joined: got --int8, --maps or --with-preprocessing, expected none of them")
    for option, given in (("--with-preprocessing", preprocessing), ("--int8", int8)):
        if given and (to != "onnx" or maps):
            raise ConfigError(f"{option}: got --to {to}{' --maps' * maps}, expected --to onnx without --maps")
    if not 0 <= int8_bound <= 1:
        raise ConfigError(f"--int8-bound: got {int8_bound}, expected a share, 0 to 1")
    check_writable(path, "--out")
    predictors = {}
    for name, (cfg, checkpoint) in models.items():
        cfg = of_one_size(cfg, static) if static else cfg
        predictors[name] = Predictor(cfg, checkpoint, Inference(score_thr=0.0), classes)
    trunk = Joined(predictors).trunk if is_joined else None
    scopes = [f"tasks.{i}." if is_joined else "" for i in range(len(models))]
    parts = [Part(*named, maps, scope, precision) for named, scope in zip(predictors.items(), scopes)]
    task = JoinedTask({name: part.task for name, part in zip(models, parts)}, trunk).eval() if trunk else parts[0].task
    predictor, about = parts[0].predictor, parts[0].about  # of images, what is true of all
    cfg = predictor.model.cfg
    channels = cfg.model.backbone.get("in_channels", 3)
    if preprocessing and "resize" not in about:
        raise ConfigError("--with-preprocessing: the test pipeline moves pixels otherwise, expected one Resize at most")
    for part in parts:
        if int8 and not part.task.finds:
            raise ConfigError(f"--int8: got {part.kind}, expected a detector or a segmentor")
        if not (static or part.task.any_size):
            raise ConfigError(f"export: {part.kind} has a program for one size only; add --static H W")
    of_noise_alone = not (preprocessing or int8 or any(part.task.needs_photos for part in parts))
    if of_noise_alone:
        samples = [of_noise((1, channels, *static) if static else (UNSEEN[0], channels, *UNSEEN[1:]))]
    else:
        photos, calibrating = paths_of(predictor.dataset, images, HELD_BACK if int8 else PHOTOS), []
        if int8:
            calibrating = paths_of(next(leaf_datasets(cfg.train_dataloader.dataset)), calibration, CALIBRATION)
            seen = {*map(os.path.abspath, calibrating)}
            photos = [path for path in photos if os.path.abspath(path) not in seen]
            if not photos:
                raise ConfigError("--int8: all photos to compare at are calibrated on; give others: --images")
        samples = [*of_photos(photos, predictor, about, preprocessing)]

    with torch.no_grad():
        for part in parts:
            part.want(samples, by_results=not of_noise_alone)
            if not part.compares and not unchecked:
                raise ConfigError(
                    f"export: {part.kind} finds no object with a score above {part.bounds.score} in {len(samples)} "
                    f"photos, so the program could not be compared with it; give other --images, or --unchecked to "
                    f"write it all the same"
                )
        for part in parts:
            fix(part.predictor.model)
        outputs = [*task(samples[0].image)]
    reads = to == "onnx" and not maps and "resize" in about and predictor.reader.own_reader is None
    records = [Record(task, part, images, preprocessing) for part in parts if proof and reads]
    metadata = {key: value for part in parts for key, value in part.metadata.items()}
    shape = (1, channels, *static) if static else (EXAMPLE[0], channels, *EXAMPLE[1:])
    dtype = torch.float16 if precision == "float16" else torch.float32
    _say("exporting the program, a minute or more")
    program = export_program(task.to(dtype), torch.zeros(shape, dtype=dtype), not static)
    said = []
    with atomic_write(path) as scratch:
        _say(f"writing {to}")
        if to == "pt2":
            save_program(program, scratch, metadata)
        else:
            for name in ("onnxscript", "onnx_ir"):  # they name constants that they do not fold
                logging.getLogger(name).setLevel(logging.ERROR)
            save_onnx(program, scratch, outputs, metadata)
        if int8:
            from vitdense.export.int8 import quantise

            _say("calibrating int8")
            read_photos = of_photos(calibrating, predictor, about, preprocessing=False)
            quantise(scratch, (sample.given.numpy() for sample in read_photos))
        if preprocessing:
            import onnx

            from vitdense.export import preprocessing as steps

            onnx.save(steps.of_photos(onnx.load(scratch), about), scratch)
        for name, run in _runs(scratch, to).items():
            _say(f"comparing in {name}")
            try:
                with torch.no_grad():
                    got = [run(sample.given if preprocessing else sample.given.to(dtype)) for sample in samples]
            except (AssertionError, RuntimeError) as error:  # a guard of torch's program, or an assertion in it
                if isinstance(error, RuntimeError) and "Runtime assertion failed" not in str(error):
                    raise
                raise ConfigError(
                    f"{path}: the program takes no images of {list(samples[0].given.shape)} ({error}); not written; "
                    f"export for one size (--static H W) or --to onnx, or give larger --images"
                ) from error
            for part in parts:
                fits, compared = part.compare(got, samples, int8_bound)
                said.append(f"{name}: {compared}")
                if not fits:
                    hint = "" if precision == "float32" else "; export in float32"
                    raise ConfigError(f"{path}: got in {name} {compared}; not written{hint}")
    if records:
        said.append(write_records(records, path.with_suffix(".proof"), path, precision))
    elif to == "onnx":
        path.with_suffix(".proof").unlink(missing_ok=True)  # of the program that was here before
    sizes = " and ".join(dict.fromkeys(str(list(sample.given.shape)) for sample in samples))
    listed = ", ".join(f"{name} {list(out.shape)}" for name, out in got[0].items())
    return "\n".join((f"{path} ({path.stat().st_size / 1e6:.1f} MB) at {sizes}", *said, listed))


def _say(text: str) -> None:
    print_log(f"export: {text}", logger="current")


def _runs(path: Path, to: str) -> dict[str, Callable[[Tensor], Mapping]]:
    """A file in each of these runtimes that is installed: an image to the outputs by name."""
    if to == "pt2":
        return {"torch": torch.export.load(path).module()}
    engines = {name: ENGINES[name](path) for name in ENGINES if find_spec(name)}
    return {
        name: lambda image, engine=engine: dict(zip(engine.outputs, engine.run(image.numpy())))
        for name, engine in engines.items()
    }
