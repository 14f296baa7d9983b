"""Pixels of image files are those that mmcv reads, in every format, depth and orientation."""

import cv2
import mmcv
import numpy as np
import pytest
from image_files import FILES, encoded, turned
from mmcv.transforms import LoadImageFromFile

from vitdense.mm.data.images import header_size, read_image_file, read_pixels
from vitdense.mm.data.transforms import LoadImage

COLOURS = ("color", "grayscale", "unchanged", "color_ignore_orientation", "grayscale_ignore_orientation")
# OpenCV before 5 turns JPEG, PNG and TIFF alone. Annotation tools show WebP and AVIF turned, and so are they read here.
TURNED_HERE = ("WEBP", "AVIF")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("kind", "mode"), FILES)
def test_formats_and_depths(kind, mode, colour, tmp_path):
    (tmp_path / "file").write_bytes(FILES[kind, mode])
    got = LoadImage(color_type=colour).transform({"img_path": str(tmp_path / "file")})["img"]
    want = mmcv.imread(tmp_path / "file", colour)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("backend", ["cv2", "pillow"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", *TURNED_HERE])
def test_orientations(kind, orientation, backend, tmp_path):
    (tmp_path / "file").write_bytes(encoded(kind, "RGB", orientation))
    for colour in COLOURS[:2]:
        got = LoadImage(color_type=colour, imdecode_backend=backend).transform({"img_path": str(tmp_path / "file")})
        turns = kind in TURNED_HERE and backend == "cv2"
        want = mmcv.imread(tmp_path / "file", colour + turns * "_ignore_orientation", backend=backend)
        want = turned(want, orientation) if turns else want
        np.testing.assert_array_equal(got["img"], want)
    if backend == "cv2":
        assert header_size(str(tmp_path / "file"), stored=False) == want.shape[1::-1]


DAMAGED = {
    "empty": b"",
    "text": b"no image",
    **{f"{kind} that is cut": FILES[kind, "RGB"][:-200] for kind in ("JPEG", "PNG")},
    **{f"{kind} with bytes after its end": FILES[kind, "RGB"] + b"more" for kind in ("JPEG", "PNG")},
    "EXIF that is damaged": FILES["JPEG", "RGB"].replace(b"Exif\0\0MM", b"Exif\0\0??"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_mmcv_refuses_is_refused_and_nothing_else(what, tmp_path):
    (tmp_path / "file").write_bytes(DAMAGED[what])
    found = []
    for step in (LoadImage(), LoadImageFromFile()):
        try:
            found.append(step.transform({"img_path": str(tmp_path / "file")})["img"])
        except Exception:  # each in its own words
            found.append(None)
    assert (found[0] is None) == (found[1] is None) == bool(read_image_file(str(tmp_path / "file")).error)
    if found[1] is not None:
        np.testing.assert_array_equal(*found)


@pytest.mark.long
@pytest.mark.filterwarnings("error")
def test_more_pixels_than_pillow_opens(tmp_path):
    """182 million pixels, as in scans and orthophotos that are predicted in tiles."""
    pixels = np.full((13_000, 14_000), 7, np.uint8)
    (tmp_path / "large.png").write_bytes(cv2.imencode(".png", pixels, (cv2.IMWRITE_PNG_COMPRESSION, 1))[1].tobytes())
    path, size = str(tmp_path / "large.png"), (14_000, 13_000)
    assert header_size(path, stored=False) == size
    assert read_image_file(path, whole=False)[1:] == ("L", size, size, "")
    sample = LoadImage().transform({"img_path": path, "width": size[0], "height": size[1]})
    assert sample["img_shape"] == size[::-1]
    assert (sample["img"][::1000, ::1000] == 7).all()
    assert read_pixels(path).shape == (*size[::-1], 3)
