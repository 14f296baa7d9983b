"""Folders of DOTA (captain-whu.github.io/DOTA), as annotations in COCO format.

Each split has ``images`` and ``labelTxt``, a text file for each image, with a line for each object: x and y of four
corners in pixels, the class, and 1 or 2 if it is difficult, so a crowd, else 0. Words with a colon start its header.
"""

import math
from pathlib import Path
from typing import Any

from vitdense.extensions.formats.yolo import read_lines
from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import outline
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES
from vitdense.mm.errors import ConfigError


def read_folder(root: Path, split: str) -> tuple[dict[str, list[dict]], Path, list[Fault]]:
    """Content, folder of images and faults as of `voc.read_folder`; a ConfigError if the split has no images."""
    folder, labels, faults = root / split / "images", root / split / "labelTxt", Faults()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise ConfigError(f"--dota: got no image in {folder}, expected {split}/images and {split}/labelTxt")
    texts = [labels / path.relative_to(folder).with_suffix(".txt") for path in paths]
    faults.add(f"images have no file in {labels}", *(path for path, text in zip(paths, texts) if not text.is_file()))
    images, objects = read_lines(zip(paths, texts), folder, _object, faults)
    found = list(faults) if objects or [*faults] else [Fault(f"got no object in {labels}")]
    ids = {name: i for i, name in enumerate(sorted({one["name"] for one in objects}), 1)}
    annotations = [{**one, "category_id": ids[one.pop("name")]} for one in objects]
    categories = [{"id": i, "name": name} for name, i in ids.items()]
    return {"images": images, "annotations": annotations, "categories": categories}, folder, found


def _object(line: str, _size: tuple[int, int]) -> dict[str, Any] | None:
    words = line.split()
    if ":" in words[0]:
        return None
    try:
        points = [float(word) for word in words[:8]]
        fits = math.isfinite(sum(points)) and len(words) in (9, 10) and words[9:] in ([], ["0"], ["1"], ["2"])
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"got {line[:60]!r}, expected 8 coordinates, a class, and 0, 1 or 2")
    box, area = outline([points])
    about = {"name": clean(words[8]), "iscrowd": int(words[9:] in (["1"], ["2"])), "area": area}
    return {**about, "bbox": list(box), "segmentation": [points]}
