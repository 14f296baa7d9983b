"""What a trained model finds in photos and computes inside, for the proof of its program."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitdense.export.proof import Sampled, recording, sampled, shrunk, write_proof
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.samples import Sample, of_photos, paths_of
from vitdense.mm.export.tasks import Task
from vitdense.mm.predictor import Predictor
from vitdense.runtime import Output

PHOTOS, DRAWN = 3, (256, 384)  # photos of a proof; size of drawn ones, where the test data cannot be read


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
            paths = paths_of(predictor.dataset, images, PHOTOS)[:PHOTOS]
            photos = [predictor.reader.pixels(path) for path in paths]
        except ConfigError:
            photos = [draw_image(np.random.default_rng(i), DRAWN)[0] for i in range(PHOTOS)]
        self.about, self.photos = about, [shrunk(photo) for photo in photos]
        self.samples = [*of_photos(self.photos, predictor, about, preprocessing)]
        self.blocks, self.results = [], []
        with torch.no_grad():
            for sample in self.samples:
                with recording(task) as blocks:
                    outputs = task(sample.image)
                self.blocks.append(blocks | _maps(outputs))
                self.results.append(found(outputs, sample))
            with recording(task) as self.halves, torch.autocast("cpu", torch.bfloat16):
                outputs = task(self.samples[0].image)
            self.halves |= _maps(outputs)

    def write(self, path: Path, program: Path, precision: str) -> str:
        """Write the proof of a program; what was written."""
        dtype = torch.float16 if precision == "float16" else torch.float32
        given = (sample.given for sample in self.samples)
        batches = [(x if x.dtype == torch.uint8 else x.to(dtype)).numpy() for x in given]
        parts = (self.photos, batches, self.blocks, self.halves, self.results)
        blocks = write_proof(path, program, self.about, precision, *parts)
        return (
            f"{path} ({path.stat().st_size / 1e6:.1f} MB): {len(self.photos)} photos, {blocks} blocks; on the machine "
            f"that runs the program: vitdense verify {program}"
        )


def _maps(outputs: Mapping[str, Tensor]) -> dict[str, Sampled]:
    """Outputs that are computed without a choice of the best: logits of pixels, queries and their masks."""
    return {} if "boxes" in outputs else {f"the output {name}": sampled(x) for name, x in outputs.items()}
