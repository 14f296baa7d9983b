"""What a proof keeps of the blocks of a model."""

import torch
from torch import nn

from vitdense.export.proof import SAMPLES, recording


def test_a_recording_keeps_samples_alone():
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
