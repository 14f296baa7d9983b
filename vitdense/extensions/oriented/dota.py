"""Folders of DOTA (captain-whu.github.io/DOTA), as annotations in COCO format.

Each split has ``images`` and ``labelTxt``, a text file for each image, with a line for each object: x and y of four
corners in pixels, the class, and whether it is difficult, 0 or 1. Lines of words with a colon are its header.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitdense.extensions.oriented.labels import area_of
from vitdense.files import atomic_write, read_text
from vitdense.mm.data.classes import clean
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES, header_size
from vitdense.mm.errors import ConfigError


def read_folder(root: Path, split: str) -> tuple[dict[str, list[dict]], Path, list[Fault]]:
    """A split as the content of a COCO annotation file; difficult objects are crowds, which training leaves out.

    Args:
        root: The folder of ``train`` and ``val``.
        split: ``train`` or ``val``.

    Returns:
        The content; the folder of images; and faults.

    Raises:
        ConfigError: The split has no images.
    """
    folder, labels, faults = root / split / "images", root / split / "labelTxt", Faults()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise ConfigError(f"--dota: got no image in {folder}, expected {split}/images and {split}/labelTxt")
    images, objects = [], []
    for i, path in enumerate(paths, 1):
        size = header_size(str(path), stored=False)
        text = labels / path.relative_to(folder).with_suffix(".txt")
        if size is None or not text.is_file():
            faults.add(
                f"images of {split} cannot be read" if size is None else f"images have no file in {labels}", path
            )
            continue
        images.append({"id": i, "file_name": path.relative_to(folder).as_posix(), "width": size[0], "height": size[1]})
        for number, line in enumerate(read_text(text).splitlines(), 1):
            if not line.strip() or ":" in line.split()[0]:
                continue
            try:
                objects.append({"image_id": i, **_object(line)})
            except ValueError as error:
                faults.add("lines are no objects", f"{text}:{number}: {error}")
    ids = {name: i for i, name in enumerate(sorted({one["name"] for one in objects}), 1)}
    annotations = [{"id": i, **one, "category_id": ids[one.pop("name")]} for i, one in enumerate(objects, 1)]
    categories = [{"id": i, "name": name} for name, i in ids.items()]
    return {"images": images, "annotations": annotations, "categories": categories}, folder, list(faults)


def _object(line: str) -> dict[str, Any]:
    words = line.split()
    if len(words) not in (9, 10) or words[9:] not in ([], ["0"], ["1"], ["2"]):
        raise ValueError(f"got {line[:60]!r}, expected 8 coordinates, a class, and 0 or 1")
    points = np.array([float(word) for word in words[:8]]).reshape(4, 2)
    if not np.isfinite(points).all():
        raise ValueError("got coordinates that are not finite")
    low, sides = points.min(0), np.ptp(points, axis=0)
    about = {"name": clean(words[8]), "iscrowd": int(words[9:] in (["1"], ["2"])), "area": abs(area_of(points))}
    return {**about, "bbox": [*low.tolist(), *sides.tolist()], "segmentation": [points.ravel().tolist()]}


def write_results(prefix: Path, classes: Sequence[str], names: Sequence[str], found: Sequence[Mapping]) -> None:
    """Write DOTA's results of task 1, ``{prefix}.Task1_{class}.txt``: image, score and corners in a line.

    Args:
        prefix: Start of the paths.
        classes: Names.
        names: Names of the images, without suffix.
        found: For each image ``labels``, ``scores`` and ``corners``, ``[N, 4, 2]`` in pixels.
    """
    for label, name in enumerate(classes):
        with atomic_write(Path(f"{prefix}.Task1_{name}.txt")) as scratch, scratch.open("w", encoding="utf-8") as file:
            for image, one in zip(names, found):
                for row in (np.asarray(one["labels"]) == label).nonzero()[0]:
                    places = " ".join(f"{v:.2f}" for v in np.asarray(one["corners"][row]).ravel())
                    file.write(f"{image} {float(one['scores'][row]):.6f} {places}\n")
