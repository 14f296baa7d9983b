"""Operating points: thresholds that meet a wish on other data, and scores that mean something."""

import numpy as np
import pytest

from vitdense.errors import OptionError
from vitdense.results.operating_point import Matches, find_operating_point, fit_line, parse_wish
from vitdense.runtime import OperatingPoint, least, logit, sigmoid

CLASSES = ("cat", "dog")
LINES = ((0.6, 0.8), (1.5, -1.5))  # slope and offset of each class: scores of both mean something else


def draw(seed, images=400, per_image=40, truths=4, classes=(0, 1)):
    """A detector whose objects are right with the probability that its class and score say."""
    rng = np.random.default_rng(seed)
    number = images * per_image
    labels = rng.choice(classes, number)
    scores = rng.beta(0.5, 0.7, number).clip(1e-4, 1 - 1e-4)
    slopes, offsets = np.array(LINES).T
    right = rng.uniform(size=number) < sigmoid(slopes[labels] * logit(scores) + offsets[labels])
    found = np.zeros((images, len(CLASSES)), int)
    of = np.repeat(np.arange(images), per_image)
    np.add.at(found, (of[right], labels[right]), 1)
    missed = rng.multinomial(truths, np.full(len(classes), 1 / len(classes)), images)  # [images, classes]
    found[:, list(classes)] += missed
    return Matches(scores, labels, of, right, found)


def shares(found, point):
    kept = found.scores >= least(point.thresholds, found.labels)
    return {"precision": found.right[kept].mean(), "recall": found.right[kept].sum() / found.truths.sum()}


def calibration_error(chance, right):
    """The mean difference of probability and share, by tenths."""
    tenths = np.minimum((chance * 10).astype(int), 9)
    cells = [tenths == i for i in range(10) if (tenths == i).any()]
    return sum(cell.mean() * abs(chance[cell].mean() - right[cell].mean()) for cell in cells)


@pytest.mark.parametrize(
    ("wish", "name", "value"), [("precision=0.8", "precision", 0.8), ("recall=0.5", "recall", 0.5)]
)
@pytest.mark.parametrize("by_class", [False, True])
def test_the_wish_is_met_on_other_data(wish, name, value, by_class):
    met = []
    for seed in range(20):
        point, _ = find_operating_point(draw(seed), wish, CLASSES, by_class)
        met.append(abs(shares(draw(100 + seed), point)[name] - value) <= 0.03)
    assert sum(met) >= 19


def test_thresholds_of_the_classes_meet_it_for_each():
    found, other = draw(0), draw(1)
    common, _ = find_operating_point(found, "precision=0.8", CLASSES, by_class=False)
    own, said = find_operating_point(found, "precision=0.8", CLASSES, by_class=True)
    assert said == ""
    for label in range(2):
        assert shares(other.of_class(label), common)["precision"] != pytest.approx(0.8, abs=0.03)
        kept = other.where((other.labels == label) & (other.scores >= own.thresholds[label]))
        assert kept.right.mean() == pytest.approx(0.8, abs=0.04)


def test_f1_is_the_best_there_is():
    found = draw(0)
    point, _ = find_operating_point(found, "f1", CLASSES, by_class=False)

    def f1(threshold):
        kept = found.scores >= threshold
        return 2 * found.right[kept].sum() / (kept.sum() + found.truths.sum())

    best = max(map(f1, np.linspace(0.01, 0.99, 99)))
    assert f1(point.thresholds[0]) == pytest.approx(best, abs=0.005)


def test_probabilities_are_those_of_the_detector():
    found, other = draw(2), draw(3)
    of_class = [fit_line(found.of_class(label)) for label in range(2)]
    np.testing.assert_allclose(of_class, LINES, atol=0.12)
    point, _ = find_operating_point(found, "precision=0.8", CLASSES, by_class=True)
    chance = point.probabilities(other.scores, other.labels)
    assert calibration_error(chance, other.right) < calibration_error(other.scores, other.right) / 2


@pytest.mark.parametrize("end", [0, 1], ids=["near 0", "near 1"])
def test_few_objects_of_any_scores_have_a_finite_line(end):
    """Also where scores tell right from wrong without an error, and where a whole step of Newton leads away."""
    rng = np.random.default_rng(0)
    for number in range(1, 40):
        scores = np.abs(end - 10.0 ** -rng.uniform(0.3, 9, number))
        for right in (scores > np.median(scores), rng.uniform(size=number) < 0.5, np.ones(number, bool)):
            labels = np.zeros(number, int)
            line = fit_line(Matches(scores, labels, labels, right, np.ones((1, 1), int)))
            assert np.abs(line).max() < 100


def test_intervals_hold_the_share_and_shrink_with_the_data():
    few, many = (find_operating_point(draw(0, images), "recall=0.5", CLASSES, False)[0] for images in (100, 900))
    for point in (few, many):
        low, value, high = point.recall
        assert low < value < high
    assert np.ptp(many.recall) < np.ptp(few.recall) / 2


def test_too_few_objects_are_refused_with_the_number_that_is_needed():
    with pytest.raises(OptionError, match=r"\d+ objects in 6 validation images .* some \d+ objects are needed"):
        find_operating_point(draw(0, images=6, per_image=4), "f1", CLASSES, by_class=False)


def test_a_few_objects_that_are_all_right_are_too_few():
    found = draw(0, images=6, per_image=4)
    found = found.where(found.right)
    with pytest.raises(OptionError, match="objects are needed"):
        find_operating_point(found, "precision=0.5", CLASSES, by_class=False)


def test_one_class_and_one_object():
    point = OperatingPoint("f1", [0.5], [2.0], [1.0], (0, 0.5, 1), (0, 0.5, 1))
    labels = np.zeros(1, int)
    assert point.probabilities(np.float32([0.5]), labels).shape == (1,)
    assert least(point.thresholds, labels).shape == (1,)
    assert point.probabilities(np.zeros(0, np.float32), labels[:0]).shape == (0,)


@pytest.mark.parametrize("wish", ["precision=0.999", "recall=0.99"])
def test_a_wish_out_of_reach_is_refused_with_what_is_reached(wish):
    found = draw(0)
    with pytest.raises(OptionError, match=r"no score meets it .* highest precision is .* highest recall 0\.\d+"):
        find_operating_point(found.where(found.scores < 0.9), wish, CLASSES, by_class=False)


def test_a_class_without_objects_keeps_the_threshold_of_all_and_is_named():
    found = draw(0, classes=(1,))
    point, said = find_operating_point(found, "precision=0.6", CLASSES, by_class=True)
    common, absent = find_operating_point(found, "precision=0.6", CLASSES, by_class=False)
    assert said == "classes with the threshold of all: cat"
    assert absent == "classes without an object: cat"
    assert point.thresholds[0] == common.thresholds[0]


@pytest.mark.parametrize(
    "text", ["", "precision", "precision=", "precision=2", "recall=x", "f1=0.5", "score=0.3", "recall=nan"]
)
def test_wishes_that_are_none(text):
    with pytest.raises(OptionError, match=r"expected precision=0\.9, recall=0\.8 or f1"):
        parse_wish(text)
