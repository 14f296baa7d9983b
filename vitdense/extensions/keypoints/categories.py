"""Keypoints in COCO annotation files: their names, skeleton and sigmas, and faults."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import AREA, AREAS, NUMBER, TOLERANCE, has_box, overview
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.errors import ConfigError, join_some

LIMBS = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
# COCO's standard deviations of annotators (cocodataset.org/#keypoints-eval), each for left and right.
SIGMAS = (0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089)
PERSON = {
    "name": "person",
    "keypoints": ["nose", *(f"{side}_{limb}" for limb in LIMBS for side in ("left", "right"))],
    "skeleton": [
        *((16, 14), (14, 12), (17, 15), (15, 13), (12, 13), (6, 12), (7, 13), (6, 7), (6, 8), (7, 9), (8, 10)),
        *((9, 11), (2, 3), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7)),
    ],
    "sigmas": [0.026, *(sigma for sigma in SIGMAS for _ in range(2))],
}
SIDES = {"left": "right", "right": "left", "l": "r", "r": "l"}
FLAGS = (0, 1, 2)  # not labelled, hidden, visible
MOST = 0.2  # largest share of objects whose keypoints may be beside their boxes
OBJECTS, MIDDLE, ERRORS = 10, 0.05, 4  # for a keypoint off the middle: objects, share of the width, standard errors
PAIRS = "flip_pairs, pairs of names that a flip swaps, in the category or the metainfo; [] if there are none"


class Kinds(NamedTuple):
    """The K keypoints of a category, as mm's `metainfo` has them.

    Attributes:
        keypoints: Names.
        skeleton: Pairs of indices from 0 that pictures join.
        sigmas: K numbers by which OKS measures distances; empty where they are not known.
        flip_pairs: Pairs of indices from 0 that a flip swaps; None if nobody states them.
    """

    keypoints: tuple[str, ...]
    skeleton: tuple[tuple[int, int], ...] = ()
    sigmas: tuple[float, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] | None = None

    @property
    def mirrored(self) -> list[int]:
        """The index of each keypoint's mirror image, by `flip_pairs`, else the other side by name; or its own."""
        if self.flip_pairs is not None:
            swapped = {a: b for pair in self.flip_pairs for a, b in (pair, pair[::-1])}
            return [swapped.get(i, i) for i in range(len(self.keypoints))]
        words = [_words(name) for name in self.keypoints]
        others = [tuple(SIDES.get(word, word) for word in one) for one in words]
        return [words.index(other) if other in words else i for i, other in enumerate(others)]

    def places_of(self, names: Sequence[str]) -> list[int]:
        """The indices of keypoints by their names.

        Raises:
            ConfigError: The names are not the ones here.
        """
        names = [clean(name) for name in names]
        if sorted(names) != sorted(self.keypoints):
            here, there = (sorted({*a} - {*b}) for a, b in ((self.keypoints, names), (names, self.keypoints)))
            raise ConfigError(
                f"keypoints: got {join_some(here) or 'fewer'}, expected {join_some(there) or 'fewer'}; give the same "
                f"keypoint the same name in both"
            )
        return [self.keypoints.index(name) for name in names]

    def in_order(self, names: Sequence[str]) -> "Kinds":
        """The same keypoints in another order; see `places_of`."""
        places = self.places_of(names)
        skeleton = tuple((places.index(a), places.index(b)) for a, b in self.skeleton)
        pairs = self.flip_pairs and tuple((places.index(a), places.index(b)) for a, b in self.flip_pairs)
        return Kinds(tuple(map(clean, names)), skeleton, tuple(self.sigmas[i] for i in places if self.sigmas), pairs)


def _words(name: str) -> tuple[str, ...]:
    """The words of left_eye, left-eye, eye.left, eye (left), lefteye, LeftEye, LEFT_EYE, LEye or L_eye."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=^[LR])(?=[A-Z][a-z])", "_", name).lower()
    parts = re.sub(r"^(left|right)(?=[a-z])", r"\1_", parts)
    return tuple(filter(None, re.split(r"[\W_]+", parts)))


def stated_pairs(about: Mapping, names: Sequence[str]) -> tuple[tuple[int, int], ...] | None:
    """The pairs of keypoints that a flip swaps, as a category or `metainfo` states them; None if it does not.

    They are ``flip_pairs``, pairs of names or of indices from 0, as MMPose has them; or ultralytics' ``flip_idx``, the
    index of each keypoint's mirror image.

    Raises:
        ConfigError: They do not fit these names, or both are stated.
    """
    stated = {key: about[key] for key in ("flip_pairs", "flip_idx") if about.get(key) is not None}
    if not stated:
        return None
    places = {name: i for i, name in enumerate(names)} | {i: i for i in range(len(names))}
    try:
        ((key, pairs),) = stated.items()
        if key == "flip_idx":
            is_order = sorted(pairs) == [*range(len(names))]
            pairs = [(i, other) for i, other in enumerate(pairs) if i != other] if is_order else None
        found = {tuple(sorted(places[clean(x)] for x in pair)) for pair in pairs}
        if all(len(pair) == 2 for pair in found) and 2 * len(found) == len({i for pair in found for i in pair}):
            return tuple(sorted(found))
    except (KeyError, TypeError, ValueError):
        pass  # as other pairs that do not fit
    raise ConfigError(
        f"got {str(stated)[:99]}, expected flip_pairs, pairs of names of keypoints or of indices from 0, each in one "
        f"pair at most; or flip_idx, the index of the mirror image of each of {len(names)} keypoints"
    )


def sigmas_fault(sigmas: Any, number: int) -> str | None:
    """What is wrong with the sigmas of a number of keypoints; None if nothing is, or there are none."""
    is_list = isinstance(sigmas, list | tuple)
    if (sigmas is None or (is_list and len(sigmas) in (0, number))) and all(
        isinstance(v, NUMBER) and 0 < v < math.inf for v in sigmas or ()
    ):
        return None
    got = f"{len(sigmas)} items" if is_list and len(sigmas) != number else str(sigmas)[:99]
    return f"sigmas: got {got}, expected a finite number above 0 for each of {number} keypoints"


def kinds_of(category: Mapping) -> Kinds:
    """The keypoints of a COCO category. Keypoints named as COCO's person get its sigmas."""
    names = tuple(clean(name) for name in category.get("keypoints") or ())
    known = {*names} == {*PERSON["keypoints"]}
    sigmas = [PERSON["sigmas"][PERSON["keypoints"].index(name)] for name in names] if known else ()
    skeleton = tuple((a - 1, b - 1) for a, b in category.get("skeleton") or ())
    return Kinds(names, skeleton, tuple(category.get("sigmas") or sigmas), stated_pairs(category, names))


def metainfo_of(file: Path, metainfo: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a data set's `metainfo` from its file, in the order of its ``keypoints``.

    The facts are from the category of the one class, else from the only category with keypoints.

    Raises:
        ConfigError: The file is not a COCO annotation file; it has no such category, or several with keypoints; or the
            category has no keypoints, other names than `metainfo`, or a skeleton, sigmas or pairs that do not fit.
    """
    categories = {one["name"]: one for one in overview(file).content}
    with_points = [name for name, one in categories.items() if one.get("keypoints")]
    names = metainfo.get("classes") or with_points or [*categories]
    if len(names) != 1 or names[0] not in categories:
        raise ConfigError(
            f"{file}: got {', '.join(map(str, names))}, expected one of its categories, {', '.join(categories)}, by "
            f"metainfo=dict(classes=(NAME,))"
        )
    if faults := list(category_faults(categories[names[0]])):
        raise ConfigError(f"{file}: {faults[0]}")
    try:
        own = kinds_of(categories[names[0]])
        own = own.in_order(metainfo.get("keypoints") or own.keypoints)
        if fault := sigmas_fault(metainfo.get("sigmas"), len(own.keypoints)):
            raise ConfigError(f"metainfo: {fault}")
        if (pairs := stated_pairs(metainfo, own.keypoints)) is not None:
            own = own._replace(flip_pairs=pairs)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    stated = {key: value for key, value in metainfo.items() if key != "flip_idx" and value is not None}
    own_facts = {"keypoints": own.keypoints, "flip_pairs": own.flip_pairs}
    return {"classes": (names[0],), **own._asdict(), **stated, **own_facts}


def with_points(content: Mapping, classes: Collection[str], names: Sequence[str]) -> dict[str, Any]:
    """The content of an annotation file, with keypoints of objects of these classes in the order of `names`.

    Missing keypoints become "not labelled".

    Raises:
        ConfigError: A class has other keypoints.
    """
    categories = [one for one in content["categories"] if clean(one["name"]) in classes]
    places = {one["id"]: kinds_of(one).places_of(names) for one in categories}
    annotations = []
    for one in content.get("annotations", ()):
        given = one.get("keypoints") if one["category_id"] in places else None
        points = [v for i in places[one["category_id"]] for v in given[3 * i : 3 * i + 3]] if given else []
        annotations.append({**one, "keypoints": points or [0] * (3 * len(names))})
    return {**content, "annotations": annotations}


def category_faults(category: Mapping) -> Iterator[Fault]:
    """What is wrong with the keypoints of a category of COCO."""
    names, where = category.get("keypoints"), f"category {category.get('name')!r}"
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        yield Fault(f"{where} has no 'keypoints', a list of names", fix="give those of a file of COCO's keypoints")
        return
    if len({*map(clean, names)}) < len(names):
        yield Fault(f"{where} has keypoints of the same name")
    pairs, numbers = category.get("skeleton") or [], range(1, len(names) + 1)
    is_right = isinstance(pairs, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    if not is_right or not all(i in numbers for pair in pairs for i in pair):
        yield Fault(f"{where}: skeleton has other numbers than pairs of 1 to {len(names)}, those of its keypoints")
    if fault := sigmas_fault(category.get("sigmas"), len(names)):
        yield Fault(f"{where}: {fault}")
    try:
        stated_pairs(category, [*map(clean, names)])
    except ConfigError as error:
        yield Fault(f"{where}: {error}")


def mirror_faults(kinds: Kinds, annotations: Sequence[Mapping]) -> Iterator[Fault]:
    """Keypoints that flips may mirror wrongly, of objects with boxes whose keypoints are in the order of `kinds`."""
    if kinds.flip_pairs is not None:
        return
    alone = [i for i, other in enumerate(kinds.mirrored) if other == i]
    if len(alone) == len(kinds.keypoints) > 1:
        yield Fault("no keypoint mirrors another by its name; flips leave all", fix=f"state {PAIRS}", grave=False)
        return
    points = np.array([one["keypoints"] for one in annotations], float).reshape(len(annotations), -1, 3)  # [N, K, 3]
    boxes = np.array([one["bbox"] for one in annotations], float).reshape(-1, 4)
    shares = (points[..., 0] - boxes[:, :1]) / boxes[:, 2:3].clip(1) - 0.5  # [N, K], of the width, from the middle
    found = []
    for i in alone:
        own = shares[points[:, i, 2] > 0, i]
        is_off = len(own) >= OBJECTS and abs(own.mean()) > max(MIDDLE, ERRORS * own.std() / math.sqrt(len(own)))
        if is_off or {*_words(kinds.keypoints[i])} & {*SIDES}:
            found.append(kinds.keypoints[i])
    if found:
        what = "keypoints have a side, by name or place, and none mirrors them by its name; flips leave them"
        yield Fault(what, items=tuple(found), fix=f"state {PAIRS}", grave=False)


def keypoint_faults(content: Mapping[str, list[dict]], classes: Collection[str]) -> Iterator[Fault]:
    """What is wrong with the keypoints of annotations, in a file without faults of `coco.examine`."""
    numbers, faults, of = {}, Faults(), {"of": "annotations"}
    for category in (one for one in content["categories"] if one["name"] in classes):
        if found := list(category_faults(category)):
            yield from found
            continue
        numbers[category["id"]] = 3 * len(category["keypoints"])
    sizes = {one["id"]: (one["width"], one["height"]) for one in content["images"]}
    number, shares, beside, objects = 0, True, [], 0
    for one in (one for one in content["annotations"] if one["category_id"] in numbers and one.get("keypoints")):
        points, wanted = one["keypoints"], numbers[one["category_id"]]
        if not isinstance(points, list) or not all(type(v) in NUMBER and abs(v) < 2**31 for v in points):
            faults.add("keypoints are no list of finite numbers", one["id"], **of)
            continue
        if len(points) != wanted:
            faults.add(f"keypoints are not {wanted} numbers, x, y and flag of each", one["id"], **of)
            continue
        x, y, flags = np.array(points, float).reshape(-1, 3).T
        if not np.isin(flags, FLAGS).all():
            faults.add("keypoints have a flag that is not 0 (not labelled), 1 (hidden) or 2 (visible)", one["id"], **of)
        x, y = x[flags > 0], y[flags > 0]
        if one.get("num_keypoints", len(x)) != len(x):
            what = "num_keypoints is not the number of labelled keypoints; the metric leaves out objects of 0"
            faults.add(what, one["id"], grave=False, **of)
        number += len(x)
        shares &= bool((np.maximum(x, y) <= 1).all())
        width, height = sizes.get(one["image_id"], (math.inf, math.inf))
        if ((x == 0) & (y == 0)).any():
            what = "keypoints are labelled at (0, 0); where that means not labelled, the flag is 0"
            faults.add(what, one["id"], grave=False, **of)
        if np.max([-x, -y, x - width, y - height], initial=0) > TOLERANCE:
            faults.add("keypoints that are labelled are outside their image", one["id"], grave=False, **of)
        if len(x) and has_box(one):
            objects += 1
            left, upper, w, h = one["bbox"]
            away = np.max([left - x, x - left - w, upper - y, y - upper - h], 0)  # [K], from the box
            if ((away > max(w, h) / 10 + TOLERANCE) & (np.maximum(x, y) > 0)).mean() > 0.5:
                beside.append(one["id"])
            if w * h / 50 - AREA <= one["area"] < w * h / 50:  # other areas are compared with masks, or reported
                faults.add(AREAS, one["id"], grave=False, **of)
    if not shares:
        what = "keypoints are beside their boxes; they are in pixels of the image, not of the box"
        faults.add(what, *beside, grave=len(beside) > MOST * objects, **of)
    yield from faults
    if content["annotations"] and numbers and (not number or shares):
        what = "keypoints look like shares of the image or of the box, not pixels"
        yield Fault(what if number else "no keypoint is labelled")
