"""Results in the coordinates of a GeoTIFF."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from commands import run_command, succeed
from shapely.geometry import shape

from vitdense.errors import OptionError
from vitdense.extensions.bands.geo import outlines, to_geojson, transform_of
from vitdense.mm.data.shapes import draw_image
from vitdense.results.result import Result

SCALE = (33550, 12, 3, (0.5, 0.25, 0.0))
TIE = (33922, 12, 6, (2.0, 1.0, 0.0, 500000.0, 5600000.0, 0.0))
TURN = (34264, 12, 16, (0.3, 0.4, 0, 100, 0.4, -0.3, 0, 200, 0, 0, 0, 0, 0, 0, 0, 1))
UTM, LATLON = ((1024, 1), (1025, 1), (3072, 32633)), ((1024, 2), (2048, 4326))
NORTH = np.array([[0.5, 0, 499999.0], [0, -0.25, 5600000.25]])


def write_tiff(path, *tags, keys=UTM):
    if keys:
        rows = [(key, 0, 1, value) for key, value in keys]
        directory = (1, 1, 0, len(rows), *np.ravel(rows).tolist())
        tags = (*tags, (34735, 3, len(directory), directory))
    pixels, _ = draw_image(np.random.default_rng(0), (64, 96))
    tifffile.imwrite(path, pixels, photometric="rgb", extratags=[(*tag, True) for tag in tags])
    return path


def boxes(**fields):
    found = {"scores": np.array([0.75], "f4"), "labels": np.array([1]), "names": ("car", "hut")}
    return Result(**{"boxes": np.array([[10, 20, 14, 28]], "f4"), **found, **fields})


@pytest.mark.parametrize(
    ("tags", "keys", "expected", "code"),
    [
        ([SCALE, TIE], UTM, NORTH, 32633),
        ([SCALE, TIE], LATLON, NORTH, 4326),
        ([SCALE, TIE], (*UTM[::2], (1025, 2)), NORTH - [[0, 0, 0.25], [0, 0, -0.125]], 32633),
        ([TURN], UTM, [[0.3, 0.4, 100], [0.4, -0.3, 200]], 32633),
    ],
)
def test_transforms(tags, keys, expected, code, tmp_path):
    matrix, found = transform_of(write_tiff(tmp_path / "a.tif", *tags, keys=keys))
    np.testing.assert_allclose(matrix, expected, rtol=1e-15)
    assert found == code


@pytest.mark.parametrize("name", ["boxes", "corners", "turned", "masks"])
def test_objects_by_hand(name, tmp_path):
    path, fields = write_tiff(tmp_path / "a.tif", *[SCALE, TIE] if name != "turned" else [TURN]), {}
    expected = [[500004, 5599995.25], [500004, 5599993.25], [500006, 5599993.25], [500006, 5599995.25]]
    if name == "corners":
        fields = {"corners": np.array([[[10, 20], [14, 20], [14, 28], [10, 28]]], "f4")}
    if name == "turned":
        expected = [[111, 198], [114.2, 195.6], [115.4, 197.2], [112.2, 199.6]]
    if name == "masks":
        fields = {"masks": np.zeros((1, 64, 96), bool)}
        fields["masks"][0, 20:28, 10:14] = True
        fields["masks"][0, 22, 12] = False
    content = to_geojson(boxes(**fields), path)
    assert content["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32633"
    (feature,) = content["features"]
    assert feature["properties"] == {"class": "hut", "score": 0.75}
    outer, *holes = feature["geometry"]["coordinates"]
    assert outer[0] == outer[-1]
    start = min(range(4), key=lambda i: np.linalg.norm(np.subtract(outer[i], expected[0])))
    np.testing.assert_allclose(np.roll(outer[:-1], -start, axis=0), expected, rtol=1e-15)
    assert shape(feature["geometry"]).exterior.is_ccw
    if name == "masks":
        (hole,) = holes
        assert shape({"type": "Polygon", "coordinates": [hole]}).bounds == (500005, 5599994.5, 500005.5, 5599994.75)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_outlines_of_any_mask_are_valid_and_cover_its_pixels(share):
    mask = np.random.default_rng(7).random((24, 33)) < share
    mask[:3] = False
    polygons = [shape({"type": "Polygon", "coordinates": polygon}) for polygon in outlines(mask)]
    assert all(polygon.is_valid for polygon in polygons)
    assert sum(polygon.area for polygon in polygons) == mask.sum()
    centres = [tuple(polygon.representative_point().coords[0]) for polygon in polygons]
    assert all(mask[int(y), int(x)] for x, y in centres)
    assert outlines(np.zeros((4, 4), bool)) == []


def test_classes_and_segments(tmp_path):
    path, pixels = write_tiff(tmp_path / "a.tif", SCALE, TIE), np.zeros((64, 96), int)
    pixels[3:5, 4:9] = 1
    segments = [{"id": 1, "label": 1, "score": None, "is_thing": True}]
    names = {"names": ("soil", "hut")}
    for result in (Result(semantic=pixels, **names), Result(panoptic=pixels, segments=segments, **names)):
        one = to_geojson(result, path)["features"][-1]
        assert one["properties"] == {"class": "hut"}
        assert shape(one["geometry"]).area == 10 * 0.5 * 0.25


@pytest.mark.parametrize(
    ("tags", "keys", "named"),
    [
        ([], (), "no transform"),
        ([], UTM, "no transform"),
        ([(33922, 12, 12, (*TIE[3], *TIE[3]))], UTM, "2 tie points"),
        ([SCALE, TIE], (*UTM[:2], (3072, 32767)), "EPSG"),
        ([SCALE, TIE], (), "no transform"),
        ([SCALE, TIE], UTM[1:], "EPSG"),
        ([SCALE, TIE, (274, 3, 1, 6)], UTM, "Orientation"),
    ],
)
def test_files_without_a_place_are_refused(tags, keys, named, tmp_path):
    with pytest.raises(OptionError, match=named) as caught:
        transform_of(write_tiff(tmp_path / "a.tif", *tags, keys=keys))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_predict_writes_a_file_for_every_image(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    write_tiff("in/a.tif", SCALE, TIE)
    words = ["predict", "shapes_nano", "in", "--geojson", "--score-thr", "0", "--out-dir", "out"]
    succeed(words)
    found = json.loads(Path("out/a.tif.geojson").read_text())["features"]
    assert len(found) == len(json.loads(Path("out/predictions.json").read_text())) > 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["a.tif", "a.tif.geojson", "predictions.json"]
    write_tiff("in/b.tif")
    status, said = run_command([*words[:-1], "other"])
    assert (status, "b.tif" in said, Path("other").exists()) == (2, True, False), said
