"""Check that this machine's engine computes what the trained model did: ``python verify.py NAME.onnx``.

It compares with the file ``NAME.proof`` beside the program. This file needs only `vitdense.runtime`: copy both.
"""

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

if __package__:
    from vitdense import runtime
else:
    import runtime

# Fields of results, and the kinds of their numbers.
FOUND = {
    "boxes": "f",
    "scores": "f",
    "labels": "iu",
    "masks": "b",
    "semantic": "iu",
    "panoptic": "iu",
    "keypoints": "f",
    "corners": "f",
}
SAMPLED = ("sizes", "at", "values")  # fields of `Proof`
HALF_ERROR = 0.02  # usual relative error of a block in half precision


class Proof:
    """What a trained model found in photos and computed inside; `vitdense export` writes the file.

    Args:
        path: The file.
        model: The name of one model in a file of several; None for the first.

    Attributes:
        models: Names of all models in the file; ``[""]`` for a file of one.
        model: The name of this model.
        about, outputs, precision: Metadata, outputs and precision (a key of `vitdense.runtime.BOUNDS`) of the program.
        checksum: CRC-32 of the program's file.
        blocks: Names of the model's blocks in the order of the graph; the first is the image.
        tensors: Tensors of the graph for the other blocks.
        inner: The tensors that are not outputs.
        bounds: Largest relative error of every block, [blocks]: ``own`` for the engines that the export ran, ``half``
            for an engine in half precision.
        limits: Bounds for results by the same names, as fields of `vitdense.runtime.Bounds`.
        photos: [H, W, 3] uint8 RGB each, or bands [H, W, C] float32.
        sizes, at, values: For each photo: number of elements of every block [blocks], indices of samples [blocks,
            samples], and their values [blocks, samples].
        results: The results for each photo.

    Raises:
        ValueError: The file is missing, truncated or not a proof, or its parts do not fit together.
    """

    def __init__(self, path: str | os.PathLike, model: str | None = None) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                self.models = [name.rpartition("/")[0] for name in file.files if name.endswith("index")]
                self.model = self.models[0] if model is None else model
                start = f"{self.model}/" if self.model else ""
                names = [name for name in file.files if name.startswith((start, "photo"))]
                arrays = {name.removeprefix(start): file[name] for name in names}
            index = json.loads(str(arrays["index"]))
            self.about, self.outputs, self.precision = index["about"], index["outputs"], index["precision"]
            self.checksum, self.limits = index["checksum"], index["limits"]
            self.blocks, self.tensors, self.bounds = index["blocks"], index["tensors"], index["bounds"]
            self.inner = [name for name in self.tensors if name not in self.outputs]
            numbers = range(index["photos"])
            self.photos = [arrays[f"photo{i}"] for i in numbers]
            self.sizes, self.at, self.values = ([arrays[f"{name}{i}"] for i in numbers] for name in SAMPLED)
            self.results = [
                runtime.Output(**{name: arrays.get(f"{name}{i}") for name in FOUND}, segments=index["segments"][i])
                for i in numbers
            ]
            self._check()
        except FileNotFoundError:
            raise ValueError(f"{path}: there is no such file; export the program again, without --no-proof") from None
        except Exception as error:  # files, archives and arrays have no common error
            reason = f"{type(error).__name__}: {runtime.reason_of(error)}"
            raise ValueError(f"{path}: it is cut, or no proof of vitdense export ({reason})") from error

    def _check(self) -> None:
        blocks, bounds = len(self.blocks), [np.array(self.bounds[name], float) for name in ("own", "half")]
        if not self.photos:
            raise ValueError("it has no photo")
        if not isinstance(self.about, dict) or not {*map(type, (*self.outputs, *self.blocks, *self.tensors))} <= {str}:
            raise ValueError("got others than names of outputs, blocks or tensors, or no description of the program")
        if self.precision not in runtime.BOUNDS or blocks != len(self.tensors) + 1:
            raise ValueError(f"got precision {self.precision!r}, {blocks} blocks and {len(self.tensors)} tensors")
        if any(one.shape != (blocks,) or not ((one > 0) & (one < np.inf)).all() for one in bounds):
            raise ValueError("got bounds that are not a number above 0 for each block")
        for limits in (self.limits["own"], self.limits["half"]):
            given = vars(runtime.Bounds(**limits)).items()
            numbers = [value for name, value in given if value is not None or name not in ("error", "points")]
            if not np.isfinite(np.array(numbers, float)).all():
                raise ValueError(f"got limits {limits}")
        for photo, sizes, at, values, found in zip(self.photos, self.sizes, self.at, self.values, self.results):
            is_photo = (photo.dtype == np.uint8 and photo.shape[2:] == (3,)) or photo.dtype == np.float32
            if not is_photo or photo.ndim != 3 or not photo.size:
                raise ValueError(f"got a photo {photo.dtype} {list(photo.shape)}")
            fits = sizes.shape == (blocks,) and at.shape == values.shape == (blocks, at.shape[-1])
            if not fits or (sizes.dtype.kind, at.dtype.kind, values.dtype.kind) != ("i", "i", "f"):
                raise ValueError("got samples that are not numbers of each block")
            if (at < 0).any() or (at >= sizes[:, None]).any() or not np.isfinite(values).all():
                raise ValueError("got samples that are not finite, or outside their blocks")
            _check_found(found, photo.shape[:2])


def _check_found(found: runtime.Output, size: tuple[int, ...]) -> None:
    """Raise a ValueError unless the results of a proof for a photo of (h, w) pixels fit together."""
    arrays = {name: value for name in FOUND if (value := getattr(found, name)) is not None}
    number, points = len(arrays.get("boxes", ())), np.shape(found.keypoints)[1:2]
    shapes = {"boxes": (number, 4), "scores": (number,), "labels": (number,), "masks": (number, *size)}
    shapes |= {"semantic": size, "panoptic": size, "keypoints": (number, *points, 3), "corners": (number, 4, 2)}
    wrong = [name for name, x in arrays.items() if x.shape != shapes[name] or x.dtype.kind not in FOUND[name]]
    wrong += [name for name, x in arrays.items() if x.dtype.kind == "f" and not np.isfinite(x).all()]
    of_objects = {"boxes", "scores", "labels"} & arrays.keys()
    if wrong or len(of_objects) in (1, 2) or not (of_objects or {"semantic", "panoptic"} & arrays.keys()):
        raise ValueError(f"got {', '.join(wrong or arrays) or 'nothing'} as what was found")
    if "panoptic" in arrays:
        labels = [segment["label"] for segment in found.segments]
        if found.panoptic.min() < 0 or found.panoptic.max() > len(labels) or not {*map(type, labels)} <= {int}:
            raise ValueError("got ids of segments without a label")


def verify(
    path: str | os.PathLike,
    engine: str = "onnxruntime",
    threads: int = 0,
    run: Callable[[np.ndarray, Sequence[str]], Mapping[str, np.ndarray]] | None = None,
    **options: object,
) -> tuple[bool, str]:
    """Whether an engine computes what the trained model did, by the file ``NAME.proof`` beside a program.

    Args:
        path: The program.
        engine, threads, **options: See `vitdense.runtime.Program`.
        run: A function in place of an engine, for others such as TensorRT: a batch and tensor names to the tensors.

    Returns:
        Whether it does, and what was compared: the first block that departs, by how much, and a common cause.

    Raises:
        ValueError: The program or the proof is missing, or the proof is truncated or not a proof.
        EngineError: The engine is not installed, has no such precision, or cannot run the program as it was exported.
    """
    if os.fspath(path).endswith(".xml"):
        raise ValueError(f"{path}: got OpenVINO's own format, expected the ONNX file of the export, which it reads too")
    checksum, file = None if run else checksum_of(path), os.path.splitext(path)[0] + ".proof"
    found = {}
    for model in Proof(file).models:
        same, said = verify_model(path, Proof(file, model), checksum, engine, threads, run, **options)
        found[same] = [*found.get(same, ()), f"{model}, {said}" if model else said]
    return False not in found, "; ".join(found.get(False) or found[True])


def verify_model(
    path: str | os.PathLike,
    proof: Proof,
    checksum: int | None,
    engine: str,
    threads: int,
    run: Callable[[np.ndarray, Sequence[str]], Mapping[str, np.ndarray]] | None,
    **options: object,
) -> tuple[bool, str]:
    """As `verify`, by the proof of one model; `checksum` is the program's."""
    is_whole, is_half = checksum == proof.checksum, options.get("precision", "f32") != "f32"
    try:
        if run:
            names = [*proof.outputs, *proof.inner]
            start = f"{proof.model}/" if proof.model else ""
            about = {start + key: json.dumps(value) for key, value in proof.about.items()}
            dtype = np.float16 if proof.precision == "float16" else np.float32
            loaded = runtime.Engine(lambda batch: [*map(run(batch, names).get, names)], names, dtype, about)
        else:
            loaded = opened(path, proof.inner, engine, threads, **options)
        program = runtime.Program(path, loaded, model=proof.model)
        same, said = compare_program(program, proof, is_half)
    except runtime.EngineError:
        raise
    except ValueError as error:
        if is_whole:
            said = f"{path} is as it was exported, but {engine} cannot run it; another version or engine may"
            raise runtime.EngineError(f"{said} ({runtime.reason_of(error.__cause__ or error)})") from error
        same, said = False, f"differs: {error}"
    if run or (same and is_whole):
        return same, said
    if same and proof.precision == "int8":  # the scales may differ, too
        same, said = False, f"differs: int8, whose bounds are too wide to tell it from another ({said})"
    return same, f"{said}; the file is {'as it was exported' if is_whole else 'another than was exported'}"


def opened(path: str | os.PathLike, names: Sequence[str], *args: object, **options: object) -> runtime.Engine:
    """Open a program that also returns the tensors of these names; see `vitdense.runtime.open_engine`."""
    with open(path, "rb") as file:
        content = file.read() + outputs_of_graph(names)
    return runtime.open_engine(path, *args, content=content, **options)


def outputs_of_graph(names: Sequence[str]) -> bytes:
    """Bytes to append to an ONNX file, so that these tensors become outputs: protobuf merges the two parts.

    Field 7 of a model is its graph, field 12 of a graph an output, field 1 of an output its name.
    """

    def field(number: int, content: bytes) -> bytes:
        length, size = bytearray(), len(content)
        while size > 127:  # 7 bits a byte, the lowest first
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2, *length, size]) + content

    return field(7, b"".join(field(12, field(1, name.encode())) for name in names))


def checksum_of(path: str | os.PathLike) -> int:
    """CRC-32 of a program; a ValueError if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return zlib.crc32(file.read())
    except OSError as error:
        raise ValueError(f"{path}: got no program that can be read ({error.strerror})") from error


def compare_program(program: runtime.Program, proof: Proof, is_half: bool) -> tuple[bool, str]:
    """Whether a program computes what its proof has; `is_half`: the engine uses half precision. See `verify`."""
    for key in (key for key in runtime.KEYS if program.about.get(key) != proof.about.get(key)):
        return False, f"differs: the file says {key} {program.about.get(key)}, but at export {proof.about.get(key)}"
    errors, pairs, bounds = np.zeros(len(proof.blocks)), [], np.array(proof.bounds["half" if is_half else "own"])
    for photo, want, *sampled in zip(proof.photos, proof.results, proof.sizes, proof.at, proof.values):
        batch = program.batch(photo)
        found = program.run(batch)
        if absent := [name for name in (*proof.outputs, *proof.tensors) if name not in found]:
            return False, f"differs: got a program without {absent}, which it had at export: of another form or model"
        computed = [batch[0], *(found[name] for name in proof.tensors)]
        errors = np.maximum(errors, [*map(error_at, computed, *sampled)])  # keeps NaN
        pairs.append((program.read(found, photo.shape[:2], 0.0), want))
    if proof.precision == "int8":
        pairs = [(runtime.above(got, program.score_thr), runtime.above(want, program.score_thr)) for got, want in pairs]
    wrong = np.flatnonzero(~(errors <= bounds))
    if len(wrong):
        first = wrong[0]
        cause = cause_of(first, errors[first], proof.bounds["half"][first], is_half)
        return False, (
            f"differs from {proof.blocks[first]} on: relative error {errors[first]:.1e}, expected at most "
            f"{bounds[first]:.1e}. Commonly {cause}"
        )
    i = (errors / bounds).argmax()
    said = f"{len(errors) - 1} blocks, at most {errors[i]:.1e} of {bounds[i]:.1e} allowed, in {proof.blocks[i]}"
    limits = runtime.Bounds(**proof.limits["half" if is_half else "own"])
    if all(want.boxes is not None and not runtime.counting(want, limits).any() for _, want in pairs):
        return True, f"same: {said}; the model finds no object in the photos"
    if proof.precision == "int8":  # as at the export
        share, results = runtime.changes(pairs)
        fits, results = share <= 1 - limits.objects, f"{results}, expected at most {1 - limits.objects:.1%}"
    else:
        fits, results = runtime.compare_results(pairs, limits)
    if fits:
        return True, f"same: {said}; {results}"
    return False, (
        f"differs in what is found, after the blocks: {results}. Commonly thresholds, suppression, or the order of "
        f"classes: the end of the graph"
    )


def error_at(found: np.ndarray, size: int, at: np.ndarray, values: np.ndarray) -> float:
    """The relative error of a tensor at sampled indices; infinite if its number of elements differs."""
    if found.size != size:
        return np.inf
    return relative(found.ravel()[at], values)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The relative error of an array (Frobenius norm)."""
    return float(np.linalg.norm(got.ravel().astype(np.float64) - want.ravel()) / max(np.linalg.norm(want), 1e-12))


def cause_of(block: int, error: float, half: float, is_half: bool) -> str:
    """A common cause when this block is the first to depart."""
    if block == 0:
        return "the resize, mean and std, or the order of channels"
    if np.isinf(error):
        return "a transposed layout, or a program for another size"
    if error <= min(half, HALF_ERROR) and not is_half:
        return "half precision, of the engine (ask it for float32) or of an op of the file"
    if block == 1:
        return "the order of channels, mean and std, a transposed layout, or changed weights"
    return "an op of this block that another opset or converter changed, other weights, or another quantisation"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 the same, 1 different, 2 if it cannot be compared."""
    parser = argparse.ArgumentParser(
        "vitdense verify" if __package__ else None,
        description="Whether the engine of this machine computes what a trained model did.",
    )
    parser.add_argument("program", metavar="NAME.onnx", help="the program; NAME.proof lies beside it")
    parser.add_argument("--engine", default="onnxruntime", choices=runtime.ENGINES)
    parser.add_argument("--precision", choices=("f32", "bf16", "f16"), help="of OpenVINO")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; default: all")
    args = parser.parse_args(argv)
    if args.precision and args.engine != "openvino":
        parser.error("--precision: got onnxruntime, which computes as the file says; expected --engine openvino")
    try:
        options = {"precision": args.precision} if args.precision else {}
        same, said = verify(args.program, args.engine, args.threads, **options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.program} in {args.engine} {args.precision or ''}".rstrip(), said, sep=": ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
