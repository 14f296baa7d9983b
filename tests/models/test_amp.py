"""Automatic mixed precision: forward and backward passes near those in float32, and no cast of a map without need."""

import pytest
import torch
import torch.nn.functional as F
from conftest import relative_error
from contract_rows import with_random_norms
from test_contract import BACKBONES, outputs_and_gradients, with_fixed_statistics
from test_counts import MODELS as COUNTED
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.long
MODELS = {**COUNTED, **BACKBONES}  # at their whole depth

# Relative error of maps, and of the gradients of all parameters together. Twice what was measured.
BOUNDS = {torch.bfloat16: (0.03, 0.07), torch.float16: (0.004, 0.02)}
# Times the bound of gradients: they pass a ResNet of 26 layers, whose norms enlarge what each of them rounds.
DEEPER = {"vit, ResNet as stem": 3}
# Casts of maps in a forward pass by CUDA's rules: of the image, and of the result of every norm of a residual stream in
# float32. That is the stream of all plain ViTs, of Swin's first stage, and of all of Swin V2 and NAT, as in the peers.
# (timm's ResNet, whose norms decide on casts, cannot be built without memory.)
# By family; in the adapter also of samples of deformable attention in float32, and of its own stream.
CASTS = {"swin": 7, "swin_v2": 40, "mvit": 1, "vit": 9, "resnet": 1, "vit_adapter": 71}
CASTS |= {"nat": 24, "swin_mixer": 7, "mixer": 1, "sasa resnet": 1}
OTHERS = {  # of single models
    "swin, Performer": 39,  # features in float32
    "mvit v1": 4,
    "mvit v1, convolutions": 4,
    "vit, distilled, parallel, hMLP, LayerScale": 17,
    "vit, hMLP with LN, constant drop path": 14,
    "vit, 4 parallel branches": 33,
    "vit, talking heads and class attention": 17,
    "vit, ResNet as stem": None,  # which is timm's
    "mixer, ResMLP": 10,
}
COUNTS = {name: OTHERS.get(name, CASTS.get(name.partition(",")[0])) for name in MODELS}
SMALLEST_MAP = 32 * 40 * 128  # elements of the last map of the models; no weight has as many


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_forward_and_backward_are_near_float32(name, dtype):
    model = with_fixed_statistics(with_random_norms(MODELS[name]()))
    x = torch.randn(2, 3, 72, 104)
    outs, grads = outputs_and_gradients(model, model, x)
    with torch.autocast("cpu", dtype):
        half_outs, half_grads = outputs_and_gradients(model, model, x)
    assert max(relative_error(a.float(), b) for a, b in zip(half_outs, outs)) < BOUNDS[dtype][0]
    assert relative_error(half_grads, grads) < BOUNDS[dtype][1] * DEEPER.get(name, 1)


class MapCasts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        is_cast = func is torch.ops.aten._to_copy.default and args[0].is_floating_point() and args[0].dtype != out.dtype
        if is_cast and out.numel() >= SMALLEST_MAP:
            self.seen.append((tuple(out.shape), args[0].dtype, out.dtype))
        return out


@pytest.fixture
def cuda_autocast():
    """Autocast of a GPU, on tensors without memory: `torch.autocast` would switch itself off without one."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("name", [name for name, number in COUNTS.items() if number is not None])
def test_casts_of_maps(name, cuda_autocast, monkeypatch):
    def fused(q, k, v, attn_mask=None, **options):  # one kernel on a GPU, which takes half precision
        return F.pad(q[..., :1], (0, v.shape[-1] - 1)).to(torch.bfloat16)

    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    with FakeTensorMode(), torch.device("cuda"):
        model, image = MODELS[name]().eval(), torch.empty(1, 3, 1024, 1280)
        with torch.no_grad(), MapCasts() as casts:
            model(image)
    assert len(casts.seen) == COUNTS[name], casts.seen
