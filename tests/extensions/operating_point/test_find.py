"""Minimum scores that meet a wish on other data too, and what is refused."""

import numpy as np
import pytest

from vitdense.errors import OptionError
from vitdense.extensions.operating_point.find import Matches, find_point, parse_wish
from vitdense.runtime import OperatingPoint, least

CLASSES = ("cat", "dog")
POWERS = np.array([0.5, 2.0])  # of each class: scores of both mean something else


def draw(seed, images=400, per_image=40, classes=(0, 1), highest=1.0):
    rng = np.random.default_rng(seed)
    number = images * per_image
    labels, scores = rng.choice(classes, number), highest * rng.beta(0.5, 0.7, number)
    right = rng.uniform(size=number) < scores ** POWERS[labels]
    missed = rng.multinomial(4 * images, np.bincount(classes, minlength=2) / len(classes))
    return Matches(scores, labels, right, np.bincount(labels[right], minlength=2) + missed)


def shares(found, point):
    right = found.right[found.scores >= least(point.thresholds, found.labels)]
    return {"precision": right.mean(), "recall": right.sum() / found.truths.sum()}


@pytest.mark.parametrize(("name", "value"), [("precision", 0.8), ("recall", 0.5)])
@pytest.mark.parametrize("by_class", [False, True])
def test_the_wish_is_met_on_other_data(name, value, by_class):
    for seed in range(5):
        content = find_point(draw(seed), f"{name}={value}", CLASSES, by_class)
        point = OperatingPoint.of(content, CLASSES)
        assert shares(draw(seed), point) == pytest.approx({key: content[key] for key in ("precision", "recall")})
        for label in range(2) if by_class else ():
            own = shares(draw(100 + seed).of_class(label), OperatingPoint("", point.thresholds[label], 0, 0))
            assert own[name] == pytest.approx(value, abs=0.05)
        assert shares(draw(100 + seed), point)[name] == pytest.approx(value, abs=0.03)


def test_f1_is_the_best_there_is():
    found = draw(0)
    threshold = find_point(found, "f1", CLASSES, by_class=False)["thresholds"]

    def f1(threshold):
        kept = found.scores >= threshold
        return 2 * found.right[kept].sum() / (kept.sum() + found.truths.sum())

    assert f1(threshold) >= max(map(f1, np.linspace(0.01, 0.99, 99)))


def test_equal_scores_are_kept_together():
    scores = np.repeat([0.9, 0.5], 100)
    right = np.concatenate([np.ones(100, bool), np.arange(100) < 60])
    found = Matches(scores, np.zeros(200, int), right, np.array([200]))
    assert find_point(found, "precision=0.85", ["cat"], False)["thresholds"] == 0.9
    assert find_point(found, "precision=0.8", ["cat"], False)["thresholds"] == 0.5


def test_a_class_without_objects_keeps_the_score_of_all():
    found = draw(0, classes=(1,))
    common = find_point(found, "precision=0.6", CLASSES, by_class=False)["thresholds"]
    own = find_point(found, "precision=0.6", CLASSES, by_class=True)["thresholds"]
    assert own == {"cat": common, "dog": common}


@pytest.mark.parametrize(
    ("found", "wish"),
    [
        (draw(0, highest=0.8), "precision=0.98"),
        (draw(0), "recall=0.99"),
        (draw(0, images=6, per_image=4), "f1"),  # too few objects
        (Matches(np.linspace(0, 1, 9000), np.zeros(9000, int), np.arange(9000) % 150 == 0, np.array([9000])), "f1"),
        (Matches(*np.zeros((3, 0), int), np.zeros(2, int)), "recall=0.1"),  # nothing found, nothing to find
    ],
)
def test_a_wish_out_of_reach_is_refused(found, wish):
    with pytest.raises(OptionError, match=f"{wish}: no score meets it"):
        find_point(found, wish, CLASSES, by_class=False)


@pytest.mark.parametrize(
    "text", ["", "precision", "precision=", "precision=2", "recall=x", "f1=0.5", "score=0.3", "recall=nan"]
)
def test_invalid_wishes_are_refused(text):
    with pytest.raises(OptionError, match=r"expected precision=0\.9, recall=0\.8 or f1"):
        parse_wish(text)
