"""Results in the coordinates of a GeoTIFF, as GeoJSON."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vitdense.extensions.bands import files
from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError
from vitdense.results.result import Result

CODES = {1: "ProjectedCSTypeGeoKey", 2: "GeographicTypeGeoKey"}  # by GTModelTypeGeoKey
EPSG = range(1024, 32767)  # codes that a GeoTIFF can name; 32767 is defined by the user
POINT = 2  # of GTRasterTypeGeoKey: coordinates are of the centres of pixels


def to_geojson(result: Result, path: str | Path) -> dict[str, Any]:
    """What was found in a GeoTIFF, as a GeoJSON ``FeatureCollection`` in the coordinates of the file, with its ``crs``.

    A feature is an object, a panoptic segment or a class of a segmentor, with ``class``, and ``score`` if it has one.
    Its geometry is the mask along the edges of pixels, the oriented box or the box.

    Raises:
        ConfigError: See `transform_of`.
    """
    matrix, code = transform_of(path)
    features = []
    for polygons, properties in _shapes(result):
        rings = [[_placed(ring, matrix, i == 0) for i, ring in enumerate(polygon)] for polygon in polygons]
        shape: dict[str, Any] = {"type": "MultiPolygon", "coordinates": rings}
        if len(rings) == 1:
            shape = {"type": "Polygon", "coordinates": rings[0]}
        features.append({"type": "Feature", "properties": properties, "geometry": shape})
    crs = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{code}"}}
    return {"type": "FeatureCollection", "crs": crs, "features": features}


def write(image: Path, result: Result, out_dir: Path) -> None:
    """Write ``<name of the image>.geojson``, see `to_geojson`."""
    with atomic_write(out_dir / f"{image.name}.geojson") as scratch:
        scratch.write_text(json.dumps(to_geojson(result, image), ensure_ascii=False), encoding="utf-8")


def transform_of(path: str | Path) -> tuple[np.ndarray, int]:
    """The affine transform of a GeoTIFF from pixels to its coordinates, [2, 3] float64, and the EPSG code of these.

    Pixels are x and y, (0, 0) at the upper left corner of the image.

    Raises:
        ConfigError: The file is no GeoTIFF, has no affine transform, or no EPSG code.
    """
    keys = files.geo_keys(path)
    code = int(keys.get(CODES.get(int(keys.get("GTModelTypeGeoKey", 0)), ""), 0))
    scale, tie = keys.get("ModelPixelScale"), np.array(keys.get("ModelTiepoint", ()))
    if "ModelTransformation" in keys:
        matrix = np.array(keys["ModelTransformation"], np.float64)[:2, [0, 1, 3]]
    elif scale is not None and tie.shape == (6,):
        (x, y, _), origin = tie[:3], tie[3:5]
        matrix = np.array([[scale[0], 0, origin[0] - x * scale[0]], [0, -scale[1], origin[1] + y * scale[1]]])
    else:
        has_scale = "no scale" if scale is None else "a scale"
        raise ConfigError(
            f"image {path}: got no transform ({tie.size // 6} tie points, {has_scale}), expected a GeoTIFF with "
            "ModelPixelScale and one tie point, or with ModelTransformation; gdalwarp writes one"
        )
    if code not in EPSG:
        raise ConfigError(f"image {path}: got no EPSG code of its coordinates, expected one; gdal_edit -a_srs sets it")
    if int(keys.get("GTRasterTypeGeoKey", 1)) == POINT:
        matrix[:, 2] -= matrix[:, :2].sum(1) / 2
    return matrix, code


def _placed(ring: np.ndarray, matrix: np.ndarray, is_outer: bool) -> list[list[float]]:
    """A ring in coordinates, closed; an outline counterclockwise, a hole clockwise."""
    points = ring @ matrix[:, :2].T + matrix[:, 2]  # [N, 2]
    points = points if (_area(points) > 0) == is_outer else points[::-1]
    return [*points.tolist(), points[0].tolist()]


def _area(points: np.ndarray) -> float:
    (x, y), (following_x, following_y) = points.T, np.roll(points, -1, axis=0).T
    return float(x @ following_y - y @ following_x) / 2


def _shapes(result: Result) -> Iterator[tuple[Sequence[Sequence[np.ndarray]], dict[str, Any]]]:
    """Polygons of rings in pixels, [N, 2] each, and properties."""
    if result.segments is not None:
        for one in result.segments:
            yield outlines(result.panoptic == one["id"]), {"class": result.names[one["label"]]}
    elif result.semantic is not None:
        for label in np.unique(result.semantic):
            yield outlines(result.semantic == label), {"class": result.names[label]}
    else:
        for i, (x1, y1, x2, y2) in enumerate(result.boxes.tolist()):
            polygons = [[np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]])]]
            if result.rle is not None:
                polygons = outlines(result.mask(i))
            elif result.corners is not None:
                polygons = [[result.corners[i].astype(np.float64)]]
            yield polygons, {"class": result.names[result.labels[i]], "score": float(result.scores[i])}


def outlines(mask: np.ndarray) -> list[list[np.ndarray]]:
    """The polygons of a mask [H, W] along the edges of its pixels: of each connected part the outline, then the holes.

    Rings are the corners, x and y, [N, 2] float64.
    """
    number, parts, boxes, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    polygons = []
    for part in range(1, number):
        x, y, width, height = boxes[part, :4]
        doubled = (parts[y : y + height, x : x + width] == part).repeat(2, 0).repeat(2, 1)
        contours, _ = cv2.findContours(doubled.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        rings = [_corners((contour[:, 0] + 1) // 2 + (x, y)) for contour in contours]
        polygons.append(sorted(rings, key=lambda ring: -abs(_area(ring))))
    return polygons


def _corners(path: np.ndarray) -> np.ndarray:
    """The points of a path around pixels, [N, 2], where it turns."""
    path = path[(path != np.roll(path, 1, axis=0)).any(1)].astype(np.float64)
    steps = np.roll(path, -1, axis=0) - path
    return path[(steps != np.roll(steps, 1, axis=0)).any(1)]
