"""One of the models of a program, and what is wanted of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from vitdense.export.compare import above, can_compare, compare_counts, compare_maps
from vitdense.mm.export.samples import Sample, describe
from vitdense.mm.export.tasks import task_of
from vitdense.mm.predictor import Predictor
from vitdense.runtime import BOUNDS, SCORE, Output, compare_results, read


class Part:
    """One of the models of a program, as its `task`; `about` and `metadata` are what the file says of it.

    Args:
        name: Before the names of its outputs, with a slash; empty where it is alone.
        predictor: The model.
        maps: See `task_of`.
        scope: Of its modules in the program of all; empty where it is alone.
        precision: Of the program, see `BOUNDS`. Objects of int8 are compared from the operating point on, or `SCORE`.
    """

    def __init__(self, name: str, predictor: Predictor, maps: bool, scope: str, precision: str) -> None:
        self.name, self.predictor, self.scope = name, predictor, scope
        self.start = f"{name}/" if name else ""
        self.task = task_of(predictor.model, maps).eval()
        described = describe(predictor)
        self.metadata = {self.start + key: value for key, value in described.items()}
        self.about = {key: json.loads(value) for key, value in described.items()}
        self.kind, self.bounds, self.score_thr = type(predictor.model).__name__, BOUNDS[precision], 0.0
        self.int8, point = precision == "int8", predictor.operating_point
        if self.int8:
            self.score_thr = point.thresholds if point else SCORE
            self.bounds = replace(self.bounds, score=np.min(self.score_thr))

    def want(self, samples: Sequence[Sample], by_results: bool) -> None:
        """Ask the model what it makes of images; `by_results`: objects or classes, where it finds such, not outputs."""
        self.by_results = by_results and self.task.finds
        wanted = [self.task.wanted(sample) for sample in samples]
        if self.by_results:
            wanted = [
                out if isinstance(out, Output) else self.read(out, sample) for out, sample in zip(wanted, samples)
            ]
            wanted = [above(out, self.score_thr) for out in wanted] if self.int8 else wanted
        # Whether it found something to compare at.
        self.wanted, self.compares = wanted, not self.by_results or can_compare(wanted, self.bounds)

    def own(self, outputs: Mapping) -> dict:
        """The outputs of a program that are this model's, by their own names."""
        return {key.removeprefix(self.start): out for key, out in outputs.items() if key.startswith(self.start)}

    def found(self, outputs: Mapping, sample: Sample) -> Output:
        """Outputs of the program for an image, as what was found in it."""
        return self.read(self.own(outputs), sample, self.score_thr)

    def read(self, outputs: Mapping, sample: Sample, score_thr: float | Sequence[float] = 0.0) -> Output:
        """Outputs of the model for an image, as what was found in it."""
        arrays = {name: np.asarray(out[0]) for name, out in outputs.items()}
        of_photo = sample.given.dtype == torch.uint8
        return read(arrays, self.about, sample.image.shape[2:], sample.size, score_thr, of_photo)

    def compare(self, got: Sequence[Mapping], samples: Sequence[Sample], int8_bound: float) -> tuple[bool, str]:
        """Whether outputs of the program are those that are wanted, and how far they are from them; `int8_bound`: see
        `vitdense.mm.cli.export.Wish`."""
        said = f"{self.name}, " if self.name else ""
        if not self.compares:
            return True, f"{said}runs; not compared, for the model finds nothing"
        if self.int8:
            fits, compared = compare_counts(zip(map(self.found, got, samples), self.wanted), int8_bound)
        elif self.by_results:
            fits, compared = compare_results(zip(map(self.found, got, samples), self.wanted), self.bounds)
        else:
            fits, compared = compare_maps([*map(self.own, got)], self.wanted, self.bounds)
        return fits, said + compared
