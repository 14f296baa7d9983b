"""Results in DOTA's format (captain-whu.github.io/DOTA)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitdense.files import atomic_write


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
