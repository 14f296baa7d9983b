"""The proof of one model in a program: what it finds in photos and what its blocks compute."""

import math
from pathlib import Path

import numpy as np
import torch

from vitdense.extensions.proof.make import Computed, proof_of, recording, sampled, shrunk
from vitdense.mm.cli.export import Made
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.samples import Sample, of_photos, paths_of
from vitdense.mm.export.tasks import Part, Task

# Share of each photo's width in a proof: two sizes show whether a program resizes its positions.
PARTS, DRAWN = (1, 0.75, 1), (256, 384)  # size of drawn photos, where the test data cannot be read


def proof_of_part(program: Path, part: Part, model: Made) -> dict[str, np.ndarray]:
    predictor = part.predictor
    try:
        paths = paths_of(predictor.dataset, model.wish.images, len(PARTS))[: len(PARTS)]
        photos = [predictor.reader.pixels(path) for path in paths]
    except ConfigError:
        photos = [draw_image(np.random.default_rng(i), DRAWN)[0] for i, _ in enumerate(PARTS)]
        if loader := predictor.reader.loader:
            photos = [photo[..., np.arange(loader.channels) % 3].astype(np.float32) for photo in photos]
    photos = [shrunk(photo[:, : math.ceil(share * photo.shape[1])]) for photo, share in zip(photos, PARTS)]
    samples = [*of_photos(photos, predictor, part.about)]  # the model itself takes images
    wanted = [computed(model.task, sample, part) for sample in samples]
    with torch.autocast("cpu", torch.bfloat16):
        halves = [computed(model.task, sample, part) for sample in samples]
    return proof_of(program, part.name, part.about, model.wish.precision, photos, wanted, halves)


def computed(task: Task, sample: Sample, part: Part) -> Computed:
    """What a model computes from a sample. Outputs computed without selection, such as logits and masks, are maps."""
    with torch.no_grad(), recording(task) as blocks:
        outputs = task(sample.image)
    blocks = {name: x for name, x in blocks.items() if name.startswith(part.scope)}
    outputs = {name: x.float() if x.is_floating_point() else x for name, x in part.own(outputs).items()}
    maps = {} if "boxes" in outputs else {f"the output {part.start}{name}": sampled(x) for name, x in outputs.items()}
    return Computed(blocks | maps, part.read(outputs, sample))
