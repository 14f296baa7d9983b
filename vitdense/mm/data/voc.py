"""Pascal VOC's XML files, as mmdet's XMLDataset reads them: what they hold, and what is wrong with them."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from vitdense.files import read_text
from vitdense.mm.data.faults import Faults
from vitdense.mm.data.samples import Samples
from vitdense.mm.errors import count

SIDES = ("xmin", "ymin", "xmax", "ymax")


def read_voc(list_file: Path, annotations: Path, images: Path) -> Samples:
    """Read XML files.

    Args:
        list_file: A name per line.
        annotations: Folder of the XML files, NAME.xml.
        images: Folder of the images, NAME.jpg.

    Raises:
        OptionError: The list is not UTF-8.
    """
    sizes, counts, faults = {}, Counter(), Faults()
    for name in read_text(list_file).split():
        path = annotations / f"{name}.xml"
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            faults.add(f"XML files cannot be read ({type(error).__name__}):", path)
            continue
        size = [root.findtext(f"size/{side}") for side in ("width", "height")]
        has_size = all(text and text.strip().isdigit() for text in size)
        sizes[str(images / f"{name}.jpg")] = (int(size[0]), int(size[1])) if has_size else None
        for one in root.iter("object"):
            counts[one.findtext("name", "").strip()] += 1
            try:
                x, y, right, bottom = (float(one.findtext(f"bndbox/{side}", "")) for side in SIDES)
            except ValueError:
                faults.add(f"objects have no bndbox of numbers {', '.join(SIDES)}:", path)
                continue
            if right <= x or bottom <= y:
                faults.add("objects have a box without area (bndbox has corners):", path, grave=False)
    rows = [f"{count(len(sizes), 'images')}, {count(counts.total(), 'objects')}"]
    return Samples(sizes, counts, list(faults), rows)
