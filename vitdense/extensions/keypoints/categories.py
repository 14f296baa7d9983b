"""Keypoints in COCO annotation files: their names, skeleton and sigmas, and faults."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import NUMBER, TOLERANCE, overview
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


class Kinds(NamedTuple):
    """The K keypoints of a category, as mm's `metainfo` has them.

    Attributes:
        keypoints: Names.
        skeleton: Pairs of indices from 0 that pictures join.
        sigmas: K numbers by which OKS measures distances; empty where they are not known.
    """

    keypoints: tuple[str, ...]
    skeleton: tuple[tuple[int, int], ...] = ()
    sigmas: tuple[float, ...] = ()

    @property
    def mirrored(self) -> list[int]:
        """The index of each keypoint's mirror image: the keypoint of the other side by name, or itself."""
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
        return Kinds(tuple(map(clean, names)), skeleton, tuple(self.sigmas[i] for i in places if self.sigmas))


def _words(name: str) -> tuple[str, ...]:
    """The words of left_eye, left-eye, eye.left, LeftEye, LEFT_EYE, LEye or L_eye."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=^[LR])(?=[A-Z][a-z])", "_", name).lower()
    return tuple(re.split(r"[-_ .]", parts))


def kinds_of(category: Mapping) -> Kinds:
    """The keypoints of a COCO category. Keypoints named as COCO's person get its sigmas."""
    names = tuple(clean(name) for name in category.get("keypoints") or ())
    known = {*names} == {*PERSON["keypoints"]}
    sigmas = [PERSON["sigmas"][PERSON["keypoints"].index(name)] for name in names] if known else ()
    skeleton = tuple((a - 1, b - 1) for a, b in category.get("skeleton") or ())
    return Kinds(names, skeleton, tuple(category.get("sigmas") or sigmas))


def metainfo_of(file: Path, metainfo: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a data set's `metainfo` from its file, in the order of its ``keypoints``.

    The facts are from the category of the one class, else from the only category with keypoints.

    Raises:
        ConfigError: The file is not a COCO annotation file; it has no such category, or several with keypoints; or the
            category has no keypoints, other names than `metainfo`, or a skeleton or sigmas that do not fit.
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
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return {"classes": (names[0],), **own._asdict(), **metainfo, "keypoints": own.keypoints}


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
    pairs = category.get("skeleton") or ()
    numbers = {*range(1, len(names) + 1)}
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and numbers.issuperset(pair) for pair in pairs):
        yield Fault(f"{where}: skeleton has other numbers than pairs of 1 to {len(names)}, those of its keypoints")
    if len(category.get("sigmas") or names) != len(names):
        yield Fault(f"{where} has {len(category['sigmas'])} sigmas for {len(names)} keypoints")


def keypoint_faults(content: Mapping[str, list[dict]], classes: Collection[str]) -> Iterator[Fault]:
    """What is wrong with the keypoints of annotations, in a file without faults of `coco.examine`."""
    kinds, faults = {}, Faults()
    for category in (one for one in content["categories"] if one["name"] in classes):
        if found := list(category_faults(category)):
            yield from found
            continue
        own = kinds[category["id"]] = kinds_of(category)
        sided = zip(own.keypoints, own.mirrored, range(len(own.keypoints)))
        alone = [name for name, other, i in sided if other == i and set(_words(name)) & set(SIDES)]
        faults.add("keypoints have a side in their names that no other mirrors; flips leave them", *alone, grave=False)
        if len(own.keypoints) > 1 and own.mirrored == [*range(len(own.keypoints))]:
            what = "categories have no keypoint that mirrors another; flips leave all"
            faults.add(what, category["name"], grave=False)
    sizes = {one["id"]: (one["width"], one["height"]) for one in content["images"]}
    number, shares = 0, True
    for one in (one for one in content["annotations"] if one["category_id"] in kinds and one.get("keypoints")):
        points, wanted = one["keypoints"], 3 * len(kinds[one["category_id"]].keypoints)
        of = {"of": "annotations"}
        if not isinstance(points, list) or not all(type(v) in NUMBER and math.isfinite(v) for v in points):
            faults.add("keypoints are no list of finite numbers", one["id"], **of)
            continue
        if len(points) != wanted:
            faults.add(f"keypoints are not {wanted} numbers, x, y and flag of each", one["id"], **of)
            continue
        x, y, flags = np.array(points, float).reshape(-1, 3).T
        if not np.isin(flags, FLAGS).all():
            faults.add("keypoints have a flag that is not 0 (not labelled), 1 (hidden) or 2 (visible)", one["id"], **of)
        x, y = x[flags > 0], y[flags > 0]
        number += len(x)
        shares &= bool((np.maximum(x, y) <= 1).all())
        width, height = sizes.get(one["image_id"], (math.inf, math.inf))
        if np.max([-x, -y, x - width, y - height], initial=0) > TOLERANCE:
            faults.add("keypoints that are labelled are outside their image", one["id"], grave=False, **of)
    yield from faults
    if content["annotations"] and kinds and (not number or shares):
        yield Fault("no keypoint is labelled" if not number else "keypoints look like shares of the image, not pixels")
