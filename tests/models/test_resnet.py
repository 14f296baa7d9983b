"""ResNet with attention between its blocks: torchvision's features and totals, and a start that changes nothing."""

import pytest
import torch
from conftest import relative_error
from mmengine.logging import MMLogger
from torch import nn
from torchvision import models as torchvision_models
from torchvision.models import resnet

from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.hub import create
from vitdense.inspect.flops import macs, num_params
from vitdense.layers import local
from vitdense.models.resnet.model import ATTENTION, LocalConv, ResNet, plan
from vitdense.models.resnet.sizes import RESNET, ResNetArch

NANO = {"embed_dims": 16, "depths": (1, 2, 3, 1)}
ONE = {"kind": "nonlocal", "after": ((2, 1),)}
kinds = pytest.mark.parametrize("kind", ATTENTION)


def images(*size):
    return torch.randn(2, 3, *size)


def state_with_statistics(model):
    """The state dict of a model after its norms were made unlike new ones."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 0.5, 0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.state_dict()


def attention_of(model):
    return [layer for stage in model.stage_modules() for layer in stage.attn.values()]


@pytest.mark.parametrize("bottleneck", [True, False])
def test_maps_equal_torchvisions_to_the_bit(bottleneck):
    """In the same memory format."""
    kind, depths = resnet.Bottleneck if bottleneck else resnet.BasicBlock, (1, 2, 1, 1)
    theirs = resnet.ResNet(kind, depths, num_classes=10).eval()
    ours = ResNet({"embed_dims": 64, "depths": depths, "bottleneck": bottleneck}).eval()
    assert load_pretrained(ours, state_with_statistics(theirs)).share == 1
    x = images(97, 131).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        maps, want = ours(x), theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        for got, stage in zip(maps, (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True):
            want = stage(want)
            assert torch.equal(got, want)


@pytest.mark.parametrize("name", [name for name in RESNET if name.startswith("resnet")])
def test_totals_are_those_that_torchvision_publishes(name):
    published = torchvision_models.get_model_weights(name).IMAGENET1K_V1.meta
    with torch.device("meta"), torch.no_grad():
        model, classifier = ResNet(name).eval(), nn.Linear(RESNET[name].dims[-1], 1000)
        gmacs = (macs(lambda: model(torch.empty(1, 3, 224, 224)))[1] + classifier.weight.numel()) / 1e9
    assert num_params(model) + num_params(classifier) == published["num_params"]
    assert gmacs == pytest.approx(published["_ops"], abs=1e-3)


def test_plan_of_resnet50():
    specs = plan(RESNET["resnet50"], drop_path_rate=0.3)
    assert [spec.stage for spec in specs] == [0] * 3 + [1] * 4 + [2] * 6 + [3] * 3
    assert [spec.out_channels for spec in specs] == [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
    assert [(spec.in_channels, spec.width, spec.stride) for spec in specs[2:5]] == [
        (256, 64, 1), (256, 128, 2), (512, 128, 1)
    ]  # fmt: skip
    assert specs[0].in_channels == 64
    assert [specs[i].drop_path for i in (0, 5, 15)] == pytest.approx([0, 0.1, 0.3])


def test_initialisation():
    """He's for convolutions, 0 for the norm at the end of a branch, and that of transformers for local attention."""
    model = ResNet({"embed_dims": 64, "depths": (1, 1), "local_stages": (1,)}, out_indices=(0, 1))
    block = model.layer1.blocks[0]
    assert model.conv1.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    assert block.conv2.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert not block.bn3.weight.any()
    assert model.layer2.blocks[0].conv2.attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)


# Attention


@kinds
def test_pretrained_features_do_not_change_until_attention_is_trained(kind):
    theirs = torchvision_models.resnet18().eval()
    plain = ResNet("resnet18").eval()
    ours = ResNet("resnet18", attention={"kind": kind, "after": ((1, 1), (2, 0))}).eval()
    load_pretrained(plain, state_with_statistics(theirs))
    report = load_pretrained(ours, theirs.state_dict())
    names = [key for key in ours.state_dict() if key.startswith(("layer2.attn.1.", "layer3.attn.0."))]
    assert report.kept_at_init == names
    assert report.ignored == ["head.weight", "head.bias"]
    assert ours.state_dict().keys() - set(names) == plain.state_dict().keys()
    assert plain.state_dict().keys() == theirs.state_dict().keys() - {"fc.weight", "fc.bias"}
    x = images(61, 45)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(ours(x), plain(x), strict=True))
        for layer in attention_of(ours):
            nn.init.ones_(layer.norm.weight)
        changed = [not torch.equal(a, b) for a, b in zip(ours(x), plain(x), strict=True)]
    assert changed == [False, True, True, True]


def test_attention_follows_its_block():
    """COCO's place in the paper: right before the last block of the stage of stride 16."""
    order = []
    model = ResNet(NANO, attention=ONE).eval()
    for name in ("layer3.1", "layer3.attn.1", "layer3.2"):
        model.get_submodule(name).register_forward_hook(lambda _, args, out, name=name: order.append((name, out.shape)))
    model(images(64, 96))
    assert [name for name, _ in order] == ["layer3.1", "layer3.attn.1", "layer3.2"]
    assert {shape[1:] for _, shape in order} == {(256, 4, 6)}


def test_a_checkpoint_has_all_attention_or_none():
    model, plain = ResNet(NANO, attention={**ONE, "after": [[1, 0], [2, 1]]}), ResNet(NANO)
    state = state_with_statistics(model)
    assert load_pretrained(ResNet(NANO, attention={**ONE, "after": ((1, 0), (2, 1))}), state).share == 1
    with pytest.raises(CheckpointMismatchError, match=r"layer2\.attn\.0"):
        load_pretrained(plain, state)
    with pytest.raises(CheckpointMismatchError, match=r"layer2\.attn\.0\.theta"):
        load_pretrained(model, {key: value for key, value in state.items() if "layer2.attn" not in key})
    with pytest.raises(CheckpointMismatchError, match="no names for"):
        convert(state, "torchvision")


def test_files_without_the_counters_of_norms_load():
    state = state_with_statistics(ResNet(NANO))
    report = load_pretrained(ResNet(NANO), {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")})
    assert {key.rsplit(".")[-1] for key in report.kept_at_init} == {"num_batches_tracked"}


@kinds
def test_attention_is_the_identity_after_init_cfg_drew_all_convolutions(kind):
    import vitdense.mm.registry  # noqa: F401 brings mmengine's initialisers

    init_cfg = [{"type": "Kaiming", "layer": "Conv2d"}, {"type": "Constant", "val": 1, "layer": "BatchNorm2d"}]
    model = ResNet(NANO, attention={"kind": kind, "after": ((2, 1),)}, init_cfg=init_cfg)
    before = model.conv1.weight.clone()
    MMLogger.get_current_instance().setLevel("ERROR")
    model.init_weights()
    assert not torch.equal(model.conv1.weight, before)
    (layer,) = attention_of(model.eval())
    x = torch.randn(1, 256, 4, 6)
    assert torch.equal(layer(x), x)
    assert layer.theta.weight.std().item() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("norm_eval", [True, False])
def test_norms_keep_their_statistics_where_they_should(norm_eval):
    model = ResNet(NANO, attention={**ONE, "after": ((0, 0), (2, 1))}, norm_eval=norm_eval, frozen_stages=1).train()
    training = {name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d) and m.training}
    assert ("layer3.attn.1.norm" in training) is not norm_eval
    assert any(name.startswith("layer2.") for name in training) is not norm_eval
    assert not any(name.startswith(("bn1", "layer1.")) for name in training)  # frozen, its attention too
    assert not any(p.requires_grad for p in model.layer1.attn.parameters())


def test_every_parameter_is_in_one_layer_and_attention_in_that_of_its_block():
    model = ResNet(NANO, attention=ONE, out_indices=(0, 2))
    layers = [{id(p) for module in modules for p in module.parameters()} for modules in model.layers()]
    assert len(layers) == 1 + 1 + 2 + 3
    used = [p for name, p in model.named_parameters() if not name.startswith("layer4.")]
    assert sum(map(len, layers)) == len(used) == len(set().union(*layers))
    assert {id(p) for p in model.layer3.attn.parameters()} < layers[1 + 1 + 2 + 1]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"attention": {"kind": "non_local", "after": ((2, 0),)}}, ValueError, "attention.kind"),
        ({"attention": {"after": ((2, 0),)}}, ValueError, "attention.kind"),
        ({"attention": {}}, ValueError, "attention.kind"),
        ({"attention": {"kind": "nonlocal"}}, ValueError, "attention.after"),
        ({"attention": {"kind": "nonlocal", "after": ((2, 3),)}}, ValueError, "attention.after"),
        ({"attention": {"kind": "nonlocal", "after": ((2, 1), [2, 1])}}, ValueError, "attention.after"),
        ({"attention": {"kind": "nonlocal", "after": (2, 1)}}, ValueError, "attention.after"),
        ({"attention": {**ONE, "pool": "max"}}, ValueError, "pool"),
        ({"attention": {**ONE, "heads": 8}}, TypeError, "heads"),
        ({"finetune": "attention"}, ValueError, "finetune"),
        ({"arch": "resnet51"}, ValueError, "resnet50"),
        ({"arch": {"embed_dims": 16, "depths": (0, 1)}}, ValueError, "depths"),
    ],
)
def test_refused(options, error, named):
    with pytest.raises(error, match=named):
        ResNet(**{"arch": NANO, **options})


def test_the_callers_dict_stays():
    attention = {**ONE, "pool": "after"}
    ResNet(NANO, attention=attention)
    assert attention == {**ONE, "pool": "after"}


def test_created_by_name():
    with torch.device("meta"):
        model = create("resnet50", attention={"kind": "nonlocal", "after": ((2, 4),)}, out_indices=(1, 3))
    assert model.cfg.weights == "torchvision://resnet50.IMAGENET1K_V1"
    assert model.out_channels == (512, 2048)
    assert model.out_strides == (8, 32)
    assert num_params(model) == 23_508_032 + 2_099_712 + 2_048
    assert ResNetArch(64, (3, 4, 6, 3)) == model.arch


# Local self-attention in the place of 3x3 convolutions

CONV50 = {"embed_dims": 64, "depths": (3, 4, 6, 3)}
SASA_TOTALS = {  # FLOPs in G, two per multiply-add, and parameters in M, as counted; and as Table 1 has them
    "resnet, 26": ({**CONV50, "depths": (1, 2, 4, 1)}, 4.68, 13.70, (4.7, 13.7)),
    "resnet, 38": ({**CONV50, "depths": (2, 3, 5, 2)}, 6.43, 19.63, (6.5, 19.6)),
    "26": ("sasa26", 4.48, 10.34, (4.5, 10.3)),
    "38": ("sasa38", 5.73, 14.19, (5.7, 14.1)),
    "50": ("sasa50", 6.97, 18.04, (7.0, 18.0)),
    **{  # Table 3
        f"attention in stages {stages}": ({**CONV50, "local_stages": stages}, flops, params, None)
        for stages, flops, params in (
            ((1, 2, 3), 7.25, 18.11),
            ((2, 3), 7.43, 18.50),
            ((3,), 7.99, 20.85),
            ((0,), 7.89, 25.48),
            ((0, 1), 7.71, 25.10),
            ((0, 1, 2), 7.15, 22.75),
        )
    },
}


def gflops_by_kernel(arch, monkeypatch):
    """FLOPs of a classifier in G, two per multiply-add, by the side of the neighbourhoods, and its parameters in M.

    Attention has three products of the query's channels per neighbour: q k, q r and a v.
    """
    queries = []

    def by_definition(q, *args):
        queries.append(q.numel())
        return q.flatten(-2)  # [B, H, W, C]

    monkeypatch.setattr(local, "attend_local", by_definition)
    with torch.device("meta"), torch.no_grad():
        model, classifier = ResNet(arch).eval(), nn.Linear(2048, 1000)
        dense = macs(lambda: model(torch.empty(1, 3, 224, 224)))[1] + classifier.weight.numel()
    assert len(queries) == sum(model.arch.depths[stage] for stage in model.arch.local_stages)
    flops = {kernel: 2 * (dense + 3 * kernel**2 * sum(queries)) / 1e9 for kernel in (3, 5, 7, 9, 11)}
    return flops, (num_params(model) + num_params(classifier)) / 1e6


@pytest.mark.parametrize(("arch", "gflops", "params_m", "published"), SASA_TOTALS.values(), ids=SASA_TOTALS.keys())
def test_totals_of_stand_alone_self_attention(arch, gflops, params_m, published, monkeypatch):
    flops, params = gflops_by_kernel(arch, monkeypatch)
    assert (flops[7], params) == pytest.approx((gflops, params_m), abs=0.01)
    assert published is None or (flops[7], params) == pytest.approx(published, abs=0.1)


def test_flops_by_the_side_of_the_neighbourhood(monkeypatch):
    """Table 4 of "Stand-alone self-attention", as counted."""
    flops, _ = gflops_by_kernel("sasa50", monkeypatch)
    assert flops == pytest.approx({3: 6.51, 5: 6.69, 7: 6.97, 9: 7.33, 11: 7.79}, abs=0.01)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    ("stride", "size"),
    [(1, (6, 7)), (2, (6, 8)), (2, (7, 9)), (2, (1, 3)), (2, (7, 8)), (2, (6, 9)), (1, (18, 27)), (2, (18, 27))],
)
def test_local_attention_in_place_of_a_convolution_equals_its_definition(stride, size, compiling, monkeypatch):
    """In float64, a loop over the pixels: no scale, positions as keys, all of the map, then the mean of 2x2.

    18 x 27 are several tiles, of which the last ones are padded, and one side alone is padded for the mean.
    """
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    arch = ResNetArch(16, (1,), local_stages=(0,), kernel=5, num_heads=2)
    layer, (h, w) = LocalConv(16, arch, stride).double(), size
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert layer.attn.qkv.bias is None
    x = torch.randn(1, 16, *size, dtype=torch.float64)
    q, k, v = (t.unflatten(1, (2, 8)) for t in torch.einsum("oc,bchw->bohw", layer.attn.qkv.weight, x).chunk(3, 1))
    y, rows, columns = torch.zeros_like(v), layer.attn.rel_pos_h, layer.attn.rel_pos_w
    for i in range(h):
        for j in range(w):
            near = [(a, b) for a in range(max(i - 2, 0), min(i + 3, h)) for b in range(max(j - 2, 0), min(j + 3, w))]
            at = [torch.cat([rows[:, i - a + 2], columns[:, j - b + 2]], -1) for a, b in near]  # [heads, d] each
            keys = torch.stack([k[..., a, b] + r for (a, b), r in zip(near, at)], -1)  # [1, heads, d, n]
            weights = torch.einsum("bhd,bhdn->bhn", q[..., i, j], keys).softmax(-1)
            y[..., i, j] = torch.einsum("bhn,bhdn->bhd", weights, torch.stack([v[..., a, b] for a, b in near], -1))
    y = y.flatten(1, 2)  # [1, C, H, W]
    if stride == 2:
        y = torch.stack([y[..., i : i + 2, :].mean(-2) for i in range(0, h, 2)], -2)
        y = torch.stack([y[..., i : i + 2].mean(-1) for i in range(0, w, 2)], -1)
    assert relative_error(layer(x).detach(), y.detach()) < 1e-12


def test_attention_runs_before_the_stride_is_taken():
    """At the resolution of its input; the shortcut and the other convolutions are those of a ResNet."""
    seen = []
    model = ResNet({**NANO, "local_stages": (1, 3), "num_heads": 4}).eval()
    for module in model.modules():
        if isinstance(module, local.LocalAttention):
            module.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[1:])))
    assert [x.shape[1:] for x in model(images(97, 61))] == [x.shape[1:] for x in ResNet(NANO).eval()(images(97, 61))]
    assert seen == [(25, 16, 32), (13, 8, 32), (7, 4, 128)]  # [H, W, C]
    plain = {key: value.shape for key, value in ResNet(NANO).state_dict().items()}
    ours = {key: value.shape for key, value in model.state_dict().items() if ".attn." not in key}
    missing = {f"layer2.{i}.conv2.weight" for i in (0, 1)} | {"layer4.0.conv2.weight"}
    assert ours == {key: shape for key, shape in plain.items() if key not in missing}


@pytest.mark.parametrize(
    ("sizes", "named"),
    [({"local_stages": (4,)}, "local_stages"), ({"local_stages": (0,), "bottleneck": False}, "bottleneck")],
)
def test_refused_sizes_of_stand_alone_self_attention(sizes, named):
    with pytest.raises(ValueError, match=named):
        ResNet({**NANO, **sizes})
