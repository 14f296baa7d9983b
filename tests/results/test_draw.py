from importlib.util import find_spec

import numpy as np
import pytest
from PIL import ImageDraw, ImageFont

from vitdense.results.draw import PAPER, distinct_colours, drawable, instances, load_font, overlay, shades, with_legend

PALETTE = [(200, 0, 0), (0, 100, 0), (0, 0, 50)]


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def test_overlay_blends_regions_and_is_opaque_along_borders(image):
    before, labels = image.copy(), np.zeros((40, 60), int)
    labels[:, 30:] = 2
    labels[30:] = 1
    got = overlay(image, labels, PALETTE, alpha=0.25)
    assert got.dtype == np.uint8
    for columns, colour in ((slice(0, 29), PALETTE[0]), (slice(31, 60), PALETTE[2])):
        want = np.round(0.75 * image[:29, columns] + 0.25 * np.array(colour))
        np.testing.assert_array_equal(got[:29, columns], want)
    assert (got[:30, 29] == PALETTE[0]).all()
    assert (got[:30, 30] == PALETTE[2]).all()
    np.testing.assert_array_equal(image, before)


def test_shades_tell_segments_of_a_class_apart():
    labels = [1, 0, 1, 1]
    got = shades(np.array(PALETTE, np.uint8)[labels], labels)
    assert [tuple(got[i]) for i in (0, 1)] == [PALETTE[1], PALETTE[0]]
    assert len({tuple(colour) for colour in got}) == 4
    assert got.dtype == np.uint8
    assert shades(np.zeros((0, 3), np.uint8), []).shape == (0, 3)


def swatches(legend):
    """The colours of a legend's swatches from top to bottom: the first pixel of each row that is not background."""
    column = legend[:, np.flatnonzero((legend != PAPER).any((0, 2)))[0] + 3]
    drawn = [tuple(int(v) for v in pixel) for pixel in column if tuple(pixel) != PAPER]
    return [colour for i, colour in enumerate(drawn) if colour in PALETTE and colour != drawn[i - 1]]


def test_legend_lists_present_classes_by_share(image):
    got = with_legend(image, ["disc", "ring", "bar"], PALETTE, [0.2, 0, 0.7])
    np.testing.assert_array_equal(got[:40, :60], image)
    assert swatches(got[:, 60:]) == [PALETTE[2], PALETTE[0]]
    three = with_legend(image, ["disc", "ring", "bar"], PALETTE, [0.2, 0.1, 0.7])
    assert swatches(three[:, 60:]) == [PALETTE[2], PALETTE[0], PALETTE[1]]
    np.testing.assert_array_equal(with_legend(image, ["disc"], PALETTE[:1], [0.0]), image)


@pytest.mark.parametrize("shape", [(8, 8), (96, 96), (100, 900), (900, 100), (1080, 1920)])
@pytest.mark.parametrize("name", ["x", "a class of the longest name that anyone would ever give to a class of things"])
def test_legend_does_not_change_the_picture_or_clip_text(shape, name):
    picture = np.full((*shape, 3), 7, np.uint8)
    got = with_legend(picture, [name], PALETTE[:1], [1.0])
    assert got.shape[0] >= shape[0]
    assert got.shape[1] > shape[1]
    legend = got[:, shape[1] :]
    edge = np.concatenate([legend[0], legend[-1], legend[:, -1]])  # no text is clipped
    assert (edge == PAPER).all()
    np.testing.assert_array_equal(got[: shape[0], : shape[1]], picture)


@pytest.mark.parametrize("side", [64, 600])
def test_last_line_of_a_long_legend_is_the_sum_of_the_smallest_classes(side, monkeypatch):
    written = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda self, at, text, **options: written.append(text))
    shares, names = np.arange(150, 0, -1) / 11325, [f"class {i}" for i in range(150)]
    got = with_legend(np.zeros((side, side, 3), np.uint8), names, distinct_colours(150), shares)
    shown = len(written) // 2 - 1
    assert 10 < shown < 40
    assert written[::2] == [*names[:shown], f"and {150 - shown} more"]
    assert [written[1], written[-1]] == ["1.3 %", f"{100 * shares[shown:].sum():.1f} %"]
    assert got.shape[0] < max(side + 1, 400)


def test_distinct_colours_are_distinct_and_reproducible():
    colours = distinct_colours(150)
    assert colours.shape == (150, 3)
    np.testing.assert_array_equal(colours[:11], distinct_colours(11))
    apart = np.abs(colours[:20, None].astype(int) - colours[:20]).sum(-1) + 999 * np.eye(20, dtype=int)
    assert apart.min() > 50
    assert len({tuple(c) for c in colours.tolist()}) == 150
    assert distinct_colours(0).shape == (0, 3)


def test_objects_have_tinted_masks_with_opaque_edges_boxes_and_texts():
    image, colours = np.full((100, 160, 3), 40, np.uint8), [(255, 0, 0), (0, 0, 255)]
    masks = np.zeros((2, 100, 160), bool)
    masks[0, 40:80, 20:60] = masks[1, 60:100, 40:160] = True  # the second reaches the edges of the image
    drawn = instances(image, [[20, 40, 40, 40], [60, 70, 80, 20]], ["a", "b"], colours, iter(masks), alpha=0.5)
    assert drawn[55, 30].tolist() == [148, 20, 20]
    assert drawn[70, 45].tolist() == [74, 10, 138]  # over the first
    assert drawn[60, 45].tolist() == drawn[98, 40].tolist() == [0, 0, 255]
    assert drawn[90, 150].tolist() == [20, 20, 148]
    assert (drawn[30:39, 20:30] == colours[0]).all(-1).any()  # the ground of its text
    assert (image == 40).all()


def test_objects_without_masks_and_texts_outside():
    drawn = instances(np.zeros((60, 60, 3), np.uint8), [[50, 0, 9, 9]], ["a long\nname"], [(250, 250, 0)], [None])
    assert drawn.shape == (60, 60, 3)
    assert (drawn == (250, 250, 0)).all(-1)[:18].any(1).all()  # from the upper edge
    assert (instances(drawn, [], [], [], []) == drawn).all()


def test_names_that_no_font_has_are_drawn_as_their_index():
    names = ["cat", "two words", "hündin", "кошка", "猫", "犬 dog"]
    with_matplotlib = find_spec("matplotlib") is not None
    assert drawable(names) == [*names[:2], *(names[2:4] if with_matplotlib else ["#2", "#3"]), "#4", "#5"]
    assert drawable([]) == []


def test_fonts_have_the_characters_of_texts():
    """No two of these are the same empty box."""
    own = load_font(13, ["cat 0.5"])
    assert own.getname() == ImageFont.load_default(13).getname()
    if find_spec("matplotlib"):
        font = load_font(13, ["cat", "кошка"])
        assert len({bytes(font.getmask(character)) for character in "кошаü"}) == 5
    assert load_font(20).size == 20
