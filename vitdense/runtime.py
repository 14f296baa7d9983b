"""A program of `tools/export.py` without torch and without this package: images in, results out.

This file needs NumPy and onnxruntime alone; copy it into a product. ::

    model = Program("exports/cascade_swin_t_coco.onnx")
    result = model(image)  # [H, W, 3] uint8 RGB, for example numpy.asarray(PIL.Image.open("photo.jpg").convert("RGB"))
    for box, score, label in zip(result.boxes, result.scores, result.labels):
        print(model.names[label], score, box)
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Output:
    """What a program found in an image of H x W pixels.

    Attributes:
        boxes: [N, 4] float32: left, upper, right and lower edge in pixels. Of a segmentor, as the next two: None.
        scores: [N] float32, 0 to 1, the highest first.
        labels: [N] int64, indices of the program's `names`.
        masks: [N, H, W] bool, of a detector that has them.
        semantic: [H, W] int64, indices of `names`; of a detector: None.
    """

    boxes: np.ndarray | None = None
    scores: np.ndarray | None = None
    labels: np.ndarray | None = None
    masks: np.ndarray | None = None
    semantic: np.ndarray | None = None


class Program:
    """An ONNX file of `tools/export.py`, of a detector (not of its maps) or a segmentor.

    Args:
        path: The file.
        providers: Of onnxruntime, in order of preference.
        threads: Of a CPU; 0: all.

    Attributes:
        names: Of the classes.

    Raises:
        ValueError: The file is not of `tools/export.py`, or has a detector's maps.
    """

    def __init__(
        self, path: str | os.PathLike, providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 0
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(os.fspath(path), options, providers=list(providers))
        self._outs = [out.name for out in self._session.get_outputs()]
        about = {key: json.loads(value) for key, value in self._session.get_modelmeta().custom_metadata_map.items()}
        if not {"mean", "classes", "resize"} <= about.keys() or not {"boxes", "logits"} & set(self._outs):
            raise ValueError(
                f"{path}: got outputs {self._outs} and metadata {sorted(about)}, expected a file of tools/export.py "
                f"with boxes or logits, exported without --maps from a config that resizes images in one step at most"
            )
        (given,) = self._session.get_inputs()
        self._dtype = np.float16 if "float16" in given.type else np.float32
        self._static = given.shape[2:] if isinstance(given.shape[2], int) else None  # [h, w]
        self.names: list[str] = about["classes"]
        self._about = about

    def __call__(self, image: np.ndarray, score_thr: float = 0.3) -> Output:
        """Predict.

        Args:
            image: [H, W, 3] uint8 RGB, of any size.
            score_thr: Minimum score of objects, 0 to 1.

        Raises:
            ValueError: The image is none.
        """
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            got = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            raise ValueError(f"image: got {got}, expected a uint8 RGB array [H, W, 3]")
        size = image.shape[:2]
        h, w = self._static or fitted(size, self._about["resize"])
        pixels = resize(image.astype(np.float32), (h, w))
        if self._about["channels"] == "BGR":
            pixels = pixels[..., ::-1]
        if self._about["mean"] is not None:
            pixels = (pixels - np.float32(self._about["mean"])) / np.float32(self._about["std"])
        batch = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], self._dtype)  # [1, 3, h, w]
        found = dict(zip(self._outs, (out[0] for out in self._session.run(None, {"image": batch}))))
        if "logits" in found:  # [classes, h, w]
            logits = resize(found["logits"].transpose(1, 2, 0).astype(np.float32), size)  # [H, W, classes]
            one = logits.shape[2] == 1  # of one class: a logit against all else
            return Output(semantic=(logits[..., 0] > 0).astype(np.int64) if one else logits.argmax(-1))
        kept = found["scores"] >= max(score_thr, np.finfo(np.float32).tiny)  # empty places have score 0
        boxes = found["boxes"][kept] / np.float32([w / size[1], h / size[0]] * 2)
        masks = None
        if "masks" in found:
            masks = np.zeros((len(boxes), *size), bool)
            for i, (mask, box) in enumerate(zip(found["masks"][kept], boxes)):
                stride = self._about.get("mask_stride")
                whole = (
                    paste(mask, box, size) if stride is None else cover(mask, stride, (h / size[0], w / size[1]), size)
                )
                masks[i] = whole >= self._about["mask_thr"]
        return Output(boxes, found["scores"][kept], found["labels"][kept], masks)


def fitted(size: Sequence[int], rule: dict | None) -> tuple[int, int]:
    """Size (h, w) of an image after the resize of a config, ``{"scale": [long, short], "keep_ratio": bool}``."""
    h, w = size
    if rule is None:
        return h, w
    if not rule["keep_ratio"]:
        return rule["scale"][1], rule["scale"][0]
    long, short = max(rule["scale"]), min(rule["scale"])
    factor = min(long / max(h, w), short / min(h, w))
    return int(h * factor + 0.5), int(w * factor + 0.5)


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


def masks_of_queries(
    classes: np.ndarray, masks: np.ndarray, size: tuple[int, int], score_thr: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What an exported EoMT or PMT found in an image: the queries whose best class is one, with their masks.

    Args:
        classes: Logits ``[Q, classes + 1]``; the last one is "no object".
        masks: Logits ``[Q, h, w]`` of the image that the program was given, padded to whole patches.
        size: Height and width of that padded image in pixels; cut what is larger than yours.
        score_thr: Minimum probability of the class, 0 to 1.

    Returns:
        Masks, bool ``[N, H, W]``; labels, int ``[N]``; scores ``[N]``, the probability of the class times the mean
        probability within the mask. The highest score first; queries without a pixel are left out.
    """
    shares = np.exp(classes - classes.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    labels, best = shares.argmax(1), shares.max(1)
    kept = np.flatnonzero((labels < classes.shape[1] - 1) & (best >= score_thr))
    logits = resize(masks[kept].transpose(1, 2, 0), size).transpose(2, 0, 1)  # [N, H, W]
    found = logits > 0
    areas = found.sum((1, 2))
    inside = np.where(found, 1 / (1 + np.exp(-np.abs(logits))), 0).sum((1, 2)) / np.maximum(areas, 1)
    scores = best[kept] * inside
    order = [i for i in np.argsort(-scores, kind="stable") if areas[i]]
    return found[order], labels[kept][order], scores[order]
