"""What the files of a data set hold, whatever their format."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitdense.mm.data.faults import Fault

Size = tuple[int, int]  # width and height in pixels


@dataclass
class Samples:
    """What the reader of a format gives.

    Attributes:
        sizes: Of the images as annotated, by their names or paths; None where the files do not have them.
        counts: Objects of every class by its name, things before stuff; of label maps none.
        faults: What is wrong.
        rows: What else is there, a line each.
        shares: Of segments and label maps: the classes' shares of the pixels that were read, in per cent.
        densest: Most objects of an image, without crowds.
        without_mask: Ids of annotations of instances without a mask.
    """

    sizes: dict[str, Size | None]
    counts: Mapping[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=dict)
    densest: int = 0
    without_mask: list[int] = field(default_factory=list)
