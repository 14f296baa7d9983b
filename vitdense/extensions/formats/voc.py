"""Folders of Pascal VOC, as annotations in COCO format.

``ImageSets/Main`` has lists of names; ``JPEGImages`` has an image of each name, ``Annotations`` an XML file. Objects
are those that mmdet's `XMLDataset` reads, whatever the encoding of the file: corners are whole and count from 1.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

from mmdet.datasets import XMLDataset

from vitdense.files import read_text
from vitdense.mm.data.classes import clean
from vitdense.mm.data.faults import Fault, Faults
from vitdense.mm.data.images import SUFFIXES, header_size
from vitdense.mm.errors import ConfigError

LISTS = {"train": ("train", "trainval"), "val": ("val", "test")}  # the first that exists is read
DECLARED = re.compile(rb"\s*<\?xml[^>]*\sencoding\s*=\s*[\"']([\w.-]+)[\"']")


def read_folder(root: Path, split: str) -> tuple[dict[str, list[dict]], Path, list[Fault]]:
    """A split as the content of a COCO annotation file; ``difficult`` objects are crowds, which are left out.

    Args:
        root: The folder of ``ImageSets``, ``JPEGImages`` and ``Annotations``.
        split: ``train`` or ``val``.

    Returns:
        The content; the folder of images; and faults.

    Raises:
        ConfigError: There is no list of the split, or it is empty.
    """
    lists = [root / "ImageSets/Main" / f"{name}.txt" for name in LISTS[split]]
    listed = next((path for path in lists if path.is_file()), None)
    names = [line.strip() for line in read_text(listed).splitlines() if line.strip()] if listed else []
    if not names:
        raise ConfigError(f"--voc: got no names of images for {split}, expected them in {' or '.join(map(str, lists))}")
    folder, faults, trees = root / "JPEGImages", Faults(), {}
    images_there = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES)
    paths = {path.relative_to(folder).with_suffix("").as_posix(): path for path in images_there}
    for name in names:
        path = root / "Annotations" / f"{name}.xml"
        if name not in paths:
            faults.add(f"names of {listed} have no image in {folder}", name)
            continue
        try:
            trees[name] = read_xml(path)
        except (OSError, LookupError, UnicodeError, ElementTree.ParseError) as error:
            faults.add(f"XML files cannot be read ({type(error).__name__}: {error})", path)
    kinds = dict.fromkeys(one.findtext("name", "") for tree in trees.values() for one in tree.findall("object"))
    categories = {name: i for i, name in enumerate(sorted({clean(kind) for kind in kinds}), 1)}
    reader = XMLDataset(metainfo={"classes": tuple(kinds)}, lazy_init=True)
    reader.cat2label = {kind: categories[clean(kind)] for kind in kinds}
    images, objects = [], []
    for name, tree in trees.items():
        try:
            found = reader._parse_instance_info(tree)
            size = [int(tree.findtext(f"size/{side}", "0")) for side in ("width", "height")]
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            faults.add(f"XML files have an object or a size that is none ({error})", f"{name}.xml")
            continue
        width, height = size if all(size) else header_size(str(paths[name]), stored=False) or (0, 0)
        image = {"id": len(images) + 1, "file_name": paths[name].relative_to(folder).as_posix()}
        images.append({**image, "width": width, "height": height})
        for one in found:
            left, top, right, bottom = one["bbox"]
            box, area = [left, top, right - left, bottom - top], (right - left) * (bottom - top)
            about = {"id": len(objects) + 1, "image_id": image["id"], "category_id": one["bbox_label"]}
            objects.append({**about, "bbox": box, "area": area, "iscrowd": one["ignore_flag"]})
    kept = [{"id": i, "name": name} for name, i in categories.items()]
    return {"images": images, "annotations": objects, "categories": kept}, folder, list(faults)


def read_xml(path: Path) -> ElementTree.ElementTree:
    """Parse an XML file of any encoding that Python knows; expat alone knows few.

    Raises:
        OSError, LookupError, UnicodeError, ElementTree.ParseError: It cannot be read.
    """
    content: bytes | str = path.read_bytes()
    if declared := DECLARED.match(content):
        content = content.decode(declared[1].decode())
    return ElementTree.ElementTree(ElementTree.fromstring(content))
