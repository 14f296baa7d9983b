"""A program of `vitdense export` without torch and without this package: images in, results out.

This file needs NumPy, and onnxruntime or OpenVINO; copy it into a product. ::

    model = Program("exports/cascade_swin_t_coco.onnx")
    result = model(image)  # [H, W, 3] uint8 RGB, for example numpy.asarray(PIL.Image.open("photo.jpg").convert("RGB"))
    for box, score, label in zip(result.boxes, result.scores, result.labels):
        print(model.names[label], score, box)
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KEYS = ["mean", "std", "channels", "classes", "resize", "mask_thr", "mask_stride", "threshold", "queries"]
KEYS += ["operating_point"]
SAME = 0.5  # least IoU of boxes, turned ones too, and of masks, of the same object in `changes`
BLOCK = 1 << 16  # pixels of a channel that `resize_photo` makes at once, to stay in a CPU's cache
MaybeNone = Any  # it can be None, as the model decides; type checkers demand no test (the name is typeshed's)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _are(kind: Callable[[object], bool], value: object, lengths: Sequence[int]) -> bool:
    return isinstance(value, list) and len(value) in lengths and all(map(kind, value))


def _is_resize(value: Any) -> bool:
    is_rule = isinstance(value, dict) and isinstance(value.get("keep_ratio"), bool)
    return value is None or (is_rule and _are(_is_count, value.get("scale"), [2]))


def _is_rule_of_queries(value: object) -> bool:
    if not isinstance(value, dict):
        return value is None
    counts = [type(value.get(key)) for key in ("divisor", "things")] == [int, int] and value["divisor"] > 0
    panoptic, instances = value.get("panoptic", ...), value.get("instances", ...)
    is_known = isinstance(panoptic, dict) and panoptic.keys() == {"score", "iou", "within"}
    return counts and (panoptic is None or is_known) and type(instances) in (int, type(None))


FITS: Mapping[str, Callable[[Any], bool]] = {  # what the metadata of a program are
    "mean": lambda value: value is None or _are(_is_number, value, range(1, 1000)),
    "std": lambda value: value is None or (_are(_is_number, value, range(1, 1000)) and min(value) > 0),
    "channels": lambda value: value in ("RGB", "BGR") or _are(_is_count, value, [2]),
    "classes": lambda value: _are(lambda name: isinstance(name, str), value, range(1, 10**6)),
    "resize": _is_resize,
    "mask_thr": _is_number,
    "mask_stride": lambda value: value is None or (_is_number(value) and value > 0),
    "threshold": lambda value: value is None or (_is_number(value) and 0 < value < 1),
    "queries": _is_rule_of_queries,
}
OFFSET = 1000  # between the panoptic codes of objects, as in mmdet
SCORE = 0.3  # minimum score of an object, where the model has no operating point


@dataclass(eq=False)
class Output:
    """What was found in an image of H x W pixels. A field that the model does not predict is None.

    A detector finds objects, the highest score first; a segmentor finds the class of every pixel; a panoptic model
    finds segments, and may find objects too.

    Attributes:
        boxes: [N, 4] float32: left, upper, right and lower edge in pixels.
        scores: [N] float32, 0 to 1.
        labels: [N] int64, indices of the class names.
        masks: [N, H, W] bool.
        semantic: [H, W] int64, indices of the class names.
        panoptic: [H, W] int64, ids of segments; 0 where there is none.
        segments: One for every id, from 1 on: ``{"id", "label": index, "score": None, "is_thing": bool}``. A class of
            stuff has one segment at most.
        keypoints: [N, K, 3] float32: x and y in pixels, and a score, 0 to 1.
        corners: [N, 4, 2] float32: x and y in pixels of the corners of oriented boxes; the first side is the longer.
    """

    boxes: np.ndarray | MaybeNone = None
    scores: np.ndarray | MaybeNone = None
    labels: np.ndarray | MaybeNone = None
    masks: np.ndarray | MaybeNone = field(default=None, repr=False)
    semantic: np.ndarray | MaybeNone = field(default=None, repr=False)
    panoptic: np.ndarray | MaybeNone = field(default=None, repr=False)
    segments: list[dict[str, Any]] | MaybeNone = None
    keypoints: np.ndarray | MaybeNone = field(default=None, repr=False)
    corners: np.ndarray | MaybeNone = field(default=None, repr=False)

    @property
    def points(self) -> np.ndarray | MaybeNone:
        """Keypoints or corners, [N, K, 3 or 2]."""
        return self.keypoints if self.corners is None else self.corners

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(value, getattr(other, name)) for name, value in vars(self).items())

    __hash__ = None  # type: ignore[assignment]  # as the data model of Python says it


@dataclass(frozen=True)
class OperatingPoint:
    """Minimum scores of objects, which ``vitdense test --operating-point`` found on validation data.

    Attributes:
        wish: What was asked for: ``precision=0.9``, ``recall=0.8`` or ``f1``.
        thresholds: One minimum score for all classes, or one for each, [classes].
        precision, recall: On the validation data, with these minimum scores.
    """

    wish: str
    thresholds: float | Sequence[float]
    precision: float
    recall: float

    @classmethod
    def of(cls, content: Any, names: Sequence[str]) -> "OperatingPoint":
        """The operating point of a model with these classes, from `content`; a ValueError if it is damaged."""
        try:
            given, shares = content["thresholds"], (content["precision"], content["recall"])
            by_name = isinstance(given, Mapping)
            numbers = np.array([*(given.values() if by_name else [given]), *shares])
            if numbers.dtype.kind not in "if" or not ((numbers >= 0) & (numbers <= 1)).all():  # NaN is not
                raise ValueError(f"got {numbers.tolist()}, expected scores and shares from 0 to 1")
            if by_name and set(given) != set(names):
                raise ValueError(f"got thresholds of the classes {[*given]}, expected {[*names]}")
            return cls(str(content["wish"]), [given[name] for name in names] if by_name else given, *shares)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no operating point ({type(error).__name__}: {error})") from error

    def content(self, names: Sequence[str]) -> dict[str, Any]:
        """What a file has: thresholds of classes by their names."""
        given = self.thresholds
        return {**vars(self), "thresholds": dict(zip(names, given)) if isinstance(given, Sequence) else given}

    def __str__(self) -> str:
        least, most = np.min(self.thresholds), np.max(self.thresholds)
        scores = f"{least:.3f}" if least == most else f"{least:.3f} to {most:.3f}, by class"
        shares = f"precision {self.precision:.3f}, recall {self.recall:.3f}"
        return f"{self.wish}: scores from {scores}; on validation data {shares}"


class EngineError(ValueError):
    """An engine is not installed, or lacks a requested precision or device."""


@dataclass
class Engine:
    """A file, loaded by a runtime."""

    run: Callable[[np.ndarray], Sequence[np.ndarray]]  # a batch to the outputs
    outputs: list[str]  # names
    dtype: type  # of the batch; uint8 for photos, a float type for normalised images
    about: dict[str, Any]  # the file's `metadata_props`
    takes: str = "image"  # name of the batch; "photo" for images as they are loaded


def open_onnxruntime(
    file: str | os.PathLike | bytes, threads: int = 0, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> Engine:
    """Open a file, or its content, in onnxruntime. `providers` are in order of preference."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=list(providers))
    image = session.get_inputs()[0]
    dtype = {"tensor(uint8)": np.uint8, "tensor(float16)": np.float16}.get(image.type, np.float32)
    outputs, about = [out.name for out in session.get_outputs()], session.get_modelmeta().custom_metadata_map
    return Engine(lambda batch: session.run(None, {image.name: batch}), outputs, dtype, about, image.name)


def open_openvino(
    file: str | os.PathLike | bytes, threads: int = 0, precision: str = "f32", device: str = "CPU"
) -> Engine:
    """Open a file, or its content, in OpenVINO; it computes in ``f32``, ``bf16`` or ``f16``, whatever the weights."""
    import openvino

    core = openvino.Core()
    model = core.read_model(file)
    options: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": precision}
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
    compiled = core.compile_model(model, device, options)
    computes = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if computes != precision:
        raise EngineError(f"precision: got {precision}, in which this {device} does not compute; it has {computes}")
    about = model.get_rt_info(["framework"]).value if model.has_rt_info(["framework"]) else {}
    outputs = [out.get_any_name() for out in model.outputs]
    # Copies: the next run writes into the same memory.
    return Engine(
        lambda batch: [np.array(out) for out in compiled([batch]).values()],
        outputs,
        model.inputs[0].element_type.to_dtype().type,
        about,
        model.inputs[0].get_any_name(),
    )


ENGINES: dict[str, Callable[..., Engine]] = {"onnxruntime": open_onnxruntime, "openvino": open_openvino}
# The output that tells the kind of a model, and the key of KEYS that it needs.
FORMS = {"boxes": "mask_stride", "logits": "threshold", "semantic": "threshold", "classes": "queries"}


def open_engine(
    path: str | os.PathLike, engine: str, threads: int = 0, content: bytes | None = None, **options: Any
) -> Engine:
    """Open a file, or its changed `content`, in one of `ENGINES`; for errors see `Program`."""
    if engine not in ENGINES:
        raise ValueError(f"engine: got {engine!r}, expected one of {[*ENGINES]}")
    with open(path, "rb"):  # an absent file, a folder: the error of the system says so
        pass
    if not 0 <= threads < 1000:
        raise ValueError(f"threads: got {threads}, expected 1 to 999, or 0 for all")
    try:
        return ENGINES[engine](content or path, threads, **options)
    except EngineError:
        raise
    except ImportError as error:
        raise EngineError(f"{engine} cannot be imported: pip install {engine} ({error})") from error
    except Exception as error:  # engines have no error in common
        said = f"{path}: {engine} cannot read it: it is cut, no file of vitdense export, or has what {engine} lacks"
        raise ValueError(f"{said} ({reason_of(error)})") from error


def models_of(engine: Engine) -> list[str]:
    """The names of the models in a file; ``[""]`` for a file of one model."""
    outputs = (name.rpartition("/") for name in engine.outputs)
    return list(dict.fromkeys(model for model, _, output in outputs if output in FORMS)) or [""]


class Program:
    """An ONNX file of `vitdense export`: a detector (exported without ``--maps``), segmentor or mask transformer.

    Args:
        path: The file.
        engine: ``onnxruntime`` or ``openvino``, the package that runs it; or an `Engine` of your own.
        threads: CPU threads; 0 for all.
        model: Name of one model in a file of several (``--joined``). All models are computed.
        **options: Options of the engine: `providers` of onnxruntime, `precision` and `device` of OpenVINO.

    Attributes:
        names: Class names.
        is_panoptic: Whether results have segments.
        about: The metadata of the file: mean and std, classes, resize and others.
        of_photos: Whether the file takes photos or bands as they are loaded, and not normalised images.
        operating_point: The model's operating point; None if the file has none.
        score_thr: Minimum score of objects by default: the operating point's, or `SCORE`.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is not from `vitdense export`, or has a detector's maps; or the engine is unknown.
        EngineError: The engine is not installed, or does not have the precision.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        engine: str | Engine = "onnxruntime",
        threads: int = 0,
        model: str = "",
        **options: Any,
    ) -> None:
        self._engine = engine if isinstance(engine, Engine) else open_engine(path, engine, threads, **options)
        outputs, models = self._engine.outputs, models_of(self._engine)
        if model not in models:
            raise ValueError(f"{path}: got model={model!r}, expected one of {models}")
        start = self._start = f"{model}/" if model else ""
        forms = [name for name in FORMS if start + name in outputs]
        try:
            given = {key: self._engine.about.get(start + key) for key in KEYS}
            about = self.about = {key: json.loads(text) for key, text in given.items() if text is not None}
        except ValueError as error:
            raise ValueError(f"{path}: its metadata are no JSON ({error}); export the model again") from error
        wrong = [f"{key} {value!r}"[:60] for key, value in about.items() if key in FITS and not FITS[key](value)]
        if (about.get("mean") is None) != (about.get("std") is None):
            wrong.append("one of mean and std")
        if not forms or not {"mean", "std", "channels", "classes", "resize", FORMS[forms[0]]} <= about.keys():
            raise ValueError(
                f"{path}: got outputs {outputs[:9]} and metadata {sorted(about)}, expected a file of vitdense export "
                f"with one of {[*FORMS]}, exported without --maps from a config that reads photos of 8 bits, or bands, "
                f"and resizes them in one step at most; for others, run the file in its engine on normalised images"
            )
        channels = about["channels"]
        bands = 3 if isinstance(channels, str) or wrong else channels[0]
        if not wrong and {len(about["mean"] or [0]), len(about["std"] or [0])} - {1, bands}:
            wrong.append("mean or std of other channels")
        if wrong:
            raise ValueError(f"{path}: got metadata {', '.join(wrong)}, which no export writes; export the model again")
        self.names: list[str] = about["classes"]
        self.is_panoptic = bool((about.get("queries") or {}).get("panoptic"))
        self.of_photos = self._engine.dtype == np.uint8 or self._engine.takes == "photo"
        point = about.get("operating_point")
        try:
            self.operating_point = None if point is None else OperatingPoint.of(point, self.names)
        except ValueError as error:
            raise ValueError(f"{path}: operating_point of its metadata: {error}") from error
        self.score_thr = self.operating_point.thresholds if self.operating_point else SCORE

    def __call__(self, image: np.ndarray, score_thr: float | None = None) -> Output:
        """Predict.

        Args:
            image: [H, W, 3] uint8 RGB, of any size; for a model of bands [H, W, bands], numbers as in the files.
            score_thr: Minimum score of objects, 0 to 1; by default the program's.

        Raises:
            ValueError: The array is not an image, or has no pixel after its resize; or the score is out of range.
        """
        return self.read(self.run(self.batch(image)), image.shape[:2], score_thr)

    def batch(self, image: np.ndarray) -> np.ndarray:
        """The batch that the file takes, from an image; for it and errors see `__call__`.

        It is [1, H, W, bands] where `of_photos`, else resized and normalised, [1, bands, h, w]; RGB are three bands.
        """
        channels, is_array = self.about["channels"], isinstance(image, np.ndarray)
        of_bands = isinstance(channels, list)
        fits = is_array and image.ndim == 3 and image.size and image.shape[2] in (channels if of_bands else [3])
        if not fits or not (image.dtype.kind in "uif" if of_bands else image.dtype == np.uint8):
            got = f"{image.dtype} {list(image.shape)}" if is_array else type(image).__name__
            expected = f"an array [H, W, {channels[1]}] of numbers" if of_bands else "a uint8 RGB array [H, W, 3]"
            raise ValueError(f"image: got {got}, expected {expected} of at least one pixel")
        if of_bands:
            image = image[..., : channels[0]].astype(np.float32)
            if not np.isfinite(image).all():
                raise ValueError("image: got NaN or infinity, expected numbers; replace them, as by 0")
        size = image.shape[:2]
        seen = fitted(size, self.about["resize"])  # (h, w)
        if not min(seen):
            raise ValueError(f"image: got {list(size)} pixels, which the resize of the program makes {list(seen)}")
        if self.of_photos:
            return np.ascontiguousarray(image[None])  # [1, H, W, bands]
        return np.ascontiguousarray(normalised(image, seen, self.about).astype(self._engine.dtype))  # [1, bands, h, w]

    def run(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for a batch, by name; a ValueError if the engine fails."""
        try:
            return dict(zip(self._engine.outputs, self._engine.run(batch)))
        except Exception as error:
            raise ValueError(f"the engine fails on {batch.dtype} {list(batch.shape)} ({reason_of(error)})") from error

    def read(self, found: Mapping[str, np.ndarray], size: Sequence[int], score_thr: float | None = None) -> Output:
        """What was found in a photo of size (H, W), from the outputs for its batch; for the score see `__call__`."""
        if score_thr is not None and not 0 <= score_thr <= 1:
            raise ValueError(f"score_thr: got {score_thr}, expected 0 to 1")
        least_score = self.score_thr if score_thr is None else score_thr
        found = {name.removeprefix(self._start): out[0] for name, out in found.items()}
        return read(found, self.about, fitted(size, self.about["resize"]), size, least_score, self.of_photos)


def reason_of(error: Exception) -> str:
    """The message of an engine's error in one line: its end, without the lines of C++ source before it."""
    said = " ".join(str(error).split())
    return said if len(said) < 200 else f"...{said[-200:]}"


def read(
    found: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    seen: Sequence[int],
    size: Sequence[int],
    score_thr: float | Sequence[float] = 0.0,
    of_photo: bool = False,
) -> Output:
    """What was found in a photo.

    Args:
        found: The outputs of the program, by name.
        about: The program's `metadata_props`, decoded.
        seen: Size (h, w) of the normalised image.
        size: Size (H, W) of the photo.
        score_thr: Minimum score of objects, one for all classes or one for each.
        of_photo: Whether the program takes photos, and so returns boxes in pixels of the photo.
    """
    scale = seen[0] / size[0], seen[1] / size[1]
    if "boxes" in found:
        boxes = found["boxes"] if of_photo else found["boxes"] / np.array([*scale[::-1]] * 2, np.float32)
        return objects({**found, "boxes": boxes}, about, scale, size, score_thr)
    if "classes" in found:
        return of_queries(found["classes"], found["masks"], about["queries"], seen, size, score_thr)
    if "semantic" in found:
        return Output(semantic=found["semantic"])
    logits = resize(found["logits"].transpose(1, 2, 0).astype(np.float32), size)  # [H, W, classes]
    if logits.shape[2] > 1:
        return Output(semantic=logits.argmax(-1))
    threshold = about["threshold"]  # for models with a single class
    return Output(semantic=(logits[..., 0] > np.log(threshold / (1 - threshold))).astype(np.int64))


def of_queries(
    classes: np.ndarray,
    masks: np.ndarray,
    rule: Mapping[str, Any],
    seen: Sequence[int],
    size: Sequence[int],
    score_thr: float | Sequence[float],
) -> Output:
    """Segments and objects from logits of classes ``[Q, classes + 1]`` and masks ``[Q, h, w]``; see `read`.

    `rule` is the entry ``queries`` of the program's metadata.
    """
    padded = [-(-side // rule["divisor"]) * rule["divisor"] for side in seen]

    def logits_of(query: int) -> np.ndarray:
        """The mask logits of a query, ``[H, W]``."""
        logits = resize(masks[query, ..., None].astype(np.float32), padded)[: seen[0], : seen[1]]
        return resize(logits, size)[..., 0]

    shares = np.exp(classes.astype(np.float32) - classes.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)  # [Q, classes + 1], the last one is "no object"
    out = Output()
    if rule["panoptic"]:
        out.panoptic, out.segments = panoptic(shares, logits_of, size, rule["things"], **rule["panoptic"])
    if rule["instances"]:
        found = instances(shares, logits_of, size, rule["things"], rule["instances"], score_thr)
        out.boxes, out.scores, out.labels, out.masks = found
    return out


def normalised(image: np.ndarray, size: Sequence[int], about: Mapping[str, Any]) -> np.ndarray:
    """Resize a photo, [H, W, 3] uint8 RGB, or bands, [H, W, C] float32, to `size` and normalise it as `about` says:
    float32 ``[1, C, *size]``."""
    pixels = (resize_photo if image.dtype == np.uint8 else resize)(image, size).astype(np.float32)
    if about["channels"] == "BGR":
        pixels = pixels[..., ::-1]
    if about["mean"] is not None:
        pixels = (pixels - np.float32(about["mean"])) / np.float32(about["std"])
    return pixels.transpose(2, 0, 1)[None]  # [1, C, *size]


def fitted(size: Sequence[int], rule: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Size (h, w) of an image after the resize of a config, ``{"scale": [long, short], "keep_ratio": bool}``."""
    if rule is None:
        return tuple(size)
    if not rule["keep_ratio"]:
        return rule["scale"][1], rule["scale"][0]
    long, short = max(rule["scale"]), min(rule["scale"])
    most, least = max(size), min(size)
    # Whole numbers, halves rounded up. The smaller of two factors gives the smaller size.
    return tuple(min((2 * x * long + most) // (2 * most), (2 * x * short + least) // (2 * least)) for x in size)


def resize_photo(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize uint8 ``[h, w, C]`` to ``[*size, C]``, bit by bit equal to OpenCV's bilinear `resize` of 8-bit images.

    OpenCV weights the two nearest pixels along each axis by multiples of 1/2048, along rows first, and drops the lowest
    bits of the sums.
    """
    (h, w), (height, width) = image.shape[:2], size
    if (h, w) == (height, width):
        return image
    (x, of_x), (y, of_y) = nearest(w, width), nearest(h, height)
    of_x[(x < 0) | (x >= w - 1)] = 0  # only along rows; along columns both pixels are the same there
    xs, ys = ((np.clip(at, 0, n - 1), np.clip(at + 1, 0, n - 1)) for at, n in ((x, w), (y, h)))
    left, right, upper, lower = (np.rint(2048 * share).astype(np.int32) for share in (1 - of_x, of_x, 1 - of_y, of_y))
    out = np.empty((height, width, image.shape[2]), np.uint8)
    step = max(1, BLOCK // width)
    for channel in range(image.shape[2]):
        plane = np.ascontiguousarray(image[..., channel])  # [h, w]
        for rows in (slice(start, start + step) for start in range(0, height, step)):
            needed, places = np.unique([ys[0][rows], ys[1][rows]], return_inverse=True)
            part = plane[needed]  # [n, w]
            sums = (part.take(xs[0], 1) * left + part.take(xs[1], 1) * right) >> 4  # [n, width]
            above, below = sums[places.reshape(2, -1)]  # [step, width] each
            parts = (above * upper[rows, None] >> 16) + (below * lower[rows, None] >> 16)
            out[rows, :, channel] = (parts + 2) >> 2
    return out


def nearest(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of the two old pixels around each new pixel's centre, [new], which may be -1, and the weight of the
    second, [new] float32."""
    place = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    first = np.floor(place)
    return first.astype(np.int64), place - first


def resize(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Bilinear resize with half-pixel centres, as in OpenCV and torch: float32 ``[h, w, C]`` to ``[*size, C]``."""
    for axis, new in enumerate(size):
        old = image.shape[axis]
        if new == old:
            continue
        place = np.clip((np.arange(new, dtype=np.float32) + 0.5) * (old / new) - 0.5, 0, old - 1)  # [new]
        first = np.minimum(place.astype(np.int64), old - 1)
        share = (place - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1)).astype(np.float32)
        here, after = image.take(first, axis), image.take(np.minimum(first + 1, old - 1), axis)
        image = here + (after - here) * share
    return image


def objects(
    found: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    scale: Sequence[float],
    size: Sequence[int],
    score_thr: float | Sequence[float],
) -> Output:
    """Objects from the outputs of a detector; see `read`.

    Boxes are in pixels of the photo; `scale` (y, x) is the size of the normalised image over the photo's.
    """
    kept = found["scores"] >= least(score_thr, found["labels"]).clip(np.finfo(np.float32).tiny)  # empty places have 0
    boxes, masks = found["boxes"][kept], None
    if "masks" in found:
        masks, stride = np.zeros((len(boxes), *size), bool), about["mask_stride"]
        for i, (mask, box) in enumerate(zip(found["masks"][kept], boxes)):
            whole = paste(mask, box, size) if stride is None else cover(mask, stride, scale, size)
            masks[i] = whole >= about["mask_thr"]
    points = {  # in pixels of the normalised image
        name: found[name][kept].astype(np.float32) / np.array([*scale[::-1], 1][: found[name].shape[-1]], np.float32)
        for name in ("keypoints", "corners")
        if name in found
    }
    return Output(boxes, found["scores"][kept], found["labels"][kept], masks, **points)


def least(score_thr: float | Sequence[float], labels: np.ndarray) -> np.ndarray:
    """The minimum score of each label, from one for all classes or one per class."""
    limits = np.asarray(score_thr, np.float32)
    return limits[labels] if limits.ndim else limits


def paste(mask: np.ndarray, box: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize probabilities ``[h, w]`` to their box (x1, y1, x2, y2) in an empty image, [*size] float32."""
    image = np.zeros(size, np.float32)
    weights, places = [], []
    for bins, start, stop, side in ((mask.shape[0], *box[1::2], size[0]), (mask.shape[1], *box[::2], size[1])):
        first, last = max(int(start) - 1, 0), min(int(np.ceil(stop)) + 1, side)
        centre = (np.arange(first, last, dtype=np.float32) + 0.5 - start) / max(stop - start, 1e-6) * bins - 0.5
        # Bilinear weights of the bins, with zeros outside of the mask.
        weights.append(np.maximum(0, 1 - np.abs(centre[:, None] - np.arange(bins, dtype=np.float32))))  # [n, bins]
        places.append(slice(first, last))
    if weights[0].size and weights[1].size:
        image[tuple(places)] = weights[0] @ mask.astype(np.float32) @ weights[1].T
    return image


def cover(mask: np.ndarray, stride: int, scale: Sequence[float], size: Sequence[int]) -> np.ndarray:
    """Resize logits ``[h, w]`` of a padded image, `stride` pixels apart, to the photo, [*size] float32.

    `scale` (y, x) is the size of the image before padding over the photo's.
    """
    whole = [round(side * stride / by) for side, by in zip(mask.shape, scale)]
    return resize(mask[..., None].astype(np.float32), whole)[: size[0], : size[1], 0]


def instances(
    shares: np.ndarray,
    logits_of: Callable[[int], np.ndarray],
    size: Sequence[int],
    num_things: int,
    number: int,
    score_thr: float | Sequence[float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Objects of Mask2Former (Cheng et al., CVPR 2022): the best pairs of a query and a class.

    Args:
        shares: Probabilities of classes, ``[Q, classes + 1]``; the last one is "no object".
        logits_of: The mask of a query, ``[*size]``.
        num_things: The first `num_things` classes are things; others are left out.
        number: Most pairs that may be objects.
        score_thr: Minimum score, one for all classes or one for each. A score is the probability of the class times the
            mean probability within the mask.

    Returns:
        Boxes ``[N, 4]``, scores ``[N]``, labels ``[N]`` and masks ``[N, *size]``, the highest score first.
    """
    pairs = np.argsort(-shares[:, :-1], None, kind="stable")[:number]
    queries, labels = np.divmod(pairs, shares.shape[1] - 1)
    usable = (labels < num_things) & (shares[queries, labels] >= least(score_thr, labels))  # other factor: at most 1
    rows = []
    for query in np.unique(queries[usable]):
        logits = logits_of(query)
        mask = logits > 0
        if not mask.any():
            continue
        inside = (1 / (1 + np.exp(-logits[mask]))).mean()
        columns, lines = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
        box = (columns[0], lines[0], columns[-1] + 1, lines[-1] + 1)
        for label in labels[usable & (queries == query)]:
            rows.append((shares[query, label] * inside, label, box, mask))
    rows = sorted((row for row in rows if row[0] >= least(score_thr, row[1])), key=lambda row: -row[0])
    scores, classes, boxes, masks = zip(*rows) if rows else ((),) * 4
    return (
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(classes, np.int64),
        np.array(masks, bool).reshape(-1, *size),
    )


def panoptic(
    shares: np.ndarray,
    logits_of: Callable[[int], np.ndarray],
    size: Sequence[int],
    num_things: int,
    score: float,
    iou: float,
    within: bool,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Segments of MaskFormer (Cheng et al., NeurIPS 2021), as `panoptic` and `segments` of an `Output`.

    Every pixel goes to the query with the highest product of class and mask probability.

    Args:
        shares, logits_of, size, num_things: See `instances`.
        score: Minimum probability of a query's class.
        iou: Minimum share of its own mask that a query must get.
        within: Whether a query gets no pixel outside of its mask.
    """
    none = shares.shape[1] - 1
    labels, best = shares.argmax(1), shares.max(1)
    highest, owner, masks = np.zeros(size, np.float32), np.full(size, -1), {}
    for query in np.flatnonzero((labels != none) & (best > score)):
        logits = logits_of(query)
        claim = best[query] / (1 + np.exp(-logits))
        owner = np.where(claim > highest, query, owner)
        highest = np.maximum(claim, highest)
        masks[query] = logits >= 0
    codes, number = np.full(size, none), 1
    for query, mask in masks.items():
        own, is_thing = owner == query, labels[query] < num_things
        area, whole = own.sum(), mask.sum()
        if not area or not whole or area / whole < iou:
            continue
        codes[own & mask if within else own] = labels[query] + (number * OFFSET if is_thing else 0)
        number += is_thing
    return segments_of(codes, none, num_things)


def segments_of(codes: np.ndarray, num_classes: int, num_things: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """`panoptic` and `segments` of an `Output` from mmdet's codes ``[H, W]``, label + `OFFSET` * object number.

    A label from `num_classes` on means no segment.
    """
    values, places = np.unique(codes, return_inverse=True)
    labels = values % OFFSET
    found = labels < num_classes
    ids = np.where(found, found.cumsum(), 0)
    segments = [
        {"id": i, "label": label, "score": None, "is_thing": label < num_things}
        for i, label in zip(ids.tolist(), labels.tolist())
        if i
    ]
    return ids[places].reshape(codes.shape).astype(np.int64), segments


@dataclass(frozen=True)
class Bounds:
    """How much a program may differ from its model in float32. A program that differs more is not written."""

    error: float | None  # relative error of maps and logits; None: logits are judged by `classes`
    classes: float  # least share of pixels with the model's class
    score: float  # the model's objects with a higher score are compared
    objects: float  # least share of them that the program must find within the next three bounds
    iou: float  # least IoU of a box with the model's
    difference: float  # largest difference of scores
    mask_iou: float  # least IoU of a mask with the model's
    points: float | None = None  # least `likeness` of keypoints and corners; None: `mask_iou`


# Half precision and int8 change scores, and so which boxes NMS keeps.
BOUNDS = {
    "float32": Bounds(
        1e-4, classes=0.999, score=0.05, objects=1, iou=0.999, difference=1e-3, mask_iou=0.99, points=0.999
    ),
    "float16": Bounds(error=1e-2, classes=0.99, score=0.05, objects=1, iou=0.98, difference=2e-2, mask_iou=0.95),
    "int8": Bounds(error=None, classes=0.9, score=0.3, objects=0.9, iou=0.5, difference=0.2, mask_iou=0.5),
}


def counting(want: Output, bounds: Bounds) -> np.ndarray:
    return (want.scores > bounds.score) & (want.boxes[:, 2:] > want.boxes[:, :2]).all(1)


def compare_results(pairs: Iterable[tuple[Output, Output]], bounds: Bounds) -> tuple[bool, str]:
    """Whether a program finds the same objects or pixel classes as the model, and the largest differences as text.

    `pairs` are the outputs of the program and of the model for every image.
    """
    pairs = list(pairs)
    if pairs[0][1].boxes is not None:
        return compare_objects(pairs, bounds)
    equal = min((classes_of(got) == classes_of(want)).mean() for got, want in pairs)
    fits = bool(equal >= bounds.classes)
    said = f"{equal:.2%} of the pixels with the model's class"
    return fits, said if fits else f"{said}, expected at least {bounds.classes:.1%}"


def compare_objects(pairs: Sequence[tuple[Output, Output]], bounds: Bounds) -> tuple[bool, str]:
    of_boxes, of_scores, of_masks = likeness(pairs, bounds)  # NaN fits no bound
    if not len(of_boxes):
        return False, f"nothing to compare: no object of the model has a score above {bounds.score}"
    least = bounds.mask_iou if pairs[0][1].points is None or bounds.points is None else bounds.points
    same = (of_boxes >= bounds.iou) & (of_scores <= bounds.difference) & (of_masks >= least)
    found = (
        f"{same.sum()} of {len(same)} objects: boxes with IoU {of_boxes.min():.4f}, scores within "
        f"{of_scores.max():.1e}" + f", masks with IoU {of_masks.min():.4f}" * (pairs[0][1].masks is not None)
    )
    if pairs[0][1].points is not None:
        name = "keypoints" if pairs[0][1].corners is None else "corners"
        found += f", {name} within {1 - of_masks.min():.1e} of the side of their box"
    fits = bool(same.mean() >= bounds.objects)
    expected = f"{bounds.objects:.0%} with {bounds.iou:.4g}, {bounds.difference:.1g} and {least:.4g}"
    return fits, found if fits else f"{found} of the model's, expected {expected}"


def likeness(pairs: Iterable[tuple[Output, Output]], bounds: Bounds) -> np.ndarray:
    """Compare each object of the model with the program's nearest: IoU of boxes, difference of scores, IoU of masks,
    [3, N].

    For keypoints and corners the last is 1 - e. Here e is the largest difference of any of them, in x or y relative to
    the root of the box area, or in its score.
    """
    rows = []
    for got, want in pairs:
        overlaps = box_iou(want.boxes, got.boxes)  # [wanted, found]
        overlaps *= want.labels[:, None] == got.labels  # [wanted, found]
        differences = np.abs(want.scores[:, None] - got.scores)
        for i in np.flatnonzero(counting(want, bounds)):
            if not len(got.boxes):
                rows.append((0.0, 1.0, 0.0))
                continue
            k, of_masks = (overlaps[i] - differences[i]).argmax(), 1.0
            if want.masks is not None:
                union = (got.masks[k] | want.masks[i]).sum()
                of_masks = (got.masks[k] & want.masks[i]).sum() / union if union else 1.0
            if want.points is not None:
                side = np.sqrt((want.boxes[i, 2:] - want.boxes[i, :2]).prod())
                unit = (side, side, 1)[: want.points.shape[2]]
                of_masks = 1 - min((np.abs(x[k] - want.points[i]) / unit).max() for x in orders_of(got))
            rows.append((overlaps[i, k], differences[i, k], of_masks))
    return np.array(rows, float).reshape(-1, 3).T


def orders_of(found: Output) -> list[np.ndarray]:
    """The `points` of what was found; corners in each order, for any side of a square is the first."""
    return [np.roll(found.points, shift, 1) for shift in range(1 if found.corners is None else 4)]


def box_iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU of boxes ``[N, 4]`` (x1, y1, x2, y2) with others ``[M, 4]``: ``[N, M]``."""
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])  # [N, M, 2]
    both = sides.clip(0).prod(-1)
    areas, others_areas = ((one[:, 2:] - one[:, :2]).prod(-1) for one in (boxes, others))
    return both / np.maximum(areas[:, None] + others_areas - both, np.finfo(np.float32).tiny)


def turned_iou(corners: np.ndarray, others: np.ndarray) -> float:
    """IoU of two rectangles ``[4, 2]``, x and y of corners clockwise, by Sutherland and Hodgman's clipping."""
    shared = rows = corners.astype(float)
    others = others.astype(float)
    for start, side in zip(others, np.roll(others, -1, 0) - others):
        x, y = (shared - start).T
        inside = side[0] * y - side[1] * x  # [P], above 0 where a point is
        kept: list[np.ndarray] = []
        for point, after, a, b in zip(shared, np.roll(shared, -1, 0), inside, np.roll(inside, -1)):
            kept += [point] if a >= 0 else []
            kept += [point + (after - point) * a / (a - b)] if a * b < 0 else []
        shared = np.array(kept).reshape(-1, 2)
    both, area, other = (abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2 for x, y in (shared.T, rows.T, others.T))
    return both / max(area + other - both, float(np.finfo(np.float32).tiny))


def classes_of(found: Output) -> np.ndarray:
    """The class of every pixel, ``[H, W]``; -1 where a panoptic result has no segment."""
    if found.semantic is not None:
        return found.semantic
    return np.array([-1, *(segment["label"] for segment in found.segments)])[found.panoptic]


def changes(pairs: Iterable[tuple[Output, Output]]) -> tuple[float, str]:
    """The share of a program's lost and new objects, of the model's; or of pixels with another class. Also as text.

    `pairs` are the outputs of the program and of the model for every image, after `above`.
    """
    rows, has_boxes = [], False
    for got, want in pairs:
        has_boxes = want.boxes is not None
        if has_boxes:
            same = matched(got, want)
            rows.append((len(want.boxes) - same, len(got.boxes) - same, len(want.boxes)))
        else:
            rows.append((classes_of(got) != classes_of(want)).mean())
    if not has_boxes:
        share = float(np.mean(rows))
        return share, f"{share:.2%} of the pixels in {len(rows)} images with another class"
    lost, new, number = np.mean(rows, 0)
    share = float((lost + new) / max(number, 1e-9))
    return share, f"{lost:.2f} lost and {new:.2f} new of {number:.2f} objects per image in {len(rows)}, {share:.1%}"


def above(found: Output, score_thr: float | Sequence[float]) -> Output:
    """What was found, without objects below the minimum score, one for all classes or one for each."""
    if found.boxes is None:
        return found
    kept = found.scores >= least(score_thr, found.labels)
    more = {name: getattr(found, name) for name in ("masks", "keypoints", "corners")}
    more = {name: None if part is None else part[kept] for name, part in more.items()}
    return Output(found.boxes[kept], found.scores[kept], found.labels[kept], **more)


def matched(got: Output, want: Output) -> int:
    """How many objects of a program match the model's, greedily: the best first, each with the nearest that is left."""
    overlaps = box_iou(want.boxes, got.boxes) * (want.labels[:, None] == got.labels)  # [wanted, found]
    if want.masks is not None and overlaps.size:
        ours, theirs = (one.masks.reshape(len(one.masks), -1).astype(np.float32) for one in (want, got))
        both = ours @ theirs.T
        union = ours.sum(1)[:, None] + theirs.sum(1) - both
        overlaps *= both >= SAME * union
    if want.keypoints is not None and overlaps.size:  # mean distance relative to the side of the box
        sides = np.sqrt((want.boxes[:, 2:] - want.boxes[:, :2]).prod(1))[:, None]  # [wanted, 1]
        apart = np.abs(want.keypoints[:, None, :, :2] - got.keypoints[..., :2]).mean((2, 3))  # [wanted, found]
        overlaps *= apart <= (1 - SAME) * sides
    if want.corners is not None:
        for i, k in np.argwhere(overlaps):
            overlaps[i, k] = turned_iou(want.corners[i], got.corners[k])
    overlaps, number = overlaps[np.argsort(-want.scores)], 0
    for row in overlaps if overlaps.size else ():
        if row.max() >= SAME:
            overlaps[:, row.argmax()] = 0
            number += 1
    return number
