"""Folders of DOTA (captain-whu.github.io/DOTA), as annotations in COCO format.

Each split has ``images`` and ``labelTxt``, a text file for each image, with a line for each object: x and y of four
corners in pixels, the class, and 1 if it is difficult, so a crowd, else 0. Lines of words with a colon are its header.
"""

from pathlib import Path
from typing import Any

import numpy as np

from vitdense.files import read_text
from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import outline
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES, header_size
from vitdense.mm.errors import ConfigError


def read_folder(root: Path, split: str) -> tuple[dict[str, list[dict]], Path, list[Fault]]:
    """Content, folder of images and faults as of `voc.read_folder`; a ConfigError if the split has no images."""
    folder, labels, faults = root / split / "images", root / split / "labelTxt", Faults()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise ConfigError(f"--dota: got no image in {folder}, expected {split}/images and {split}/labelTxt")
    images, objects = [], []
    for i, path in enumerate(paths, 1):
        size = header_size(str(path), stored=False)
        text = labels / path.relative_to(folder).with_suffix(".txt")
        if size is None or not text.is_file():
            what = f"images of {split} cannot be read" if size is None else f"images have no file in {labels}"
            faults.add(what, path)
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
    box, area = outline([points])
    about = {"name": clean(words[8]), "iscrowd": int(words[9:] in (["1"], ["2"])), "area": area}
    return {**about, "bbox": list(box), "segmentation": [points.ravel().tolist()]}
