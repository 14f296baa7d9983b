"""COCO panoptic files, JSON of segments and PNGs of their ids: their content and faults."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from vitdense.errors import OptionError
from vitdense.mm.data import coco
from vitdense.mm.data.coco import NUMBER
from vitdense.mm.data.faults import Fault, Samples
from vitdense.mm.data.images import decode, evenly_spaced, header

KEYS = {
    "images": coco.KEYS["images"],
    "annotations": {"image_id": int, "file_name": str, "segments_info": list},
    "categories": {"id": int, "name": str, "isthing": int},
}
OF_SEGMENT = {"id": int, "category_id": int, "bbox": list, "area": NUMBER}


def ids_of_colours(image: np.ndarray) -> np.ndarray:
    """Ids of segments, int32 [H, W], from a PNG's colours, uint8 RGB [H, W, 3]: R + 256 G + 65536 B."""
    return image.astype(np.int32) @ np.array([1, 256, 65536], np.int32)


def colours_of_ids(ids: np.ndarray) -> np.ndarray:
    """The inverse of `ids_of_colours`."""
    return np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], axis=-1).astype(np.uint8)


def read_ids(png: Path) -> np.ndarray:
    """The ids of the segments in a PNG of 8-bit RGB, int32 [H, W]; else an OSError or an OptionError."""
    content = png.read_bytes()
    with header(content) as image:
        if image.mode not in ("RGB", "RGBA", "P") or image.format != "PNG":
            raise OptionError(f"got {image.format} of mode {image.mode}, expected a PNG of RGB in 8 bits")
    return ids_of_colours(decode(content)[..., ::-1])


def read(file: Path) -> dict[str, list[dict]]:
    """The content of a panoptic annotation file, else a ConfigError."""
    content = coco.read_json(file, KEYS)
    for item in content["annotations"]:
        coco.check_keys(file, "segments", item["segments_info"], OF_SEGMENT)
    return content


def examine(content: Mapping[str, list[dict]], folder: Path | None = None, number: int | None = None) -> Samples:
    """Find the faults of segments, and compare them with their PNGs.

    Args:
        content: From `read`.
        folder: Folder of the PNGs, which have the names of images; None to read none.
        number: PNGs to read, evenly spaced; None for all.
    """
    annotations = content["annotations"]
    segments = [{**one, "image_id": item["image_id"]} for item in annotations for one in item["segments_info"]]
    names = {category["id"]: category["name"] for category in content["categories"]}
    stuff = {category["id"] for category in content["categories"] if not category["isthing"]}
    faults, image_of = coco.common_faults(content), {image["id"]: image for image in content["images"]}
    stems = {key: Path(image["file_name"]).stem for key, image in image_of.items()}
    if segments and all(one.get("iscrowd") for one in segments):
        faults.add("all segments are crowds (iscrowd): none is learned", len(segments))
    for item in annotations:
        stem = Path(item["file_name"]).stem
        if stem != stems.get(item["image_id"], stem) and stem in stems.values():
            faults.add(
                "annotations have the file_name of another image's PNG; images have PNGs of their name",
                item["file_name"],
            )
        in_image = Counter(segment["category_id"] for segment in item["segments_info"])
        ids = Counter(segment["id"] for segment in item["segments_info"])
        for segment in item["segments_info"]:
            name = f"{segment['id']} of {item['file_name']}"
            if segment["category_id"] not in names:
                faults.add("segments have a category that is not in the file", name)
            if coco.has_strange_flag(segment):
                faults.add(f"{coco.FLAGS} in segments", name)
            if not coco.has_box(segment):
                faults.add("boxes of segments are not four numbers", name)
            if ids[segment["id"]] > 1:
                faults.add("segments of an image have the same id, twice", name)
        if any(count > 1 for label, count in in_image.items() if label in stuff):
            faults.add("images have a class of stuff in several segments, which are one", item["file_name"])
    of_image = Counter(item["image_id"] for item in annotations)
    faults.add("images are annotated twice", *(key for key, count in of_image.items() if count > 1))
    faults.add("images have no annotation", *(image_of.keys() - of_image.keys()))
    read, seen = 0, Counter()
    known = [one for one in annotations if one["image_id"] in image_of] if folder is not None else []
    for item in evenly_spaced(known, number):
        image = image_of[item["image_id"]]
        png = (folder / image["file_name"]).with_suffix(".png")
        if not png.is_file():
            faults.add("PNGs do not exist", png)
            continue
        try:
            ids = read_ids(png)
        except (OSError, OptionError, cv2.error) as error:
            faults.add(f"PNGs cannot be read ({type(error).__name__}: {error})", png)
            continue
        if ids.shape != (image["height"], image["width"]):
            faults.add("PNGs have another size than their image in the file", png.name)
        values, counts = np.unique(ids, return_counts=True)
        pixels = dict(zip(values.tolist(), counts.tolist()))
        read += 1
        for segment in item["segments_info"]:
            if segment["id"] not in pixels:
                faults.add("segments have no pixel in their PNG", f"{segment['id']} of {png.name}")
            seen[names.get(segment["category_id"])] += pixels.pop(segment["id"], 0)
        pixels.pop(0, None)  # unlabelled
        faults.add("ids of PNGs are no segment in the file", *(f"{value} of {png.name}" for value in pixels))
    things = len(names) - len(stuff)
    absent = [kind for kind, n in (("things", things), ("stuff", len(stuff))) if not n]
    wrong = [*faults, *(Fault(f"no category is of {kind} ('isthing')", grave=False) for kind in absent)]
    found = coco.samples_of(content, segments, wrong)
    found.shares = {name: 100 * seen[name] / max(seen.total(), 1) for name in found.counts}
    found.rows = [
        f"images: {len(content['images'])}, segments: {len(segments)}",
        f"classes of things: {things}, of stuff: {len(stuff)}",
        f"{read} of {len(annotations)} PNGs read",
    ]
    return found
