"""What the extension gives `vitdense check`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from vitdense.mm.data.faults import Fault


def look(dataset: "Dataset", where: str) -> "Iterator[Fault]":
    """Warnings of steps that move images without their annotations; see `vitdense.extensions.markers.markers`."""
    from vitdense.extensions.markers import markers

    return markers.look(dataset, where)
