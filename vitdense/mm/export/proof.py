"""What a trained model finds in photos and computes inside, for the proof of its program."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vitdense.export.proof import Computed, proof_of, recording, sampled, shrunk, write_proof
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.part import Part
from vitdense.mm.export.samples import Sample, of_photos, paths_of
from vitdense.mm.export.tasks import Task

# How much of the width of each photo is in a proof: a program that resizes its positions is seen at two sizes.
PARTS, DRAWN = (1, 0.75, 1), (256, 384)  # size of drawn photos, where the test data cannot be read


class Record:
    """A model on photos, before its program is exported.

    Args:
        task: The program, float32, after `vitdense.mm.export.detectors.fix`.
        part: The model in it.
        images: Photos; the first ones of the test data when empty, or drawn ones.
        preprocessing: The program takes photos.
    """

    def __init__(self, task: Task, part: Part, images: Sequence[str], preprocessing: bool) -> None:
        self.part, predictor = part, part.predictor
        try:
            paths = paths_of(predictor.dataset, images, len(PARTS))[: len(PARTS)]
            photos = [predictor.reader.pixels(path) for path in paths]
        except ConfigError:
            photos = [draw_image(np.random.default_rng(i), DRAWN)[0] for i, _ in enumerate(PARTS)]
        cut = (photo[:, : math.ceil(share * photo.shape[1])] for photo, share in zip(photos, PARTS))
        self.photos = [*map(shrunk, cut)]
        samples = [*of_photos(self.photos, predictor, part.about, preprocessing)]
        self.wanted = [_computed(task, sample, part) for sample in samples]
        with torch.autocast("cpu", torch.bfloat16):
            self.halves = [_computed(task, sample, part) for sample in samples]

    def proof(self, program: Path, precision: str) -> dict[str, np.ndarray]:
        """The proof of the model in a program."""
        return proof_of(program, self.part.name, self.part.about, precision, self.photos, self.wanted, self.halves)


def write_records(records: Sequence[Record], path: Path, program: Path, precision: str) -> str:
    """Write the proof of a program, of the records of its models; what was written."""
    proofs = [record.proof(program, precision) for record in records]
    write_proof(path, proofs)
    blocks = sum(len(array) - 1 for proof in proofs for name, array in proof.items() if name.endswith("sizes0"))
    return (
        f"{path} ({path.stat().st_size / 1e6:.1f} MB): {len(records[0].photos)} photos, {blocks} blocks; on the "
        f"machine that runs the program: vitdense verify {program}"
    )


def _computed(task: Task, sample: Sample, part: Part) -> Computed:
    """Maps among the outputs are those computed without a choice of the best: logits of pixels, queries and their
    masks."""
    with torch.no_grad(), recording(task) as blocks:
        outputs = task(sample.image)
    blocks = {name: x for name, x in blocks.items() if name.startswith(part.scope)}
    outputs = {name: x.float() if x.is_floating_point() else x for name, x in part.own(outputs).items()}
    maps = {} if "boxes" in outputs else {f"the output {part.start}{name}": sampled(x) for name, x in outputs.items()}
    return Computed(blocks | maps, part.read(outputs, sample))
