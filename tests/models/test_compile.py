"""`torch.compile(fullgraph=True, dynamic=True)`: one program for ordinary sizes, equal to the model, gradients too."""

import shutil
from dataclasses import replace

import pytest
import torch
from conftest import relative_error
from contract_rows import with_random_norms
from test_contract import BACKBONES, WITH_ADAPTERS, every_but_slow, outputs_and_gradients, with_fixed_statistics
from torch._dynamo import config as dynamo
from torch._dynamo.backends.debugging import aot_eager

from vitdense.export.program import largest_error

# Batch, height, width. One image is another program: torch tells size 1 from others, as it does for maps of one window.
SIZES = [(2, 160, 192), (2, 150, 210), (2, 167, 129), (2, 192, 256), (1, 129, 192)]
MOST_PROGRAMS = 2


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    # Otherwise torch compiles every model with a LayerNorm twice: once with the epsilon as an input.
    with dynamo.patch(specialize_float=True):
        yield
    torch._dynamo.reset()


class Programs:
    def __init__(self):
        self.count = 0

    def __call__(self, graph, example, **options):
        self.count += 1
        return aot_eager(graph, example, **options)


@every_but_slow("vit")
@pytest.mark.parametrize("sizes", [SIZES[:4], pytest.param(SIZES[4:], marks=pytest.mark.slow)], ids=["some", "one"])
@pytest.mark.long
def test_forward_and_backward(make, sizes):
    model, programs = with_fixed_statistics(with_random_norms(make.shallow()())), Programs()
    compiled = torch.compile(model, backend=programs, fullgraph=True, dynamic=True)
    for batch, *size in sizes:
        image = torch.randn(batch, 3, *size)
        outs, grads = outputs_and_gradients(model, model, image)
        got_outs, got_grads = outputs_and_gradients(compiled, model, image)
        assert largest_error(got_outs, outs) < 1e-5, size
        assert relative_error(got_grads, grads) < 1e-4, size
    assert programs.count == 1


@pytest.mark.slow
def test_forward_and_backward_of_low_rank_updates():
    row = BACKBONES["vit"]
    test_forward_and_backward(replace(row, options={**row.options, "finetune": "lora"}), SIZES[:4])


@every_but_slow(models=WITH_ADAPTERS)
@pytest.mark.long
def test_forward(make):
    model, programs = make.shallow()().eval(), Programs()
    compiled = torch.compile(model, backend=programs, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, *size in SIZES:
            image = torch.randn(batch, 3, *size)
            assert largest_error(compiled(image), model(image)) < 1e-5, size
    assert programs.count <= MOST_PROGRAMS


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.parametrize("dynamic", [True, False])
def test_inductor(dynamic):
    model = BACKBONES["swin"]().eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for batch, *size in SIZES[: 3 if dynamic else 1]:
            image = torch.randn(batch, 3, *size)
            assert largest_error(compiled(image), model(image)) < 1e-4, size
