"""Steps of pipelines that move an image without its annotations are found, and named; sound ones are not."""

import copy

import cv2
import numpy as np
import pytest
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS, init_default_scope

from vitdense.extensions.markers.markers import look

HEIGHT, WIDTH = 120, 160


class Drawn:
    def __init__(self, kind, *steps):
        init_default_scope("mmseg" if kind == "maps" else "mmdet")
        self.kind, self.pipeline = kind, Compose(list(steps))

    def __len__(self):
        return 12

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        masks = np.zeros((3, HEIGHT, WIDTH), np.uint8)
        for mask in masks:
            centre, axes = draw.integers((20, 20), (WIDTH - 20, HEIGHT - 20)), draw.integers(8, 20, 2)
            cv2.ellipse(mask, centre.tolist(), axes.tolist(), 0, 0, 360, 1, -1)
        size = {"img_shape": (HEIGHT, WIDTH), "ori_shape": (HEIGHT, WIDTH), "height": HEIGHT, "width": WIDTH}
        sample = {"img": draw.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8), "img_id": index, "img_path": "", **size}
        if self.kind == "maps":
            labels = (masks * np.uint8([[[1]], [[2]], [[3]]])).max(0)
            sample |= {"gt_seg_map": labels, "seg_fields": ["gt_seg_map"], "reduce_zero_label": False}
        else:
            objects = BitmapMasks(masks, HEIGHT, WIDTH)
            sample |= {"gt_bboxes": objects.get_bboxes(HorizontalBoxes), "gt_ignore_flags": np.zeros(3, bool)}
            sample |= {"gt_bboxes_labels": np.array([0, 1, 0])}
            sample |= {"gt_masks": objects} if self.kind == "masks" else {}
        found = self.pipeline(sample)
        return self[(index + 1) % len(self)] if found is None else found


class Mixed:
    def __init__(self, dataset, *steps):
        self.dataset, self.pipeline = dataset, [TRANSFORMS.build(step) for step in steps]

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        results = self.dataset[index]
        for step in self.pipeline:
            if hasattr(step, "get_indexes"):
                indexes = np.ravel(step.get_indexes(self.dataset))
                results["mix_results"] = [copy.deepcopy(self.dataset[int(i)]) for i in indexes]
            results = step(results)
            results.pop("mix_results", None)
        return results


FLIP = {"type": "RandomFlip", "prob": 0.5}
CROP = {"type": "RandomCrop", "crop_size": (70, 70)}
RESIZE = {"type": "RandomResize", "scale": (200, 150), "ratio_range": (0.5, 2.0), "keep_ratio": True}
COLOURS = [{"type": x, "prob": 1.0} for x in ("Invert", "Equalize", "Contrast", "Solarize", "Posterize")]
SOUND = {
    "colours": ("boxes", *COLOURS, {"type": "PhotoMetricDistortion"}, FLIP),
    "geometry": ("masks", RESIZE, FLIP, CROP, {"type": "Rotate", "prob": 1.0}, {"type": "Pad", "size": (300, 300)}),
    "objects that are left out": (
        "boxes",
        {"type": "MinIoURandomCrop", "min_ious": (0.1,)},
        {"type": "FilterAnnotations", "min_gt_bbox_wh": (30, 30)},
    ),
    "erased": ("masks", {"type": "RandomErasing", "n_patches": (1, 8), "ratio": (0, 0.4)}),
    "policies": ("masks", {"type": "AutoAugment"}, {"type": "RandAugment", "aug_num": 2}),
    "boxes": (
        "boxes",
        {"type": "RandomAffine"},
        {"type": "Expand"},
        {"type": "CutOut", "n_holes": 3, "cutout_shape": (40, 40)},
    ),
    "cached": ("boxes", *({"type": f"Cached{x}", "img_scale": (90, 90)} for x in ("Mosaic", "MixUp"))),
    "maps": (
        "maps",
        RESIZE,
        FLIP,
        {**CROP, "cat_max_ratio": 0.75},
        {"type": "RandomRotate", "prob": 1.0, "degree": 30.0},
    ),
    "maps and colours": (
        "maps",
        {"type": "CLAHE"},
        {"type": "RandomCutOut", "prob": 1.0, "n_holes": 3, "cutout_ratio": (0.3, 0.3)},
    ),
    "classes that are joined": ("maps", lambda x: {**x, "gt_seg_map": np.minimum(x["gt_seg_map"], 2)}, FLIP),
}


@pytest.mark.long
@pytest.mark.parametrize("steps", SOUND.values(), ids=SOUND)
def test_sound_pipelines(steps):
    assert not list(look(Drawn(*steps), ""))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "steps"), [("boxes", ("Mosaic", "MixUp")), ("masks", ("CopyPaste",)), ("masks", ("vitdense.Mosaic",))]
)
def test_sound_mixtures(kind, steps):
    steps = [{"type": step, **({} if step == "CopyPaste" else {"img_scale": (90, 90)})} for step in steps]
    assert not list(look(Mixed(Drawn(kind), *steps), ""))


def flip(x):
    return {**x, "img": x["img"][:, ::-1]} if np.random.rand() < 0.5 else x  # noqa: NPY002 -- as mm's


def rotate(x):
    turn = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), 30, 1)
    masks = [cv2.warpAffine(mask, turn, (WIDTH, HEIGHT)) for mask in x["gt_masks"].masks]
    boxes = BitmapMasks(masks, HEIGHT, WIDTH).get_bboxes(HorizontalBoxes)
    return {**x, "img": cv2.warpAffine(x["img"], turn, (WIDTH, HEIGHT)), "gt_bboxes": boxes}


WRONG = {
    "resize": lambda x: {**x, "img": cv2.resize(x["img"], (WIDTH // 2, HEIGHT // 2))},
    "crop": lambda x: {**x, "img": x["img"][30:, 40:]},
    "flip with masks": lambda x: {**x, "img": x["img"][:, ::-1], "gt_masks": x["gt_masks"].flip()},
    "map of another size": lambda x: {**x, "gt_seg_map": x["gt_seg_map"][:, :-20]},
    "shift": lambda x: {**x, "gt_seg_map": np.roll(x["gt_seg_map"], 12, 1)},
}


class LooksUp:
    def __call__(self, x):
        assert len(np.array([1.0, 2.0])[x["gt_bboxes_labels"]]) == len(x["gt_bboxes_labels"])
        return x


@pytest.mark.parametrize(
    ("kind", "steps", "found"),
    [
        ("boxes", (FLIP, flip, CROP), {"1 (function): boxes"}),
        ("boxes", (WRONG["resize"],), {"0 (function): boxes"}),
        ("boxes", (WRONG["crop"], FLIP), {"0 (function): boxes"}),
        ("boxes", (LooksUp(), flip, LooksUp()), {"1 (function): boxes"}),
        ("masks", (flip, FLIP), {"0 (function): boxes", "0 (function): masks"}),
        ("masks", (WRONG["flip with masks"], FLIP), {"0 (function): boxes"}),
        ("masks", (FLIP, rotate, FLIP), {"1 (function): masks"}),
        ("maps", (flip, {"type": "PhotoMetricDistortion"}), {"0 (function): label maps"}),
        ("maps", (WRONG["map of another size"],), {"0 (function): label maps"}),
        ("maps", (FLIP, WRONG["shift"]), {"1 (function): label maps"}),
    ],
)
def test_a_step_that_moves_only_the_image_is_named(kind, steps, found):
    faults = list(look(Drawn(kind, *steps), "data"))
    assert {str(fault).split(" do not")[0] for fault in faults} == {f"data.pipeline.{x}" for x in found}
    assert not any(fault.grave for fault in faults)
    assert all(fault.pictures[0][1].ndim == 3 for fault in faults)


def test_a_step_inside_of_a_mixture_is_named():
    (fault,) = look(Mixed(Drawn("boxes", flip), {"type": "Mosaic", "img_scale": (90, 90)}), "data")
    assert fault.where == "data.dataset.pipeline.0 (function)"
