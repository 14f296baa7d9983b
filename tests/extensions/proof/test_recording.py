"""The samples of blocks in a proof, and its bounds for results in a lower precision."""

import numpy as np
import torch
from torch import nn

from vitdense.extensions.proof.make import SAMPLES, recording, widened
from vitdense.runtime import BOUNDS, Output, compare_results


def test_a_recording_keeps_only_samples():
    model = nn.ModuleDict({"blocks": nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))})
    outs = []
    for block in model["blocks"]:
        block.register_forward_hook(lambda _, __, out: outs.append(out))
    with torch.no_grad(), recording(model) as found:
        model["blocks"](torch.rand(1, 8, 64, 64))
    assert [*found] == [f"blocks.{i}" for i in range(4)]
    for out, (size, at, values) in zip(outs, found.values()):
        assert (size, len(at)) == (out.numel(), SAMPLES)
        assert torch.equal(out.flatten()[at], torch.from_numpy(values))
    kept = sum(part.nbytes for _, *parts in found.values() for part in parts)
    assert 10 * kept < sum(out.nbytes for out in outs)
    before = dict(found)
    model["blocks"](torch.rand(1, 8, 64, 64))
    assert all(found[name] is kept for name, kept in before.items())


def test_bounds_of_lower_precision_follow_from_its_changes():
    def found(difference, lost):
        """Twenty objects, some of them elsewhere."""
        corner = np.arange(20)[:, None] * 100 + np.where(np.arange(20) < lost, 50, 0)[:, None]
        return Output(corner + np.float32([0, 0, 20, 20]), np.full(20, 0.9 - difference), np.zeros(20, int))

    def changed(share):
        return Output(semantic=(np.arange(100)[None] < 100 * share).astype(int))

    base = BOUNDS["float16"]
    assert widened([(found(0, 0), found(0, 0))], base).difference == base.difference
    bounds = widened([(found(0.04, 1), found(0, 0))], base)
    for got, fits in ((found(0.1, 1), True), (found(0.1, 4), True), (found(0.1, 5), False), (found(0.13, 1), False)):
        assert compare_results([(got, found(0, 0))], bounds)[0] == fits
    bounds = widened([(changed(0.04), changed(0))], base)
    assert [compare_results([(changed(x), changed(0))], bounds)[0] for x in (0.11, 0.13)] == [True, False]
