"""Operating points of detectors: from which score on an object counts, and how probable it is that it is right.

An object is right if it matches one of the truth, of its class, at an IoU of 0.5. Its probability follows from its
score by Platt's method (1999), a logistic regression on the logit of the score. The threshold for a precision is the
lowest score from which on the mean probability is at least that, by a line fitted to the objects above it. Two numbers
are fitted; the share of right objects among those above a score would be as noisy as these are few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitdense.errors import OptionError
from vitdense.runtime import OperatingPoint, least, logit, sigmoid

STEPS = 50  # of Newton's method at most
HOLD = 1e-3  # weight of the pull towards the score itself, next to 1 for each object
DRAWS = 400  # of the bootstrap
WIDTH = 0.05  # largest half of an interval of 95 %
WILSON = 1.92  # half of an interval of 95 % of a share of 0 or 1, times the objects, where these are many
FEWEST = 30  # right objects of a class for a threshold of its own
WISHES = "precision=0.9, recall=0.8 or f1"


@dataclass(frozen=True)
class Matches:
    """The objects that a detector found in a data set, and whether they are right.

    Attributes:
        scores: [N] float, 0 to 1.
        labels: [N] int, indices of the classes.
        images: [N] int, indices of the images.
        right: [N] bool.
        truths: Objects of the truth by image and class, [images, classes] int; crowds are not counted.
    """

    scores: np.ndarray
    labels: np.ndarray
    images: np.ndarray
    right: np.ndarray
    truths: np.ndarray

    def where(self, kept: np.ndarray) -> "Matches":
        """Those found objects that a mask [N] keeps."""
        found = {name: getattr(self, name)[kept] for name in ("scores", "labels", "images", "right")}
        return replace(self, **found)

    def of_class(self, label: int) -> "Matches":
        """Those of one class, as the only class."""
        return replace(self.where(self.labels == label), truths=self.truths[:, [label]])


def parse_wish(text: str) -> tuple[str, float | None]:
    """``precision=0.9`` as ``("precision", 0.9)``; ``f1`` as ``("f1", None)``.

    Raises:
        OptionError: It is none of `WISHES`.
    """
    name, _, value = text.partition("=")
    try:
        number = float(value) if value else None
    except ValueError:
        number = np.nan
    fits = number is None if name == "f1" else name in ("precision", "recall") and number is not None and 0 < number < 1
    if not fits:
        raise OptionError(f"operating point: got {text!r}, expected {WISHES}, with numbers between 0 and 1")
    return name, number


def find_operating_point(
    found: Matches, wish: str, classes: Sequence[str], by_class: bool
) -> tuple[OperatingPoint, str]:
    """Thresholds that meet a wish, and the calibration of scores.

    Args:
        found: On validation data.
        wish: See `parse_wish`.
        classes: Their names.
        by_class: Every class gets a threshold and a calibration of its own, where it has `FEWEST` right objects and
            meets the wish; others keep those of all classes.

    Returns:
        The operating point, and what to know of it: the classes without a threshold of their own.

    Raises:
        OptionError: No threshold meets the wish, or too few objects were found to tell.
    """
    name, value = parse_wish(wish)
    line = fit_line(found)
    threshold = threshold_of(found, line, name, value)
    if threshold is None:
        raise OptionError(f"operating point {wish}: no score meets it on the validation data; {_reached(found)}")
    thresholds, lines, common = [threshold] * len(classes), [line] * len(classes), []
    for label, of_class in enumerate(classes if by_class else ()):
        own = found.of_class(label)
        own_line = fit_line(own) if own.right.sum() >= FEWEST and not own.right.all() else None
        threshold = own_line and threshold_of(own, own_line, name, value)
        if threshold is None:
            common.append(of_class)
            continue
        thresholds[label], lines[label] = threshold, own_line
    shares = bootstrap(found, thresholds)
    number, kept = int(found.truths.sum()), (found.scores >= least(thresholds, found.labels)).sum()
    half = np.ptp(shares["recall" if name == "recall" else "precision"][[0, 2]]) / 2
    half = max(half, WILSON / (number if name == "recall" else kept))  # of a share of 0 or 1 the draws are all alike
    if half > WIDTH:
        raise OptionError(
            f"operating point {wish}: {number} objects in {len(found.truths)} validation images tell it to "
            f"{half:.3f}, expected {WIDTH}: some {int(number * (half / WIDTH) ** 2) + 1} objects are needed"
        )
    slopes, offsets = np.array(lines).T.tolist()
    point = OperatingPoint(wish, thresholds, slopes, offsets, **{key: [*map(float, x)] for key, x in shares.items()})
    absent = [one for one, number in zip(classes, found.truths.sum(0)) if not number]
    said = f"classes with the threshold of all: {', '.join(common)}" if common else ""
    return point, said or (f"classes without an object: {', '.join(absent)}" if absent else "")


def fit_line(found: Matches) -> tuple[float, float]:
    """Slope and offset of the probability, by maximum likelihood (Newton's method)."""
    inputs = np.stack([logit(found.scores), np.ones(len(found.scores))], 1)  # [N, 2]
    # Platt's targets, which keep the line finite where scores tell right from wrong without an error.
    positive = found.right.sum()
    targets = np.where(found.right, (positive + 1) / (positive + 2), 1 / (len(found.right) - positive + 2))
    start = line = np.array([1.0, 0.0])  # the score itself, to which few objects are held

    def loss(line: np.ndarray) -> float:
        x = inputs @ line
        return float((np.logaddexp(0, x) - targets * x).sum() + HOLD / 2 * ((line - start) ** 2).sum())

    for _ in range(STEPS):
        chance = sigmoid(inputs @ line)
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + HOLD * np.eye(2)
        step = np.linalg.solve(curvature, inputs.T @ (targets - chance) - HOLD * (line - start))
        before = loss(line)
        while loss(line + step) > before and np.abs(step).max() > 1e-9:
            step = step / 2  # far from the optimum, a whole step may lead away
        line = line + step
        if np.abs(step).max() < 1e-9:
            break
    return tuple(line)


def threshold_of(found: Matches, line: tuple[float, float], name: str, value: float | None) -> float | None:
    """The lowest score that meets a wish, the highest one for a recall; None if none does."""
    order = np.argsort(-found.scores, kind="stable")
    scores, right, truths = found.scores[order], found.right[order], found.truths.sum()
    if not truths or not len(scores):
        return None
    if name == "recall":
        return _first(scores, right.cumsum() >= value * truths)
    expected = sigmoid(line[0] * logit(scores) + line[1]).cumsum()  # right objects down to each score
    numbers = np.arange(1, len(scores) + 1)
    if name == "f1":
        return float(scores[(expected / (numbers + truths)).argmax()])
    kept = np.flatnonzero(expected / numbers >= value)
    if len(kept):
        line = fit_line(found.where(found.scores >= scores[kept[-1]]))
        expected = sigmoid(line[0] * logit(scores) + line[1]).cumsum()
    return _first(scores[::-1], (expected / numbers >= value)[::-1])


def _first(scores: np.ndarray, meets: np.ndarray) -> float | None:
    """The first score where a mask is true."""
    return float(scores[meets.argmax()]) if meets.any() else None


def bootstrap(found: Matches, thresholds: Sequence[float]) -> Mapping[str, np.ndarray]:
    """``precision`` and ``recall`` at thresholds: lower bound, value and upper bound of 95 %, by drawing images."""
    kept = found.where(found.scores >= least(thresholds, found.labels))
    images = len(found.truths)
    counts = np.stack(  # [images, 3]: found, right, in the truth
        [
            np.bincount(kept.images, minlength=images),
            np.bincount(kept.images, kept.right, minlength=images),
            found.truths.sum(1),
        ],
        1,
    )
    draws = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), DRAWS)  # [draws, images]
    sums = np.concatenate([draws, np.ones((1, images))]) @ counts  # [draws + 1, 3]
    shares = {}
    for name, of in (("precision", 0), ("recall", 2)):
        values = sums[:, 1] / np.maximum(sums[:, of], 1)
        low, high = np.quantile(values[:-1], (0.025, 0.975))
        shares[name] = np.array([low, values[-1], high])
    return shares


def _reached(found: Matches) -> str:
    """The highest precision and recall that there are."""
    right = found.right[np.argsort(-found.scores, kind="stable")].cumsum()
    if not len(right) or not found.truths.sum():
        return "nothing was found, or there is nothing to find"
    best = (right / np.arange(1, len(right) + 1)).max()
    return f"the highest precision is {best:.3f}, the highest recall {right[-1] / found.truths.sum():.3f}"
