"""Data sets in YOLO format, as annotations in COCO format.

``data.yaml`` names the classes and, for every split, folders or lists of images. Every image has a text file with a
line per object: the class, then a box (centre x, centre y, width, height) or a polygon (x, y, x, y, ...), relative to
the width and height of the image after its EXIF orientation.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vitdense.files import read_text
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES, header_size
from vitdense.mm.errors import ConfigError

ROUNDED = 1e-3  # tolerance of coordinates outside the image: exporters round


def read_yolo(data_file: Path, split: str) -> tuple[dict[str, list[dict]], Path, list[Fault]]:
    """A split as the content of a COCO annotation file; boxes have no `segmentation`.

    Args:
        data_file: ``data.yaml``. ``names`` is a list, or a dict from index to name; ``train`` and ``val`` are folders,
            text files with a path per line, or lists of these; ``path`` is their folder, by default the file's.
        split: ``train`` or ``val``.

    Returns:
        The content; the folder that ``file_name`` is relative to; and faults.

    Raises:
        ConfigError: The file has another content, or an entry of the split has no images.
    """
    names, root, entries = _read_yaml(data_file, split)
    paths = sorted({image for entry in entries for image in _images(root, entry, split)})
    if not paths:
        raise ConfigError(f"{data_file}: got {split}: {entries}, expected folders of images, or text files with paths")
    folder, faults = Path(os.path.commonpath([path.parent for path in paths])), Faults()
    labels = [_label_file(path) for path in paths]
    images, annotations = read_lines(zip(paths, labels), folder, partial(_object, num_classes=len(names)), faults)
    shared = [str(label) for label, count in Counter(labels).items() if count > 1]
    faults.add("images have the same label file as another, for names differ by suffix alone", *shared, grave=False)
    found = list(faults)
    if not any(label.exists() for label in labels):
        found.append(Fault(f"no image of {split} has labels; those of {paths[0]} would be in {labels[0]}"))
    categories = [{"id": i, "name": name} for i, name in enumerate(names, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}, folder, found


def read_lines(
    pairs: Iterable[tuple[Path, Path]], folder: Path, parse: Callable[..., dict | None], faults: Faults
) -> tuple[list[dict], list[dict]]:
    """Images and annotations of pairs of an image and its text file, which is absent where it has no object.

    ``parse(line, size)`` is a part of an annotation, or None if a line is no object; a ValueError says what is wrong.
    Annotations have their file and line as ``place``.
    """
    images, annotations = [], []
    for i, (path, label) in enumerate(pairs, 1):
        size = header_size(str(path), stored=False)
        if size is None:
            faults.add(f"images in {folder} cannot be read", path)
            continue
        images.append({"id": i, "file_name": path.relative_to(folder).as_posix(), "width": size[0], "height": size[1]})
        for number, line in _lines(label) if label.exists() else ():
            place = f"{label}:{number}"
            try:
                one = parse(line, size)
            except ValueError as error:
                faults.add("lines are no objects", f"{place}: {error}")
                continue
            if one:
                about = {"id": len(annotations) + 1, "image_id": i, "iscrowd": 0, "place": place}
                annotations.append({**about, **one})
    return images, annotations


def _read_yaml(file: Path, split: str) -> tuple[list[str], Path, list[str]]:
    try:
        text = read_text(file)
        has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
        data = None if has_aliases else yaml.safe_load(text)  # with aliases a few lines may mean 10^9 words
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--yolo: {file} is no YAML file ({str(error)[:200]})") from error
    if has_aliases:
        raise ConfigError(f"--yolo: {file}: got aliases (*name), expected values; write them out")
    if not isinstance(data, dict) or not {"names", split} <= data.keys():
        raise ConfigError(
            f"--yolo: {file} lacks 'names' or {split!r}, expected the data.yaml of a YOLO data set; "
            "--val 0.2 takes images of 'train' in place of 'val'"
        )
    names, path, nc, channels = data["names"], data.get("path") or "", data.get("nc"), data.get("channels", 3)
    if isinstance(names, dict) and names.keys() == {*range(len(names))}:
        names = [names[i] for i in range(len(names))]
    entries = data[split] if isinstance(data[split], list) else [data[split]]
    is_list = isinstance(names, list) and bool(names) and nc in (None, len(names))
    no_text = [name for name in names if not isinstance(name, str)] if is_list else []
    are_paths = bool(entries) and all(isinstance(entry, str) and entry for entry in entries)
    for is_right, text in (
        (is_list, f"got names {str(names)[:99]} and nc {nc}, expected a name for every class"),
        (not no_text, f"YAML reads names as {no_text[:9]}, expected text; put names in quotes"),
        (isinstance(path, str), f"got path {path!r}, expected the name of a folder; put it in quotes"),
        ("kpt_shape" not in data, "got kpt_shape, expected boxes or polygons; export keypoints in COCO's format"),
        (channels in (1, 3), f"got channels {channels}, expected images of 3"),
        (are_paths, f"got {split}: {data[split]!r}, expected folders of images, or text files with paths"),
    ):
        if not is_right:
            raise ConfigError(f"--yolo: {file}: {text}")
    return names, file.parent / path, entries


def _images(root: Path, entry: str, split: str) -> Iterator[Path]:
    """The image files of an entry, absolute. Some exporters write ``../train/images`` for a folder beside the file."""
    inside = root / entry.removeprefix("../")
    where = Path(os.path.abspath(root / entry if (root / entry).exists() or not inside.exists() else inside))
    if where.is_dir():
        found = [path for path in where.rglob("*") if path.suffix.lower() in SUFFIXES]
        if not found:
            raise ConfigError(f"--yolo: {where} ({split}) has no images")
        yield from found
        return
    if where.suffix != ".txt" or not where.is_file():
        raise ConfigError(f"--yolo: {split}: {where} is neither a folder of images nor a text file with their paths")
    for number, line in _lines(where):
        image = Path(os.path.abspath(where.parent / line))
        if not image.is_file():
            raise ConfigError(f"--yolo: {where}:{number}: {image} is not a file")
        yield image


def _label_file(image: Path) -> Path:
    """The label file of an image: in ``labels`` in place of the last folder ``images`` of its path, or beside it."""
    before, found, after = str(image.with_suffix(".txt")).rpartition(f"{os.sep}images{os.sep}")
    return Path(f"{before}{os.sep}labels{os.sep}{after}") if found else Path(after)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            yield number, line.strip()


def _object(line: str, size: Sequence[int], num_classes: int) -> dict[str, Any]:
    """The object of a line as part of a COCO annotation; a ValueError says what is wrong."""
    words = line.split()
    index, *shares = map(float, words)
    if not index.is_integer() or not 0 <= index < num_classes:
        raise ValueError(f"got class {words[0]}, expected 0 to {num_classes - 1}")
    if not all(-ROUNDED <= share <= 1 + ROUNDED for share in shares):  # NaN is outside too
        raise ValueError(f"got {min(shares)} to {max(shares)}, expected shares of the image, 0 to 1")
    values = [min(max(share, 0.0), 1.0) * size[i % 2] for i, share in enumerate(shares)]
    category = {"category_id": int(index) + 1}
    if len(values) == 4:
        x, y, width, height = values
        return {**category, "bbox": [x - width / 2, y - height / 2, width, height], "area": width * height}
    if len(values) < 6 or len(values) % 2:
        raise ValueError(f"got {len(values)} values after the class, expected the 4 of a box or 3 points or more")
    x, y = values[::2], values[1::2]
    area = abs(math.fsum(x[i - 1] * y[i] - x[i] * y[i - 1] for i in range(len(x)))) / 2
    box = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    return {**category, "bbox": box, "area": area, "segmentation": [values]}
