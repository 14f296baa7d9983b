import numpy as np
import pytest
from PIL import Image

from vitdense.mm.data.images import describe_images, evenly_spaced, image_faults, read_image_file
from vitdense.mm.errors import join_some


@pytest.fixture
def image(tmp_path):
    """Writes an image of 8x4 pixels."""

    def write(name, mode="RGB", **options):
        path = str(tmp_path / name)
        Image.new(mode, (8, 4)).save(path, **options)
        return path

    return write


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "I;16"])
def test_modes_and_sizes(image, mode):
    file = read_image_file(image("a.png", mode))
    assert (file.mode, file.stored, file.loaded, file.error) == (mode, (8, 4), (8, 4), "")


def test_cmyk(image):
    assert read_image_file(image("a.jpg", "CMYK")).mode == "CMYK"


def test_exif_orientation_swaps_the_loaded_size(image):
    exif = Image.Exif()
    exif[0x0112] = 6
    file = read_image_file(image("a.jpg", exif=exif))
    assert (file.stored, file.loaded) == ((8, 4), (4, 8))


def test_truncated_and_unreadable_files_are_named(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    files = [read_image_file(str(tmp_path / name)) for name in ("cut.jpg", "text.jpg", "absent.jpg")]
    assert all(file.error for file in files)
    (line,), warnings = image_faults(files)
    assert line.startswith("3 ")
    assert "cut.jpg" in line
    assert not warnings
    assert "none" in describe_images(files)


def test_images_of_more_than_8_bits_are_a_warning(image):
    errors, (line,) = image_faults([read_image_file(image("a.png", "I;16")), read_image_file(image("b.png"))])
    assert not errors
    assert line.startswith("1 ")
    assert "a.png" in line


def test_description_has_modes_range_and_median(image, tmp_path):
    for i, size in enumerate([(10, 20), (30, 40), (50, 60)]):
        Image.new("L" if i else "RGB", size).save(tmp_path / f"{i}.png")
    files = [read_image_file(str(tmp_path / f"{i}.png")) for i in range(3)]
    assert describe_images(files) == "L 2, RGB 1; 10x20 to 50x60, median 30x40"


def test_evenly_spaced_items_have_both_ends():
    assert evenly_spaced(range(10), 4) == [0, 3, 6, 9]
    assert evenly_spaced("abc", 4) == evenly_spaced("abc", None) == ["a", "b", "c"]


def test_long_lists_are_cut():
    assert join_some(range(3)) == "0, 1, 2"
    assert join_some(range(12)).endswith("9, ... 2 more")
