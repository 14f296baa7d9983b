"""Pascal VOC's XML files, as mmdet's XMLDataset reads them: what they hold, and what is wrong with them."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from vitdense.files import read_text
from vitdense.mm.data.faults import Fault, Faults

SIDES = ("xmin", "ymin", "xmax", "ymax")


class Voc(NamedTuple):
    """What the XML files of a data set hold.

    Attributes:
        counts: Objects per name.
        sizes: Width and height of the images, by their paths; None where a file does not have them.
        faults: What is wrong.
    """

    counts: Counter
    sizes: dict[str, tuple[int, int] | None]
    faults: list[Fault]


def read_voc(list_file: Path, annotations: Path, images: Path) -> Voc:
    """Read XML files.

    Args:
        list_file: A name per line.
        annotations: Folder of the XML files, NAME.xml.
        images: Folder of the images, NAME.jpg.

    Raises:
        OptionError: The list is not UTF-8.
    """
    found, faults = Voc(Counter(), {}, []), Faults()
    for name in read_text(list_file).split():
        path = annotations / f"{name}.xml"
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            faults.add(f"XML files cannot be read ({type(error).__name__}):", path)
            continue
        size = [root.findtext(f"size/{side}") for side in ("width", "height")]
        has_size = all(text and text.strip().isdigit() for text in size)
        found.sizes[str(images / f"{name}.jpg")] = (int(size[0]), int(size[1])) if has_size else None
        for one in root.iter("object"):
            found.counts[one.findtext("name", "").strip()] += 1
            try:
                x, y, right, bottom = (float(one.findtext(f"bndbox/{side}", "")) for side in SIDES)
            except ValueError:
                faults.add(f"objects have no bndbox of numbers {', '.join(SIDES)}:", path)
                continue
            if right <= x or bottom <= y:
                faults.add("objects have a box without area (bndbox has corners):", path, grave=False)
    found.faults.extend(faults)
    return found
