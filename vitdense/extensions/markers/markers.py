"""Check by marker images whether boxes, masks and label maps move with the image in the steps of a pipeline.

Before each step, the objects of an image, or the pixels of some labels, are painted. After it, the paint must lie in
the boxes and masks of the same objects, or in pixels of the same labels. The step also runs on a plain image with the
same random numbers; paint is where the two results differ. So changes of colours, borders, erased and mixed-in parts
cancel out.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
from torch.utils.data import Dataset

from vitdense.mm.data.faults import Fault
from vitdense.mm.data.label_maps import UNLABELLED
from vitdense.mm.data.seeded import seed_everything
from vitdense.mm.data.transforms import steps_of
from vitdense.results import draw

KINDS = OBJECTS, LABELS = "objects", "labels"
IMAGES = 16
PLAIN, PAINT = 70, 200  # grey values
NEAR = 3  # tolerance around boxes and masks in pixels: steps interpolate
MARKED = 0.25  # share of the largest difference that counts as paint: steps mix images
STRAY = 0.1  # share of stray paint at which a box, mask or map does not follow
SEEN = 2  # least images with stray paint for a warning


def look(dataset: Dataset, where: str) -> Iterator[Fault]:
    """Warnings for steps that move images without their annotations.

    Args:
        dataset: A built training set. It is changed: give a copy.
        where: Its key in the config.
    """
    watched = []
    for place, _, steps, i in steps_of(dataset, where):
        steps[i] = _Watched(steps[i], place)
        watched.append(steps[i])
    for i in range(IMAGES):
        seed_everything(i)
        dataset[i * len(dataset) // IMAGES]
    for step in watched:
        for name, seen in step.stray.items():
            if len(seen) >= SEEN:
                image, region = seen[0]
                grey = image[..., :1].astype(np.uint8).repeat(3, -1)  # [H, W, 3]
                picture = f"painted, and the {name}", draw.overlay(grey, region.astype(int), [(0, 0, 0), draw.MARK])
                what = f"{name} do not follow the image: of {len(seen)} of {step.images} images, they are elsewhere"
                fix = "move them in this step as it moves the image"
                yield Fault(what, step.place, fix=fix, grave=False, pictures=(picture,))


class _Watched:
    """Wraps a step of a pipeline and checks where its paint goes."""

    def __init__(self, step: Any, place: str) -> None:
        self.step, self.place, self.images, self.stray = step, place, 0, {}

    def __getattr__(self, name: str) -> Any:
        if name == "step":  # a copy in the making has none yet
            raise AttributeError(name)
        return getattr(self.step, name)

    def __call__(self, results: dict) -> dict | None:
        seed, plain = np.random.randint(2**31), None  # noqa: NPY002 -- as the transforms of mm
        if isinstance(results.get("img"), np.ndarray) and any(_regions(results, kind) for kind in KINDS):
            plain = self._run(results, seed)
            self.images += 1
        for kind in KINDS if plain and isinstance(plain.get("img"), np.ndarray) else ():
            chosen = _chosen(plain, kind)
            out = self._run(results, seed, kind, chosen) if len(chosen) else None
            if out is not None and np.array_equal(_chosen(out, kind), chosen):
                for name, region in _stray(plain["img"], out, kind, chosen):
                    self.stray.setdefault(name, []).append((out["img"], region))
        return self.step(results)

    def _run(self, results: dict, seed: int, kind: str = OBJECTS, chosen: Sequence[int] = ()) -> dict | None:
        """Run the step on images with these objects or labels painted."""
        step, results = copy.deepcopy((self.step, results))
        # Also the images of `MultiImageMixDataset`, and of steps that cache some.
        mixed, start = [results, *results.get("mix_results", ()), *getattr(step, "results_cache", ())], 0
        for one in mixed:
            if "gt_bboxes_labels" in one:  # replaced by numbers, to find the objects again
                stop = start + len(one["gt_bboxes_labels"])
                one["gt_bboxes_labels"], start = np.arange(start, stop), stop
            one["img"] = image = np.full_like(one["img"], PLAIN)
            regions = [x for x in _regions(one, kind, chosen).values() if x.shape == image.shape[:2]]
            image[np.logical_and.reduce(regions) if regions else []] = PAINT
        seed_everything(seed)
        with suppress(Exception):  # a step may refuse painted labels or images
            return step(results)
        return None


def _regions(one: dict, kind: str, chosen: Sequence[int] = ()) -> dict[str, np.ndarray]:
    """Where chosen objects or labels are, [H, W] bool, by the kind of annotation."""
    if kind == LABELS:
        labels = one.get("gt_seg_map")
        return {} if labels is None else {"label maps": np.isin(labels, chosen)}
    boxes, masks = getattr(one.get("gt_bboxes"), "tensor", one.get("gt_bboxes")), one.get("gt_masks")
    kept, found = np.isin(one.get("gt_bboxes_labels", ()), chosen), {}
    if boxes is not None and boxes.shape[-1] == 4 and len(boxes) == len(kept):
        found["boxes"] = np.zeros(one["img"].shape[:2], bool)
        for left, top, right, bottom in np.asarray(boxes)[kept].clip(0).round().astype(int):
            found["boxes"][top:bottom, left:right] = True
    if masks is not None and len(masks) == len(kept):
        found["masks"] = masks[np.flatnonzero(kept)].to_ndarray().astype(bool).any(0)
    return found


def _chosen(out: dict, kind: str) -> np.ndarray:
    """The objects that are left; or rare labels, which together have at most half of the pixels."""
    if kind == OBJECTS:
        return np.sort(out.get("gt_bboxes_labels", np.zeros(0)))
    maps = out.get("gt_seg_map", np.zeros(0))
    labels, pixels = np.unique(maps[maps != UNLABELLED], return_counts=True)
    order = np.argsort(pixels, kind="stable")
    return np.sort(labels[order][2 * pixels[order].cumsum() <= pixels.sum()])


def _stray(plain: np.ndarray, out: dict, kind: str, chosen: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """The kinds of annotations that miss much of the paint, and their regions, [H, W] bool."""
    image = out["img"]
    if image.shape != plain.shape:  # the step has its own random numbers
        return
    change = (image.astype(np.float32) - plain).reshape(*image.shape[:2], -1).sum(-1)  # [H, W]
    for name, region in _regions(out, kind, [*chosen, UNLABELLED]).items():
        (h, w), (height, width) = region.shape, change.shape
        region = region & (abs(h * width - w * height) <= max(height, width))  # another aspect does not follow
        near = cv2.resize(region.view(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
        near = cv2.dilate(near, np.ones((2 * NEAR + 1, 2 * NEAR + 1), np.uint8)).view(bool)
        if not near.all():
            marked = np.abs(change - np.median(change[~near])) * (change != 0)
            paint = marked > MARKED * marked.max()
            if (paint & ~near).sum() > STRAY * paint.sum():
                yield name, near
