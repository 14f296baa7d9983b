"""What a trained model finds in photos and computes inside, for the proof of its program."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitdense.export.proof import Computed, recording, sampled, shrunk, write_proof
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.samples import Sample, of_photos, paths_of
from vitdense.mm.export.tasks import Task
from vitdense.mm.predictor import Predictor
from vitdense.runtime import Output

# How much of the width of each photo is in a proof: a program that resizes its positions is seen at two sizes.
PARTS, DRAWN = (1, 0.75, 1), (256, 384)  # size of drawn photos, where the test data cannot be read


class Record:
    """A model on photos, before its program is exported.

    Args:
        task: The model, float32, after `vitdense.mm.export.detectors.fix`.
        predictor: Of the model.
        about: What the program says of itself.
        images: Photos; the first ones of the test data when empty, or drawn ones.
        preprocessing: The program takes photos.
        found: Outputs of the task for a sample, as what was found in its photo.
    """

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        about: Mapping[str, Any],
        images: Sequence[str],
        preprocessing: bool,
        found: Callable[[Mapping[str, Tensor], Sample], Output],
    ) -> None:
        try:
            paths = paths_of(predictor.dataset, images, len(PARTS))[: len(PARTS)]
            photos = [predictor.reader.pixels(path) for path in paths]
        except ConfigError:
            photos = [draw_image(np.random.default_rng(i), DRAWN)[0] for i, _ in enumerate(PARTS)]
        cut = (photo[:, : math.ceil(part * photo.shape[1])] for photo, part in zip(photos, PARTS))
        self.about, self.photos = about, [*map(shrunk, cut)]
        samples = [*of_photos(self.photos, predictor, about, preprocessing)]
        self.wanted = [_computed(task, sample, found) for sample in samples]
        with torch.autocast("cpu", torch.bfloat16):
            self.halves = [_computed(task, sample, found) for sample in samples]

    def write(self, path: Path, program: Path, precision: str) -> str:
        """Write the proof of a program; what was written."""
        blocks = write_proof(path, program, self.about, precision, self.photos, self.wanted, self.halves)
        return (
            f"{path} ({path.stat().st_size / 1e6:.1f} MB): {len(self.photos)} photos, {blocks} blocks; on the machine "
            f"that runs the program: vitdense verify {program}"
        )


def _computed(task: Task, sample: Sample, found: Callable[[Mapping[str, Tensor], Sample], Output]) -> Computed:
    """Maps among the outputs are those computed without a choice of the best: logits of pixels, queries and their
    masks."""
    with torch.no_grad(), recording(task) as blocks:
        outputs = task(sample.image)
    outputs = {name: x.float() if x.is_floating_point() else x for name, x in outputs.items()}
    maps = {} if "boxes" in outputs else {f"the output {name}": sampled(x) for name, x in outputs.items()}
    return Computed(blocks | maps, found(outputs, sample))
