import numpy as np
import pytest

from vitdense.extensions.show.pictures import DIMMED, cells, contact_sheet, heat
from vitdense.results.draw import PAPER


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def test_heat_is_where_the_values_are(image):
    values = np.zeros((2, 3))
    values[1, 2] = 5
    got = heat(image, values, (20, 20))
    hottest = got[20:, 40:].reshape(-1, 3)
    assert (hottest == hottest[0]).all()
    assert hottest[0].min() > 150  # the pale yellow at the end of the scale
    grey = np.round(DIMMED * image.mean(-1))
    np.testing.assert_array_equal(got[:20, :, 1], grey[:20])
    np.testing.assert_array_equal(got[20:, :40, 2], grey[20:, :40])


def test_heat_of_a_quarter_has_half_the_weight():
    got = heat(np.zeros((40, 60, 3), np.uint8), np.array([[0.25, 1]]), (40, 30))
    np.testing.assert_allclose(got[0, 0], np.array((87, 16, 110)) / 2, atol=1)  # matplotlib's inferno at 0.25


def test_cells_are_cut_off_at_the_image(image):
    colours = np.linspace(0, 1, 36).reshape(3, 4, 3)
    got = cells(image, colours, (16, 16))
    assert got.shape == image.shape
    np.testing.assert_array_equal(got[32:, 48:], np.broadcast_to(np.round(255 * colours[2, 3]), (8, 12, 3)))


def test_contact_sheet_has_rows_of_pictures(image):
    small = np.full((2, 4, 3), 7, np.uint8)
    sheet = contact_sheet([("first", [("a", image), ("b", image)]), ("second", [("c", small)])], width=60)
    assert sheet.shape[1] == 10 + 2 * 70
    np.testing.assert_array_equal(sheet[46:86, 10:70], image)
    np.testing.assert_array_equal(sheet[46:86, 80:140], image)
    top = 46 + 40 + 26 + 36
    assert (sheet[top : top + 30, 10:70] == 7).all()
    assert (sheet[top : top + 30, 70:] == PAPER).all()
