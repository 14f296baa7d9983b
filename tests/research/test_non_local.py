"""Non-local blocks and SAGAN's attention against mmcv, definitions in float64, and what they promise at the start."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import relative_error
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitdense.flops import macs, num_params
from vitdense.research.non_local.attention import NonLocal, SAGANAttention

KINDS = {  # one of every form
    "nonlocal": NonLocal,
    "nonlocal, paper": partial(NonLocal, pool="after", scale=1.0),
    "nonlocal, authors' code": partial(NonLocal, pool="before"),
    "sagan, authors' code": SAGANAttention,
    "sagan, paper": partial(SAGANAttention, value_reduction=8, pool=None),
}
every = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def trained(block):
    """No longer the identity: norm and gamma 1, running statistics and weights that show in the result."""
    for name, parameter in block.named_parameters():
        nn.init.normal_(parameter, std=0.1) if "norm" not in name else nn.init.ones_(parameter)
    if isinstance(block.norm, nn.BatchNorm2d):
        nn.init.normal_(block.norm.running_mean)
        nn.init.uniform_(block.norm.running_var, 0.5, 2)
    return block


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


@every
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
def test_a_new_block_is_the_identity(make, layout):
    block, x = make(32), layout(torch.randn(2, 32, 7, 10))
    assert torch.equal(block.train()(x), x)
    assert torch.equal(block.eval()(x), x)
    assert not torch.equal(trained(block)(x), x)


DEFINITIONS = {  # of 16 channels: pooling, scale, channels of keys and of values
    "nonlocal": (None, 8**-0.5, 8, 8),
    "nonlocal, paper": ("after", 1, 8, 8),
    "nonlocal, authors' code": ("before", 8**-0.5, 8, 8),
    "sagan, authors' code": ("after", 1, 2, 8),
    "sagan, paper": (None, 1, 2, 2),
}


@pytest.mark.parametrize("name", KINDS)
def test_equals_its_definition_in_float64(name):
    block, (pooling, scale, keys, values) = trained(KINDS[name](16)).double().eval(), DEFINITIONS[name]
    assert (block.theta.out_channels, block.phi.out_channels, block.g.out_channels) == (keys, keys, values)
    for size in ((7, 10), (1, 5), (4, 1), (1, 1)):
        x = torch.randn(2, 16, *size, dtype=torch.float64)
        pool = [min(side, 2) for side in size]
        inner = F.max_pool2d(x, pool) if pooling == "before" else x
        q, k, v = block.theta(x), block.phi(inner), block.g(inner)
        if pooling == "after":
            k, v = F.max_pool2d(k, pool), F.max_pool2d(v, pool)
        weights = torch.einsum("bchw,bcyx->bhwyx", q, k).mul(scale).flatten(3).softmax(-1).view(2, *size, *k.shape[2:])
        y = block.out(torch.einsum("bhwyx,bcyx->bchw", weights, v))
        assert relative_error(block(x).detach(), x + block.norm(y).detach()) < 1e-12, size


@pytest.mark.parametrize("use_scale", [True, False])
@pytest.mark.parametrize("sub_sample", [True, False])
@pytest.mark.parametrize("size", [(7, 10), (15, 9)])
def test_features_and_gradients_equal_mmcvs_block(sub_sample, use_scale, size):
    from mmcv.cnn.bricks.non_local import NonLocal2d

    theirs = NonLocal2d(16, sub_sample=sub_sample, use_scale=use_scale, norm_cfg={"type": "BN"}).eval()
    ours = trained(NonLocal(16, pool="after" if sub_sample else None, scale=None if use_scale else 1.0)).eval()

    nn.init.zeros_(ours.out.bias)  # mmcv has none before a norm

    def name(key):  # theta.conv.weight, phi.0.conv.weight, conv_out.bn.running_mean
        part = {"conv_out": "norm" if ".bn." in key else "out"}.get(key.split(".")[0], key.split(".")[0])
        return f"{part}.{key.split('.')[-1]}"

    theirs.load_state_dict({key: ours.state_dict()[name(key)] for key in theirs.state_dict()})
    x = torch.randn(2, 16, *size)
    for block in (theirs, ours):
        block(x).square().mean().backward()
    with torch.no_grad():
        assert relative_error(ours(x), theirs(x)) < 1e-6
    grads = {key: parameter.grad for key, parameter in ours.named_parameters()}
    for key, parameter in theirs.named_parameters():
        # Softmax does not change with the keys' bias: its gradient is rounding.
        assert name(key) == "phi.bias" or relative_error(grads[name(key)], parameter.grad) < 1e-5, key


@pytest.mark.parametrize("size", [(7, 10), (1, 5), (4, 1), (1, 1)])
@every
def test_traced_form_is_the_same(make, size, monkeypatch):
    block, x = trained(make(16)).eval(), torch.randn(2, 16, *size)
    with torch.no_grad():
        want = block(x)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert relative_error(block(x), want) < 1e-6


class LargestTensor(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return out


@every
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
def test_the_matrix_of_all_pairs_is_never_made(make, layout):
    block, x = trained(make(16)), layout(torch.randn(1, 16, 24, 25))
    with LargestTensor() as largest, sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # the other one fails
        block(x).sum().backward()
    assert largest.elements <= 4 * 16 * 600 < 600 * 150  # even with pooled keys


@every
def test_at_the_first_step_only_the_factor_learns(make):
    """Zero norm weights and gammas hide the convolutions; after a step these learn too."""
    block, x = make(16), torch.randn(2, 16, 6, 7)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        (block(x) - torch.ones_like(x)).square().mean().backward()
        learns = {name.split(".")[0] for name, p in block.named_parameters() if p.grad.any()}
        assert learns == ({"norm"} if step == 0 else {"theta", "phi", "g", "out", "norm"})
        optimizer.step()


def test_published_parameters_at_1024_channels():
    with torch.device("meta"):
        block, sagan = NonLocal(1024), SAGANAttention(1024)
    assert num_params(block) == 2_099_712 + num_params(block.norm)
    assert num_params(block.norm) == 2_048
    assert num_params(sagan) == 1_310_721


@pytest.mark.parametrize(
    ("dim", "size", "pool", "gmacs"),
    [(1024, (50, 84), None, 26.87), (1024, (50, 84), "after", 13.33), (512, (100, 168), None, 153.3)],
)
def test_multiply_adds_of_an_image_of_800x1344(dim, size, pool, gmacs):
    """Four projections of 8.81 G at either stride, and pairs of 18.06 G (4.52 G pooled) and 144.5 G."""
    with torch.device("meta"):
        block, x = NonLocal(dim, pool=pool).eval(), torch.empty(1, dim, *size)
    assert macs(lambda: block(x))[1] / 1e9 == pytest.approx(gmacs, abs=0.03)


def resnet_of_mm(scope, kind, plugin):
    registry = pytest.importorskip(f"{scope}.registry")
    options = {"type": kind, "depth": 50, "base_channels": 8, "stem_channels": 8, "norm_eval": False}
    if plugin:
        places = {"stages": (False, False, True, False), "position": "after_conv3"}
        options["plugins"] = [{"cfg": {"type": f"vitdense.{plugin}"}, **places}]
    if kind == "ResNeXt":
        options |= {"groups": 2, "base_width": 32}
    model = registry.MODELS.build(options)
    model.init_weights()
    model.eval()  # returns None
    return model


@pytest.mark.parametrize("plugin", ["NonLocal", "SAGANAttention"])
@pytest.mark.parametrize(
    ("scope", "kind"), [("mmdet", "ResNet"), ("mmdet", "ResNeXt"), ("mmseg", "ResNet"), ("mmseg", "ResNetV1c")]
)
def test_plugin_of_mms_resnets_is_the_identity_after_their_initialisation(scope, kind, plugin):
    """They initialise all convolutions, and all norms with 1."""
    model = resnet_of_mm(scope, kind, plugin)
    blocks = [m for m in model.modules() if isinstance(m, NonLocal)]
    assert len(blocks) == 6
    plain = resnet_of_mm(scope, kind, None)
    for name, parameter in model.named_parameters():
        if name.endswith("bn3.weight"):  # the norm before the plugin: mm's zero would hide it
            nn.init.ones_(parameter)
    state = {key: value for key, value in model.state_dict().items() if f".{blocks[0]._abbr_}." not in key}
    plain.load_state_dict(state)
    x = torch.randn(1, 3, 61, 45)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(x), plain(x), strict=True))
    for block in blocks:
        assert block.theta.weight.std().item() == pytest.approx(0.01, rel=0.3)
