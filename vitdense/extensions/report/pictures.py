"""Pictures of annotations."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as rle

from vitdense.extensions.page import GREY, Box, part_of, region
from vitdense.mm.checks.sets import AnnotatedSet, DataSet, MapSet, PanopticSet
from vitdense.mm.data.coco import NUMBER, has_box, mask_fault, parse, turned
from vitdense.mm.data.faults import Fault, Size
from vitdense.mm.data.images import by, evenly_spaced, header_size, in_threads, picture_of, read_pixels
from vitdense.mm.data.label_maps import LabelMaps, read_label_map
from vitdense.mm.data.panoptic import ids_of_colours
from vitdense.mm.errors import ConfigError
from vitdense.results import draw

SIDE = 340  # longer side of a picture in pixels
MOST = 60  # most objects in a picture
COLOUR_TYPES = ("color", "color_ignore_orientation")  # for images turned by their EXIF orientation, and as stored

Picture = tuple[str, np.ndarray]  # a caption, and pixels [H, W, 3] uint8 RGB


class Shown:
    """The pictures and sizes of a data set for a page.

    Args:
        of: The data set, after `describe`.
    """

    def __init__(self, of: DataSet) -> None:
        self.set, self.drawn = of, None
        if of.is_described and isinstance(of, PanopticSet):
            self.drawn = _of_segments(of)
        elif of.is_described and isinstance(of, AnnotatedSet):
            self.drawn = _of_objects(of)
        elif of.is_described and isinstance(of, MapSet) and of.loader is not None:
            self.drawn = _of_maps(of)

    def pictures(self, fault: Fault) -> Iterator[Picture]:
        """Pictures of the items with a fault, if they are in this data set."""
        is_here = fault.where.startswith(self.set.where) and (not fault.of or self.set.file in fault.where)
        yield from self._draw(self.drawn.of(fault) if is_here and self.drawn else ())

    def examples(self, number: int) -> Iterator[Picture]:
        """Pictures of evenly spaced images of the data set."""
        yield from self._draw(evenly_spaced(list(self.drawn.images), number) if self.drawn else ())

    def _draw(self, these: Iterable) -> Iterator[Picture]:
        for one in these:
            with suppress(ConfigError):  # an unreadable image has its own fault
                yield self.drawn.draw(one)

    @property
    def image_sizes(self) -> list[Size]:
        """Width and height of the images in pixels."""
        if not isinstance(self.set, MapSet):
            return list(filter(None, self.set.samples.sizes.values()))
        sizes = in_threads(partial(header_size, stored=self.set.stored), list(self.set.samples.sizes), "sizes")
        return list(filter(None, sizes))

    @property
    def object_shares(self) -> list[float]:
        """The side of each object, sqrt(width * height), relative to the shorter side of its image."""
        if not isinstance(self.set, AnnotatedSet) or isinstance(self.set, PanopticSet):
            return []
        content = parse(Path(self.set.file))
        short = {one["id"]: min(one["width"], one["height"]) for one in content["images"]}
        boxes = [(one["bbox"], short.get(one["image_id"], 0)) for one in content.get("annotations", ()) if has_box(one)]
        return [math.sqrt(b[2] * b[3]) / side for b, side in boxes if min(*b[2:], side) > 0]


def _of_objects(of: AnnotatedSet) -> "ObjectPictures":
    content = parse(Path(of.file))
    images = {os.path.join(of.folder, image["file_name"]): image for image in content["images"]}
    names = {one["id"]: one["name"] for one in content["categories"]}
    return ObjectPictures(images, content.get("annotations", ()), names, of.stored)


def _of_segments(of: PanopticSet) -> "MapPictures":
    content, names = parse(Path(of.file)), list(of.samples.counts)
    paths = {image["id"]: os.path.join(of.folder, image["file_name"]) for image in content["images"]}
    index = {one["id"]: names.index(one["name"]) for one in content["categories"]}
    maps, of_png = {}, {}
    for one in content["annotations"]:
        if path := paths.get(one["image_id"]):
            maps[path] = png = str((of.segments / os.path.relpath(path, of.folder)).with_suffix(".png"))
            of_png[png] = {part["id"]: index.get(part["category_id"], len(names)) for part in one["segments_info"]}

    def read(png: str) -> np.ndarray:
        values, places = np.unique(ids_of_colours(read_pixels(png)), return_inverse=True)
        return np.array([of_png[png].get(value, len(names)) for value in values.tolist()])[places]  # [H, W]

    return MapPictures(maps, names, read, of.stored)


def _of_maps(of: MapSet) -> "MapPictures":
    _, listed = of.first.listed
    paths = {one["img_path"]: one["seg_map_path"] for one in listed if one.get("seg_map_path")}
    return MapPictures(paths, list(of.maps.names), partial(_labels, of.maps, of.decoder), of.stored)


def _labels(maps: LabelMaps, decoder: str, path: str) -> np.ndarray:
    """The label of each pixel of a map, [H, W]."""
    try:
        raw = read_label_map(path, decoder)
    except Exception as error:  # decoders have no common error
        raise ConfigError(f"{path} cannot be read") from error
    if raw.ndim != 2:
        raise ConfigError(f"{path} has {raw.ndim} dimensions, expected 2")
    values, places = np.unique(raw, return_inverse=True)
    return np.array([maps.label(int(value)) for value in values])[places]


class ObjectPictures:
    """Pictures of the instances of an annotation file.

    Args:
        images: Images of the annotation file by path.
        objects: The annotations.
        names: Names of the categories by id.
        stored: Whether images are loaded as stored, not turned by their EXIF orientation.
    """

    def __init__(self, images: Mapping[str, dict], objects: Iterable[dict], names: Mapping[int, str], stored: bool):
        self.images, self.color_type = images, COLOUR_TYPES[stored]
        self.path_of, self.image_of = {x["id"]: path for path, x in images.items()}, {path: path for path in images}
        self.names = dict(zip(names, draw.drawable(list(names.values()))))
        self.colours = dict(zip(names, draw.distinct_colours(len(names))))
        self.object_of, self.objects_of = {}, {}
        for one in objects:
            self.object_of[one["id"]] = one
            self.objects_of.setdefault(one["image_id"], []).append(one)

    def of(self, fault: Fault) -> list[str | dict]:
        """The items of a fault that can be drawn: paths or annotations."""
        if fault.of == "annotations":
            found = [self.object_of.get(item) for item in fault.items]
            return [one for one in found if one and one["image_id"] in self.path_of]
        paths = (self.path_of.get(item) if fault.of else path_in(item, self.image_of) for item in fault.items)
        return list(filter(None, paths))

    def draw(self, what: str | dict) -> Picture:
        """Draw an image with its objects, by its path, or one annotation.

        Raises:
            ConfigError: The image cannot be read.
        """
        return self._image(what) if isinstance(what, str) else self._object(what)

    def _image(self, path: str) -> Picture:
        image, pixels = self.images[path], picture_of(path, self.color_type)
        size, objects = pixels.shape[1::-1], self.objects_of.get(image["id"], [])[:MOST]
        return f"{os.path.basename(path)}, {by(size)}", self._draw(pixels, objects, image, (0, 0, *size))

    def _object(self, one: dict) -> Picture:
        """An annotation with its surroundings, or with the whole image if it is outside."""
        path = self.path_of[one["image_id"]]
        image, pixels = self.images[path], picture_of(path, self.color_type)
        same = [x["id"] for x in self.objects_of[one["image_id"]] if x["bbox"] == one["bbox"] and x is not one]
        caption = f"annotation {one['id']}{f', as {same[0]}' if same else ''}, in {os.path.basename(path)}"
        limits = [(*low, *(high - low)) for x in _polygons(one, image) for low, high in [(x.min(0), x.max(0))]]
        limits += [one["bbox"]] if has_box(one) else []
        limits += [rle.toBbox(code) for code in _codes(one, image)]
        return caption, self._draw(pixels, [one], image, region(pixels.shape[1::-1], limits))

    def _draw(self, pixels: np.ndarray, objects: Iterable[dict], image: dict, shown: Box) -> np.ndarray:
        """Draw objects on a region of an image [H, W, 3]; objects without a valid box are left out."""
        objects, scale = [one for one in objects if has_box(one)], SIDE / max(shown[2:])
        view, masks = part_of(pixels, shown, scale, GREY), []
        for one in objects:
            mask = np.zeros(view.shape[:2], np.uint8)
            for points in _polygons(one, image):
                cv2.fillPoly(mask, [np.round((points - shown[:2]) * scale).astype(np.int32)], 1)
            for code in _codes(one, image):
                mask |= part_of(rle.decode(code), shown, scale, 0)
            masks.append(mask.view(bool))
        boxes = [(np.subtract(one["bbox"], (*shown[:2], 0, 0)) * scale).tolist() for one in objects]
        texts = [f"{self.names.get(x['category_id'], '?')}{' (crowd)' * bool(x.get('iscrowd'))}" for x in objects]
        colours = [self.colours.get(one["category_id"], draw.MARK) for one in objects]
        return draw.instances(view, boxes, texts, colours, masks)


class MapPictures:
    """Pictures of label maps, or of the PNGs of panoptic segments.

    Args:
        maps: Path of an image -> path of its map.
        names: Class names.
        read: Path of a map -> the class of each pixel, [H, W]; values outside of `names` mean no class.
        stored: Whether images are loaded as stored, not turned by their EXIF orientation.
    """

    def __init__(self, maps: Mapping[str, str], names: Sequence[str], read: Callable[[str], np.ndarray], stored: bool):
        self.images, self.names, self.read, self.color_type = maps, draw.drawable(names), read, COLOUR_TYPES[stored]
        self.colours = np.concatenate([draw.distinct_colours(len(names)), np.zeros((1, 3), np.uint8)])
        self.image_of = {name: image for image, path in maps.items() for name in (image, path, os.path.basename(path))}

    def of(self, fault: Fault) -> list[str]:
        """Paths of the images that have a fault."""
        found = [path_in(item, self.image_of) for item in (*fault.items, *fault.examples)]
        return list(dict.fromkeys(filter(None, found)))

    def draw(self, path: str) -> Picture:
        """Draw a map over its image, or beside it if the sizes differ.

        Raises:
            ConfigError: One of them cannot be read.
        """
        pixels, labels, none = picture_of(path, self.color_type), self.read(self.images[path]), len(self.names)
        labels = np.where((labels >= 0) & (labels < none), labels, none)
        scale = SIDE / max(pixels.shape[:2])
        if labels.shape == pixels.shape[:2]:
            view = part_of(pixels, (0, 0, *pixels.shape[1::-1]), scale, GREY)
            small = cv2.resize(labels.astype(np.int32), view.shape[1::-1], interpolation=cv2.INTER_NEAREST)
            drawn = draw.overlay(view, small, self.colours)
        else:
            height = max(1, round(pixels.shape[0] * scale / 2))
            parts = [(x, max(1, round(x.shape[1] * height / x.shape[0]))) for x in (pixels, self.colours[labels])]
            drawn = np.concatenate([cv2.resize(x, (w, height), interpolation=cv2.INTER_AREA) for x, w in parts], 1)
        shares = draw.class_shares(labels, none + 1)[:-1]
        caption = f"{os.path.basename(path)}, {by(pixels.shape[1::-1])}"
        return caption, draw.with_legend(drawn, self.names, self.colours, shares)


def path_in(item: object, known: Mapping[str, str]) -> str | None:
    """The path in `known` that an item of a fault starts with, before any note; None if there is none."""
    text = str(item)
    return next((known[x] for x in (text, text.rpartition(" (")[0], text.rpartition(" of ")[2]) if x in known), None)


def _polygons(one: Mapping, image: Mapping) -> list[np.ndarray]:
    """The polygons of an annotation, or its box if it was turned with the image: [points, 2] each."""
    mask = one.get("segmentation")
    if turned(one) and has_box(one) and isinstance(angle := one["attributes"]["rotation"], NUMBER):
        x, y, w, h = one["bbox"]
        return [cv2.boxPoints(((x + w / 2, y + h / 2), (w, h), angle))]
    is_list = isinstance(mask, list) and not mask_fault(mask, image)
    return [np.array(polygon, float).reshape(-1, 2) for polygon in mask] if is_list else []


def _codes(one: Mapping, image: Mapping) -> list[dict]:
    """The run-length code of an annotation that has one."""
    mask = one.get("segmentation")
    if not isinstance(mask, dict) or mask_fault(mask, image):
        return []
    return [rle.frPyObjects(mask, *mask["size"]) if isinstance(mask["counts"], list) else mask]
