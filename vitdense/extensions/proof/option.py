"""``vitdense export``: a proof beside the program, of what the model finds in photos and computes inside."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.extensions.proof.make import Computed, proof_of, recording, sampled, shrunk, write_proof
from vitdense.mm.cli.export import Made
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.part import Part
from vitdense.mm.export.samples import Sample, of_photos, paths_of
from vitdense.mm.export.tasks import Task

# How much of the width of each photo is in a proof: a program that resizes its positions is seen at two sizes.
PARTS, DRAWN = (1, 0.75, 1), (256, 384)  # size of drawn photos, where the test data cannot be read


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-proof", dest="proof", action="store_false", help="no NAME.proof, for vitdense verify")


def after(args: argparse.Namespace, program: Path, model: Made, cfg: Config) -> None:
    """Write ``NAME.proof`` beside a program that `vitdense.runtime` reads."""
    path = program.with_suffix(".proof")
    path.unlink(missing_ok=True)  # of the program that was here before
    if not (args.proof and model.is_read):
        return
    proofs = [proof_of_part(program, part, model) for part in model.parts]
    write_proof(path, proofs)
    blocks = sum(len(array) - 1 for proof in proofs for name, array in proof.items() if name.endswith("sizes0"))
    print_log(
        f"{path} ({path.stat().st_size / 1e6:.1f} MB): {len(PARTS)} photos, {blocks} blocks; on the machine that runs "
        f"the program: vitdense verify {program}",
        "current",
    )


def proof_of_part(program: Path, part: Part, model: Made) -> dict[str, np.ndarray]:
    """The proof of one of the models in a program."""
    predictor = part.predictor
    try:
        paths = paths_of(predictor.dataset, model.wish.images, len(PARTS))[: len(PARTS)]
        photos = [predictor.reader.pixels(path) for path in paths]
    except ConfigError:
        photos = [draw_image(np.random.default_rng(i), DRAWN)[0] for i, _ in enumerate(PARTS)]
    photos = [shrunk(photo[:, : math.ceil(share * photo.shape[1])]) for photo, share in zip(photos, PARTS)]
    samples = [*of_photos(photos, predictor, part.about, preprocessing=False)]  # the model takes no photos itself
    wanted = [_computed(model.task, sample, part) for sample in samples]
    with torch.autocast("cpu", torch.bfloat16):
        halves = [_computed(model.task, sample, part) for sample in samples]
    return proof_of(program, part.name, part.about, model.wish.precision, photos, wanted, halves)


def _computed(task: Task, sample: Sample, part: Part) -> Computed:
    """Maps among the outputs are those computed without a choice of the best: logits of pixels, queries and their
    masks."""
    with torch.no_grad(), recording(task) as blocks:
        outputs = task(sample.image)
    blocks = {name: x for name, x in blocks.items() if name.startswith(part.scope)}
    outputs = {name: x.float() if x.is_floating_point() else x for name, x in part.own(outputs).items()}
    maps = {} if "boxes" in outputs else {f"the output {part.start}{name}": sampled(x) for name, x in outputs.items()}
    return Computed(blocks | maps, part.read(outputs, sample))
