"""What a model sees: attention, colours of features, receptive fields and biases."""

import pytest
import torch
from conftest import HAS_RESEARCH, needs_research
from torch import nn

import vitdense
from vitdense.extensions.show import maps as show

SIZES = {"embed_dims": 8, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
VIT = {"embed_dims": 32, "depth": 2, "num_heads": 2}
NON_LOCAL = {"kind": "nonlocal", "after": ((2, 1),)}
MODELS = {
    "swin": lambda: vitdense.Swin(SIZES, window_size=4),
    "swin, sliding": lambda: vitdense.SlidingSwin(SIZES, window_size=5),
    "swin, positions alone": lambda: vitdense.PositionSwin(SIZES, window_size=4),
    "swin, performer": lambda: vitdense.PerformerSwin(SIZES, window_size=4),
    "swin_v2": lambda: vitdense.SwinV2(SIZES, window_size=4),
    "nat": lambda: vitdense.NAT("mini"),
    "vit": lambda: vitdense.ViT("deit_tiny_distilled", out_indices=(1,)),
    "vit, windows": lambda: vitdense.ViT("deit_tiny", window_size=2, global_indices=(1,), out_indices=(1,)),
    "vit, registers and rotary": lambda: vitdense.ViT({**VIT, "registers": 3, "rope": "dinov3", "qkv_bias": "no_key"}),
    "vit, windows and rotary": lambda: vitdense.ViT({**VIT, "rope": "eva02", "ffn": "swiglu"}, window_size=3),
    "cait": lambda: vitdense.CaiT("cait_xxs24", out_indices=(1,)),
    "mvit": lambda: vitdense.MViT("v2_tiny", window="global"),
    "resnet, non-local": lambda: vitdense.NonLocalResNet("resnet18", attention=NON_LOCAL),
    "resnet, sasa": lambda: vitdense.SASA("sasa26"),
}
OF_RESEARCH = ("nat", "swin, sliding", "swin, positions alone", "swin, performer", "cait")
OF_RESEARCH += ("resnet, non-local", "resnet, sasa")
MODELS = {name: make for name, make in MODELS.items() if HAS_RESEARCH or name not in OF_RESEARCH}


@pytest.mark.parametrize("name", MODELS)
def test_weights_times_values_sum_to_the_output_of_the_layer(name):
    """And weights of a head add up to 1, except where heads are mixed after the softmax."""
    model, image = MODELS[name]().eval(), torch.randn(1, 3, 64, 128)
    layers = show.attention_layers(model)
    for layer in list(layers.values())[:2]:
        args = show._arguments(model, image, layer)
        found = show.attention(model, image, layer, (0.3, 0.7))
        values, sums = (show._heads_on_map(x.detach(), layer, args) for x in show._values_and_sums(layer, args))
        want = sums[0][found.query]  # [heads, d]
        if getattr(layer, "residual", False):  # the pooled query is added
            queries = layer.pool(*layer.qkv(args[0]).chunk(3, -1))[0]
            want = want - show._heads_on_map(queries.detach(), layer, args)[0][found.query]
        got = torch.einsum("hyx,yxhd->hd", found.weights, values[0])
        got = got + torch.einsum("he,ehd->hd", found.tokens, values[1])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        if name != "cait":
            torch.testing.assert_close(found.weights.sum((1, 2)) + found.tokens.sum(1), torch.ones(len(want)))


@pytest.mark.parametrize("family", ["swin", "swin_v2"])
def test_attention_of_swin_stays_within_its_window(family):
    """Maps of 16 x 32 positions; the second block shifts its windows of 4 by 2."""
    model, image = MODELS[family]().eval(), torch.randn(1, 3, 64, 128)
    plain, shifted = list(show.attention_layers(model).values())[:2]
    for layer, rows, columns in ((plain, (4, 8), (20, 24)), (shifted, (6, 10), (22, 26))):
        found = show.attention(model, image, layer, (7 / 16, 23 / 32))
        assert found.query == (7, 23)
        want = torch.zeros(16, 32, dtype=torch.bool)
        want[slice(*rows), slice(*columns)] = True
        assert torch.equal(found.weights[0] > 0, want)


@needs_research
def test_map_smaller_than_the_kernel():
    """A kernel of 7 on a map of 2 x 4, and a query at the end of the image."""
    model = MODELS["nat"]().eval()
    layer = show.attention_layers(model)["stages.3.blocks.0.attn"]
    found = show.attention(model, torch.randn(1, 3, 64, 128), layer, (1, 1))
    assert found.query == (1, 3)
    assert found.weights.shape[1:] == (2, 4)


def test_padding_has_its_share():
    """A window of 4 over a map of 3 x 3: seven padded positions have the bias as key."""
    model = vitdense.Swin(SIZES, window_size=4).eval()
    layer = show.attention_layers(model)["stages.0.blocks.0.attn"]
    found = show.attention(model, torch.randn(1, 3, 12, 12), layer, (0, 0))
    assert found.weights.shape == (1, 3, 3)
    assert 0.2 < found.weights.sum() < 0.9


def test_attention_leaves_no_trace():
    model, image = MODELS["swin"]().eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = model(image)
    show.attention(model, image, show.attention_layers(model)["stages.1.blocks.1.attn"], (0.5, 0.5))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(before, model(image), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_are_computed_inside_of_contexts_without_them(context):
    model = MODELS["swin"]().eval()
    layer = show.attention_layers(model)["stages.1.blocks.1.attn"]
    image = torch.randn(1, 3, 64, 64)
    want = show.attention(model, image, layer, (0.5, 0.5)), show.receptive_field(lambda x: model(x)[0], image)
    with context():
        image = image.clone()
        got = show.attention(model, image, layer, (0.5, 0.5)), show.receptive_field(lambda x: model(x)[0], image)
    torch.testing.assert_close(got[0].weights, want[0].weights)
    torch.testing.assert_close(got[1], want[1])


def test_wrong_layers_are_named():
    model, image = vitdense.Swin(SIZES, window_size=4, out_indices=(1,)).eval(), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match="got Mlp, expected a layer of attention_layers"):
        show.attention(model, image, model.stages[0].blocks[0].mlp, (0, 0))
    with pytest.raises(ValueError, match="does not run"):
        show.attention(model, image, model.stages[2].blocks[0].attn, (0, 0))
    with pytest.raises(ValueError, match="train mode"):
        show.attention(model.train(), image, model.stages[0].blocks[0].attn, (0, 0))


def test_features_of_parts():
    model, image = MODELS["swin"]().eval(), torch.randn(1, 3, 64, 96)
    parts = {"all": model, "stage": model.stages[1], "block": model.stages[1].blocks[0]}
    found = show.features(model, image, parts)
    assert [tuple(x.shape) for x in found["all"]] == [(8, 16, 24), (16, 8, 12), (32, 4, 6), (64, 2, 3)]
    assert tuple(found["block"][0].shape) == (16, 8, 12)
    assert torch.equal(model.norm1(found["stage"][0].movedim(0, -1)).movedim(-1, 0), found["all"][1])
    vit = MODELS["vit"]().eval()
    assert tuple(show.features(vit, image, {"block": vit.blocks[0]})["block"][0].shape) == (192, 4, 6)
    with pytest.raises(ValueError, match="vit, which the model does not run"):
        show.features(model, image, {"vit": vit})
    with pytest.raises(ValueError, match=r"tokens \(ExtraTokens\), whose output is no map"):
        show.features(vit, image, {"tokens": vit.tokens})


def test_principal_colours_have_a_fixed_order_and_sign():
    """Three independent patterns of decreasing strength along known directions; the larger component is positive."""
    torch.manual_seed(1)
    patterns = torch.randn(3, 20, 30)
    directions = torch.linalg.qr(torch.randn(8, 3))[0]  # [8, 3]
    strengths = torch.tensor([9.0, 3.0, 1.0])
    maps = torch.einsum("cn,n,nhw->chw", directions, strengths, patterns)
    colours = show.principal_colours(maps)
    assert colours.shape == (20, 30, 3)
    assert (colours.amin((0, 1)) == 0).all()
    assert (colours.amax((0, 1)) == 1).all()
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()[0]
    for i in range(3):
        pair = torch.stack([colours[..., i].flatten(), signs[i] * patterns[i].flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.9
    torch.testing.assert_close(show.principal_colours(-maps), show.principal_colours(-maps.clone()))


def test_colours_of_a_map_with_one_outlier():
    maps = torch.randn(3, 20, 30)
    maps[:, 0, 0] = 1000
    assert show.principal_colours(maps)[..., 0].std() > 0.1


def test_receptive_field_of_convolutions():
    """Two 3x3 means reach 5x5 pixels, with the weights of their convolution."""
    layers = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(2)))
    for layer in layers:
        nn.init.ones_(layer.weight)
    field = show.receptive_field(lambda x: layers(x.sum(1, keepdim=True)), torch.rand(2, 3, 9, 11))
    triangle = torch.tensor([1.0, 2, 3, 2, 1])
    want = torch.zeros(9, 11)
    want[2:7, 3:8] = torch.outer(triangle, triangle)
    torch.testing.assert_close(field, want / want.sum())


@pytest.mark.parametrize("family", [name for name in ("swin", "swin_v2", "nat") if name in MODELS])
def test_bias_of_a_key_is_where_the_key_is(family):
    """Around a query: the bias of the key a row down and a column to the right is there."""
    model = MODELS[family]()
    name, layer = "stages.1.blocks.0.attn.bias", model.stages[1].blocks[0].attn.bias
    if family != "swin_v2":
        nn.init.normal_(layer.relative_position_bias_table)
    bias = show.position_biases(model)[name]
    h, w = layer.window
    assert bias.shape == (layer.of_offsets().shape[0], 2 * h - 1, 2 * w - 1)
    query, key = 0, w + 1
    torch.testing.assert_close(bias[:, h - 1 + 1, w - 1 + 1], layer()[:, query, key].detach())
