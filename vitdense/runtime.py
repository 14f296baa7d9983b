"""A program of `vitdense export` without torch and without this package: images in, results out.

This file needs NumPy, and onnxruntime or OpenVINO; copy it into a product. ::

    model = Program("exports/cascade_swin_t_coco.onnx")
    result = model(image)  # [H, W, 3] uint8 RGB, for example numpy.asarray(PIL.Image.open("photo.jpg").convert("RGB"))
    for box, score, label in zip(result.boxes, result.scores, result.labels):
        print(model.names[label], score, box)
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Of `metadata_props`.
KEYS = ("mean", "std", "channels", "classes", "resize", "mask_thr", "mask_stride", "threshold", "queries")
BLOCK = 1 << 16  # pixels of a channel that `resize_photo` makes at once, in the cache of a CPU
OFFSET = 1000  # between the panoptic codes of objects, as in mmdet


@dataclass(eq=False)
class Output:
    """What was found in an image of H x W pixels: the objects of a detector, the one with the highest score first, the
    classes of a segmentor's pixels, or the segments of a panoptic model, which may have objects too.

    Attributes:
        boxes: [N, 4] float32: left, upper, right and lower edge in pixels. Of a segmentor, as the next two: None.
        scores: [N] float32, 0 to 1.
        labels: [N] int64, indices of the names of the classes.
        masks: [N, H, W] bool, of a detector that has them.
        semantic: [H, W] int64, indices of the names; of a detector: None.
        panoptic: [H, W] int64, ids of segments; 0 where there is none. Of other models, as the next: None.
        segments: Of every id, from 1 on: ``{"id", "label": index of names, "score": None, "is_thing": bool}``. A class
            of stuff has one segment at most.
    """

    boxes: np.ndarray | None = None
    scores: np.ndarray | None = None
    labels: np.ndarray | None = None
    masks: np.ndarray | None = field(default=None, repr=False)
    semantic: np.ndarray | None = field(default=None, repr=False)
    panoptic: np.ndarray | None = field(default=None, repr=False)
    segments: list[dict[str, Any]] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether all fields have the same values."""
        if type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(value, getattr(other, name)) for name, value in vars(self).items())

    __hash__ = None


@dataclass
class Engine:
    """A file, loaded by a runtime.

    Attributes:
        run: A batch to the outputs.
        outputs: Their names.
        dtype: Of the batch; uint8: it is of photos, not of normalised images.
        about: The file's `metadata_props`.
    """

    run: Callable[[np.ndarray], Sequence[np.ndarray]]
    outputs: list[str]
    dtype: type
    about: dict[str, Any]


def open_onnxruntime(
    path: str | os.PathLike, threads: int = 0, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> Engine:
    """A file in onnxruntime, by its providers in order of preference."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=list(providers))
    image = session.get_inputs()[0]
    dtype = {"tensor(uint8)": np.uint8, "tensor(float16)": np.float16}.get(image.type, np.float32)
    outputs, about = [out.name for out in session.get_outputs()], session.get_modelmeta().custom_metadata_map
    return Engine(lambda batch: session.run(None, {image.name: batch}), outputs, dtype, about)


def open_openvino(path: str | os.PathLike, threads: int = 0, precision: str = "f32", device: str = "CPU") -> Engine:
    """A file in OpenVINO, which computes in ``f32``, ``bf16`` or ``f16``, whatever the file's weights are in."""
    import openvino

    core = openvino.Core()
    model = core.read_model(os.fspath(path))
    options = {"INFERENCE_PRECISION_HINT": precision}
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
    compiled = core.compile_model(model, device, options)
    about = model.get_rt_info(["framework"]).value if model.has_rt_info(["framework"]) else {}
    outputs = [out.get_any_name() for out in model.outputs]
    # Copies: the next run writes into the same memory.
    return Engine(
        lambda batch: [np.array(out) for out in compiled([batch]).values()],
        outputs,
        model.inputs[0].element_type.to_dtype().type,
        about,
    )


ENGINES = {"onnxruntime": open_onnxruntime, "openvino": open_openvino}


class Program:
    """An ONNX file of `vitdense export`, of a detector (not of its maps), a segmentor or a mask transformer.

    Args:
        path: The file.
        engine: ``onnxruntime`` or ``openvino``, the package that runs it.
        threads: Of a CPU; 0: all.
        **options: Of the engine: `providers` of onnxruntime, `precision` and `device` of OpenVINO.

    Attributes:
        names: Of the classes.
        is_panoptic: Whether results have segments.

    Raises:
        ValueError: The file is not of `vitdense export`, or has a detector's maps; or the engine is none of the two.
    """

    def __init__(
        self, path: str | os.PathLike, engine: str = "onnxruntime", threads: int = 0, **options: object
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"engine: got {engine!r}, expected one of {[*ENGINES]}")
        try:
            self._engine = ENGINES[engine](path, threads, **options)
        except ImportError:
            raise
        except Exception as error:  # engines have no error in common
            reason = str(error).strip().partition("\n")[0]
            reason = reason if len(reason) < 160 else f"...{reason[-160:]}"  # which says it after its own source lines
            raise ValueError(
                f"{path}: {engine} cannot read it: it is cut, or no file of vitdense export ({reason})"
            ) from error
        outputs, about = self._engine.outputs, self._engine.about
        needed = {"boxes": "mask_stride", "logits": "threshold", "semantic": "threshold", "classes": "queries"}
        forms = [name for name in needed if name in outputs]
        about = self._about = {key: json.loads(about[key]) for key in KEYS if key in about}
        if not forms or not {"mean", "std", "channels", "classes", "resize", needed[forms[0]]} <= about.keys():
            raise ValueError(
                f"{path}: got outputs {outputs} and metadata {sorted(about)}, expected a file of vitdense export "
                f"with one of {[*needed]}, exported without --maps from a config that resizes images in one step at "
                f"most"
            )
        self.names: list[str] = about["classes"]
        self.is_panoptic = bool((about.get("queries") or {}).get("panoptic"))
        self._of_photos = self._engine.dtype == np.uint8

    def __call__(self, image: np.ndarray, score_thr: float = 0.3) -> Output:
        """Predict.

        Args:
            image: [H, W, 3] uint8 RGB, of any size.
            score_thr: Minimum score of objects, 0 to 1.

        Raises:
            ValueError: The image is none, or has no pixel after its resize; or the score is out of range.
        """
        is_photo = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        if not is_photo or not image.size:
            got = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            raise ValueError(f"image: got {got}, expected a uint8 RGB array [H, W, 3] of at least one pixel")
        if not 0 <= score_thr <= 1:
            raise ValueError(f"score_thr: got {score_thr}, expected 0 to 1")
        size = image.shape[:2]
        seen = fitted(size, self._about["resize"])  # (h, w)
        if not min(seen):
            raise ValueError(f"image: got {list(size)} pixels, which the resize of the program makes {list(seen)}")
        batch = image[None] if self._of_photos else normalised(image, seen, self._about).astype(self._engine.dtype)
        found = dict(zip(self._engine.outputs, (out[0] for out in self._engine.run(np.ascontiguousarray(batch)))))
        return read(found, self._about, seen, size, score_thr, self._of_photos)


def read(
    found: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    seen: Sequence[int],
    size: Sequence[int],
    score_thr: float = 0.0,
    of_photo: bool = False,
) -> Output:
    """The outputs of a program for an image, as what was found in the image.

    Args:
        found: Outputs by name.
        about: The program's `metadata_props`, decoded.
        seen: Size (h, w) of the normalised image.
        size: Size (H, W) of the photo of which it was made.
        score_thr: Minimum score of objects.
        of_photo: The program takes photos: its boxes are in their pixels.
    """
    scale = seen[0] / size[0], seen[1] / size[1]
    if "boxes" in found:
        boxes = found["boxes"] if of_photo else found["boxes"] / np.float32([*scale[::-1]] * 2)
        return objects({**found, "boxes": boxes}, about, scale, size, score_thr)
    if "classes" in found:
        return of_queries(found["classes"], found["masks"], about["queries"], seen, size, score_thr)
    if "semantic" in found:
        return Output(semantic=found["semantic"])
    logits = resize(found["logits"].transpose(1, 2, 0).astype(np.float32), size)  # [H, W, classes]
    if logits.shape[2] > 1:
        return Output(semantic=logits.argmax(-1))
    threshold = about["threshold"]  # of one class, against all else
    return Output(semantic=(logits[..., 0] > np.log(threshold / (1 - threshold))).astype(np.int64))


def of_queries(
    classes: np.ndarray,
    masks: np.ndarray,
    rule: Mapping[str, Any],
    seen: Sequence[int],
    size: Sequence[int],
    score_thr: float,
) -> Output:
    """Segments and objects of logits of classes ``[Q, classes + 1]`` and of masks ``[Q, h, w]``; see `read`.

    `rule` is what the program says of its queries.
    """
    padded = [-(-side // rule["divisor"]) * rule["divisor"] for side in seen]

    def logits_of(query: int) -> np.ndarray:
        """``[H, W]``."""
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
    """A photo, [H, W, 3] uint8 RGB, as a program takes it: float32 ``[1, 3, *size]``.

    Args:
        image: The photo.
        size: To resize it to.
        about: ``channels``, ``mean`` and ``std`` of the program.
    """
    pixels = resize_photo(image, size).astype(np.float32)
    if about["channels"] == "BGR":
        pixels = pixels[..., ::-1]
    if about["mean"] is not None:
        pixels = (pixels - np.float32(about["mean"])) / np.float32(about["std"])
    return pixels.transpose(2, 0, 1)[None]  # [1, 3, *size]


def fitted(size: Sequence[int], rule: Mapping[str, Any] | None) -> tuple[int, int]:
    """Size (h, w) of an image after the resize of a config, ``{"scale": [long, short], "keep_ratio": bool}``."""
    if rule is None:
        return tuple(size)
    if not rule["keep_ratio"]:
        return rule["scale"][1], rule["scale"][0]
    long, short = max(rule["scale"]), min(rule["scale"])
    most, least = max(size), min(size)
    # In whole numbers, halves up. The smaller of two factors gives the smaller size.
    return tuple(min((2 * x * long + most) // (2 * most), (2 * x * short + least) // (2 * least)) for x in size)


def resize_photo(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """As OpenCV's `resize` of 8 bits, to the bit: uint8 ``[h, w, C]`` to ``[*size, C]``.

    OpenCV weighs the two nearest pixels of each axis by whole numbers of 2048ths, first along rows, and drops bits of
    the sums.
    """
    (h, w), (height, width) = image.shape[:2], size
    if (h, w) == (height, width):
        return image
    (x, of_x), (y, of_y) = nearest(w, width), nearest(h, height)
    of_x[(x < 0) | (x >= w - 1)] = 0  # only along rows; along columns both are then the same pixel
    x, y = ((np.clip(at, 0, n - 1), np.clip(at + 1, 0, n - 1)) for at, n in ((x, w), (y, h)))
    left, right, upper, lower = (np.rint(2048 * share).astype(np.int32) for share in (1 - of_x, of_x, 1 - of_y, of_y))
    out = np.empty((height, width, image.shape[2]), np.uint8)
    step = max(1, BLOCK // width)
    for channel in range(image.shape[2]):
        plane = np.ascontiguousarray(image[..., channel])  # [h, w]
        for rows in (slice(start, start + step) for start in range(0, height, step)):
            needed, places = np.unique([y[0][rows], y[1][rows]], return_inverse=True)
            part = plane[needed]  # [n, w]
            sums = (part.take(x[0], 1) * left + part.take(x[1], 1) * right) >> 4  # [n, width]
            above, below = sums[places.reshape(2, -1)]  # [step, width] each
            parts = (above * upper[rows, None] >> 16) + (below * lower[rows, None] >> 16)
            out[rows, :, channel] = (parts + 2) >> 2
    return out


def nearest(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each new pixel, whose centre lies between two old ones: the first of them, [new], which may be -1, and the
    share of the second one, [new] float32."""
    place = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    first = np.floor(place)
    return first.astype(np.int64), place - first


def resize(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Bilinear from pixel centre to centre, as OpenCV and torch have it: float32 ``[h, w, C]`` to ``[*size, C]``."""
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
    score_thr: float,
) -> Output:
    """What a program of a detector gives for an image, as objects.

    Args:
        found: Its outputs: boxes ``[N, 4]`` in pixels of the image, scores ``[N]``, labels ``[N]``, and masks.
        about: ``mask_stride`` and ``mask_thr`` of the program.
        scale: Size of what the program saw over that of the image, (y, x).
        size: Of the image, (H, W) in pixels.
        score_thr: Minimum score.
    """
    kept = found["scores"] >= max(score_thr, np.finfo(np.float32).tiny)  # empty places have score 0
    boxes, masks = found["boxes"][kept], None
    if "masks" in found:
        masks, stride = np.zeros((len(boxes), *size), bool), about["mask_stride"]
        for i, (mask, box) in enumerate(zip(found["masks"][kept], boxes)):
            whole = paste(mask, box, size) if stride is None else cover(mask, stride, scale, size)
            masks[i] = whole >= about["mask_thr"]
    return Output(boxes, found["scores"][kept], found["labels"][kept], masks)


def paste(mask: np.ndarray, box: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Probabilities ``[h, w]`` inside of a box (x1, y1, x2, y2) as those of an image, [*size] float32."""
    image = np.zeros(size, np.float32)
    weights, places = [], []
    for bins, start, stop, side in ((mask.shape[0], *box[1::2], size[0]), (mask.shape[1], *box[::2], size[1])):
        first, last = max(int(start) - 1, 0), min(int(np.ceil(stop)) + 1, side)
        centre = (np.arange(first, last, dtype=np.float32) + 0.5 - start) / max(stop - start, 1e-6) * bins - 0.5
        # A bilinear weight of every bin; outside of the mask lie zeros.
        weights.append(np.maximum(0, 1 - np.abs(centre[:, None] - np.arange(bins, dtype=np.float32))))  # [n, bins]
        places.append(slice(first, last))
    if weights[0].size and weights[1].size:
        image[tuple(places)] = weights[0] @ mask.astype(np.float32) @ weights[1].T
    return image


def cover(mask: np.ndarray, stride: int, scale: Sequence[float], size: Sequence[int]) -> np.ndarray:
    """Logits ``[h, w]`` of a padded image, `stride` pixels apart, as those of an image, [*size] float32.

    `scale` is the size of the image that was padded over that of the image, (y, x).
    """
    whole = [round(side * stride / by) for side, by in zip(mask.shape, scale)]
    return resize(mask[..., None].astype(np.float32), whole)[: size[0], : size[1], 0]


def instances(
    shares: np.ndarray,
    logits_of: Callable[[int], np.ndarray],
    size: Sequence[int],
    num_things: int,
    number: int,
    score_thr: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Objects of Mask2Former (Cheng et al., CVPR 2022): of all pairs of a query and a class the best.

    Args:
        shares: Probabilities of classes, ``[Q, classes + 1]``; the last one is "no object".
        logits_of: The mask of a query, ``[*size]``.
        size: Of the image, (H, W) in pixels.
        num_things: Classes of things, the first ones; others are left out.
        number: Of pairs that may be objects.
        score_thr: Minimum of a score: the probability of the class times the mean one within the mask.

    Returns:
        Boxes ``[N, 4]``, scores ``[N]``, labels ``[N]`` and masks ``[N, *size]``, the highest score first.
    """
    pairs = np.argsort(-shares[:, :-1], None, kind="stable")[:number]
    queries, labels = np.divmod(pairs, shares.shape[1] - 1)
    usable = (labels < num_things) & (shares[queries, labels] >= score_thr)  # the other factor is at most 1
    rows = []
    for query in np.unique(queries[usable]):
        logits = logits_of(query)
        mask = logits > 0
        if not mask.any():
            continue
        inside = (1 / (1 + np.exp(-logits[mask]))).mean()
        columns, lines = mask.any(0).nonzero()[0], mask.any(1).nonzero()[0]
        box = (columns[0], lines[0], columns[-1] + 1, lines[-1] + 1)
        for label in labels[usable & (queries == query)]:
            rows.append((shares[query, label] * inside, label, box, mask))
    rows = sorted((row for row in rows if row[0] >= score_thr), key=lambda row: -row[0])
    scores, labels, boxes, masks = zip(*rows) if rows else ((),) * 4
    return (
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(labels, np.int64),
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
    """Segments of MaskFormer (Cheng et al., NeurIPS 2021): every pixel goes to the query that claims it most.

    Args:
        shares, logits_of, size, num_things: See `instances`.
        score: Minimum probability of a query's class.
        iou: Minimum share of a query's mask that it must get.
        within: A query gets no pixel outside of its mask.

    Returns:
        `panoptic` and `segments` of an `Output`.
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
    """`panoptic` and `segments` of an `Output` from mmdet's codes ``[H, W]``: label + `OFFSET` * number of the object;
    a label after all classes means none."""
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
