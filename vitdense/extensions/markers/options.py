"""The part of the extension for `vitdense check`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from vitdense.mm.data.faults import Fault


def look(dataset: "Dataset", where: str) -> "Iterator[Fault]":
    from vitdense.extensions.markers import markers

    return markers.look(dataset, where)
