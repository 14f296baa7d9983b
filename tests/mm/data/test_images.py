import io

import numpy as np
import pytest
import torch
from image_files import DEEP, DRAWN, FILES, encoded, turned
from PIL import Image, ImageFile

from vitdense.mm.data import images
from vitdense.mm.data.images import evenly_spaced, header_size, read_image_file, read_pixels
from vitdense.mm.errors import ConfigError


@pytest.mark.parametrize(("kind", "mode"), [file for file in FILES if "CMYK" not in file])
def test_the_same_pixels_whatever_an_image_comes_as(kind, mode, tmp_path):
    content = FILES[kind, mode]
    (tmp_path / "file").write_bytes(content)
    want = read_pixels(tmp_path / "file")
    assert (want.dtype, want.shape) == (np.uint8, (24, 32, 3))
    opened = Image.open(io.BytesIO(content))
    tensor = torch.from_numpy(want).permute(2, 0, 1)
    images = [str(tmp_path / "file"), content, want, tensor]
    if kind != "TIFF" or mode not in ("RGBA", "LA", "RGB in 16 bits", "RGBA in 16 bits"):
        images += [opened, opened.copy()]  # OpenCV has TIFF's alpha in the colours
    for image in images:
        np.testing.assert_array_equal(read_pixels(image), want)
    if mode == "16 bits":
        np.testing.assert_array_equal(want, np.repeat(DEEP[..., :1] >> 8, 3, -1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_header_and_pixels_of_every_orientation(kind, orientation, tmp_path):
    (tmp_path / "file").write_bytes(encoded(kind, "RGB", orientation))
    want = turned(read_pixels(encoded(kind, "RGB")), orientation)
    for image in (tmp_path / "file", Image.open(tmp_path / "file")):
        np.testing.assert_array_equal(read_pixels(image), want)
    assert header_size(str(tmp_path / "file"), stored=False) == want.shape[1::-1]
    stored = read_pixels(tmp_path / "file", "color_ignore_orientation")
    assert header_size(str(tmp_path / "file"), stored=True) == stored.shape[1::-1]
    np.testing.assert_array_equal(read_pixels(Image.open(tmp_path / "file"), "color_ignore_orientation"), stored)
    if kind != "TIFF":  # which decoders turn
        np.testing.assert_array_equal(stored, read_pixels(encoded(kind, "RGB")))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_a_file_is_decoded_once(kind, monkeypatch):
    monkeypatch.delattr(ImageFile.ImageFile, "load")
    assert read_pixels(encoded(kind, "RGB")).shape == (24, 32, 3)


NO_IMAGES = {
    "four channels": DRAWN,
    "one channel": DRAWN[..., :1],
    "grey": DRAWN[..., 0],
    "no row": np.zeros((0, 5, 3), np.uint8),
    "no column": torch.zeros(3, 5, 0, dtype=torch.uint8),
    "floats": DRAWN[..., :3] / 255,
    "a tensor of floats": torch.rand(3, 5, 5, requires_grad=True),
    "a tensor of bfloat16": torch.zeros(3, 5, 5).bfloat16(),
    "nothing": b"",
    "a long name": "x" * 5000,
    "a batch": DRAWN[None, ..., :3],
    "four colours": Image.fromarray(DRAWN, "CMYK"),
    "32 bits": Image.fromarray(DRAWN[..., 0].astype(np.int32)),
    "an empty picture": Image.new("RGB", (0, 5)),
    "text": b"no image",
    "half a file": encoded("JPEG", "RGB")[:-300],
    "a number": 3,
}


@pytest.mark.parametrize("what", NO_IMAGES)
def test_what_is_no_image_is_refused(what):
    with pytest.raises(ConfigError, match="image"):
        read_pixels(NO_IMAGES[what])


@pytest.mark.parametrize("name", ["gone.jpg", ""])
def test_files_that_do_not_exist_are_named(name, tmp_path):
    with pytest.raises(ConfigError, match=f"image .*{name}"):
        read_pixels(tmp_path / name)


def test_a_step_that_fails_names_the_image():
    with pytest.raises(ConfigError, match=r"image a\.png of 5000x1 pixels.*ZeroDivisionError"):
        images.run_steps(lambda data: data["img"] / (1 // 0), np.zeros((1, 5000, 3), np.uint8), "a.png")


def test_description_has_modes_range_and_median(tmp_path):
    for i, size in enumerate([(10, 20), (30, 40), (50, 60)]):
        Image.new("L" if i else "RGB", size).save(tmp_path / f"{i}.png")
    files = [read_image_file(str(tmp_path / f"{i}.png")) for i in range(3)]
    assert images.describe_images(files) == "L 2, RGB 1; 10x20 to 50x60, median 30x40"


def test_evenly_spaced_items_have_both_ends():
    assert evenly_spaced(range(10), 4) == [0, 3, 6, 9]
    assert evenly_spaced("abc", 4) == evenly_spaced("abc", None) == ["a", "b", "c"]
