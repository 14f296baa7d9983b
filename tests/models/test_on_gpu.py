"""All backbones on a GPU: the maps and gradients of a CPU, no waiting, a graph. ``make test WHAT=gpus``."""

import copy

import pytest
import torch
from conftest import relative_error
from test_contract import BACKBONES, every, outputs_and_gradients, with_fixed_statistics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZES = ((97, 130), (72, 104))


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def sync_debug_mode():
    mode = torch.cuda.get_sync_debug_mode()
    yield
    torch.cuda.set_sync_debug_mode(mode)


@every
def test_maps_and_gradients_equal_a_cpu(make):
    model = with_fixed_statistics(make())
    on_gpu = copy.deepcopy(model).cuda()
    for size in SIZES:
        x = torch.randn(2, 3, *size)
        outs, gradients = outputs_and_gradients(model, model, x)
        outs_gpu, gradients_gpu = outputs_and_gradients(on_gpu, on_gpu, x.cuda())
        for got, want in zip(outs_gpu, outs, strict=True):
            assert relative_error(got.cpu(), want) < 1e-4
        assert relative_error(gradients_gpu.cpu(), gradients) < 1e-3


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_the_maps(make, dtype):
    model = make().cuda().eval()
    x = torch.randn(2, 3, *SIZES[0], device="cuda")
    with torch.no_grad():
        want = model(x)
        with torch.autocast("cuda", dtype):
            got = model(x)
    for a, b in zip(got, want, strict=True):
        assert relative_error(a.float(), b) < (0.08 if dtype == torch.bfloat16 else 0.02)


@every
@pytest.mark.usefixtures("sync_debug_mode")
def test_no_pass_waits_for_the_gpu(make):
    """Also the first one of a size, which makes what depends on it."""
    model = make().cuda().train()
    images = [torch.randn(2, 3, *size, device="cuda") for size in SIZES]
    torch.cuda.set_sync_debug_mode("error")  # of whatever makes the host wait
    for x in images:
        with torch.autocast("cuda", torch.bfloat16):
            loss = sum(out.float().square().mean() for out in model(x))
        loss.backward()


@every
def test_a_graph_of_kernels_replays_a_pass(make):
    model = make().cuda().eval()
    x = torch.randn(1, 3, *SIZES[1], device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        want = model(x)
    for a, b in zip(outs, want, strict=True):
        assert relative_error(a, b) < 1e-5


@pytest.mark.parametrize("name", ["swin", "mvit", "vit"])
def test_compiled_for_a_gpu(name):
    model = BACKBONES[name]().cuda().eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for size in SIZES:
        x = torch.randn(2, 3, *size, device="cuda")
        with torch.no_grad():
            for got, want in zip(compiled(x), model(x), strict=True):
                assert relative_error(got, want) < 1e-4
