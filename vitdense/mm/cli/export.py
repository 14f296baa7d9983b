"""Export of detectors (mmdet), or their maps, and of segmentors (mmseg)."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor

from vitdense.export.compare import above, can_compare, compare_counts, compare_maps
from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, save_program
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.query import leaf_datasets
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.proof import Record
from vitdense.mm.export.samples import Sample, describe, of_noise, of_one_size, of_photos, paths_of
from vitdense.mm.export.tasks import task_of
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor
from vitdense.runtime import BOUNDS, ENGINES, SCORE, Output, compare_results, read

FORMATS = ("pt2", "onnx")
EXAMPLE, UNSEEN = (2, 320, 384), (1, 97, 131)  # batch, height, width: to export with, and to compare at
PHOTOS, HELD_BACK, CALIBRATION = 3, 20, 100  # of the test data to compare at, for int8; of the training data
INT8_BOUND = 0.1


def export(
    cfg: Config,
    checkpoint: str,
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
    """Export a detector or a segmentor, and compare the result with the model, from the photo to its objects.

    Args:
        cfg, checkpoint, classes: See `vitdense.mm.predictor.load_model`.
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
        proof: Write ``NAME.proof`` beside an ONNX file that `vitdense.runtime` reads; see `vitdense.export.proof`.
        int8_bound: Lost and new objects of int8, as a share of the model's; of a segmentor, pixels with another class.

    Returns:
        What was written and compared.

    Raises:
        ConfigError: onnx is not installed; options do not go together, or the model has no such program; there are no
            photos, or the model finds nothing in them; or the result differs from the model by more than `BOUNDS`:
            nothing is written. See also `load_model`.
    """
    if to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
    int8 = precision == "int8"
    for option, given in (("--with-preprocessing", preprocessing), ("--int8", int8)):
        if given and (to != "onnx" or maps):
            raise ConfigError(f"{option}: got --to {to}{' --maps' * maps}, expected --to onnx without --maps")
    if not 0 <= int8_bound <= 1:
        raise ConfigError(f"--int8-bound: got {int8_bound}, expected a share, 0 to 1")
    check_writable(path, "--out")
    if static:
        cfg = of_one_size(cfg, static)
    predictor = Predictor(cfg, checkpoint, Inference(score_thr=0.0), classes)
    task, bounds, point = task_of(predictor.model, maps).eval(), BOUNDS[precision], predictor.operating_point
    score_thr = (point.thresholds if point else SCORE) if int8 else 0.0
    bounds = replace(bounds, score=np.min(score_thr)) if int8 else bounds
    metadata = describe(predictor)
    about = {key: json.loads(value) for key, value in metadata.items()}
    kind, channels = type(predictor.model).__name__, cfg.model.backbone.get("in_channels", 3)
    if preprocessing and "resize" not in about:
        raise ConfigError("--with-preprocessing: the test pipeline moves pixels otherwise, expected one Resize at most")
    if int8 and not task.finds:
        raise ConfigError(f"--int8: got {kind}, expected a detector or a segmentor")
    if not (static or task.any_size):
        raise ConfigError(f"export: {kind} has a program for one size only; add --static H W")
    of_noise_alone = not (preprocessing or int8 or task.needs_photos)
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

    def found(outputs: Mapping, sample: Sample, score_thr: float | Sequence[float] = 0.0) -> Output:
        arrays = {name: np.asarray(out[0]) for name, out in outputs.items()}
        of_photo = sample.given.dtype == torch.uint8
        return read(arrays, about, sample.image.shape[2:], sample.size, score_thr, of_photo)

    by_results = task.finds and not of_noise_alone
    with torch.no_grad():
        wanted = [task.wanted(sample) for sample in samples]
        if by_results:
            wanted = [out if isinstance(out, Output) else found(out, sample) for out, sample in zip(wanted, samples)]
            wanted = [above(out, score_thr) for out in wanted] if int8 else wanted
        compares = not by_results or can_compare(wanted, bounds)
        if not compares and not unchecked:
            raise ConfigError(
                f"export: the model finds no object with a score above {bounds.score} in {len(samples)} photos, so the "
                f"program could not be compared with it; give other --images, or --unchecked to write it all the same"
            )
        fix(predictor.model)
        outputs = [*task(samples[0].image)]
    reads = to == "onnx" and not maps and "resize" in about and predictor.reader.own_reader is None
    record = Record(task, predictor, about, images, preprocessing, found) if proof and reads else None
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
            if not compares:
                said.append(f"{name}: runs; not compared, for the model finds nothing")
                continue
            if int8:
                counted = (found(*pair, score_thr) for pair in zip(got, samples))
                fits, compared = compare_counts(zip(counted, wanted), int8_bound)
            elif by_results:
                fits, compared = compare_results(zip(map(found, got, samples), wanted), bounds)
            else:
                fits, compared = compare_maps(got, wanted, bounds)
            said.append(f"{name}: {compared}")
            if not fits:
                hint = "" if precision == "float32" else "; export in float32"
                raise ConfigError(f"{path}: got in {name} {compared}; not written{hint}")
    if record:
        said.append(record.write(path.with_suffix(".proof"), path, precision))
    elif to == "onnx":
        path.with_suffix(".proof").unlink(missing_ok=True)  # of the program that was here before
    sizes = " and ".join(str(list(sample.given.shape)) for sample in samples)
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
