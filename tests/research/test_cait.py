"""CaiT: talking heads in the blocks, and blocks of class attention after them."""

import math
from functools import partial

import pytest
import timm
import torch
from conftest import classifier_totals, relative_error
from test_vit import by_hand, linear, mlp_by_hand, randomise
from timm.models.cait import Cait

from vitdense import CaiT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.flops import num_params
from vitdense.layers.layout import window_layout
from vitdense.models.vit.model import BlockSpec
from vitdense.research.cait.model import ClassBlock, TalkingHeads
from vitdense.research.cait.sizes import CaiTArch

NANO = {"embed_dims": 32, "depth": 3, "num_heads": 2, "layer_scale": 0.5}
WHOLE = {"out_norm": "final", "output_cls_token": True, "out_indices": (2,)}  # as a classifier's backbone


@pytest.mark.parametrize("window", [None, (2, 3)])
@torch.no_grad()
def test_talking_heads_are_the_definition(window):
    """Logits and weights of a pair are mixed over the heads, each by its matrix and bias, pair by pair."""
    heads, d, size = 3, 4, (2, 3)
    attention = randomise(TalkingHeads(BlockSpec(CaiTArch(heads * d, 1, heads), window))).double()
    x = torch.randn(6, heads * d, dtype=torch.float64)
    q, k, v = linear(attention.qkv, x).view(6, 3, heads, d).unbind(1)
    logits = linear(attention.proj_l, torch.einsum("ihd,jhd->ijh", q, k) / math.sqrt(d))
    weights = linear(attention.proj_w, logits.softmax(1))  # [queries, keys, heads]
    want = torch.einsum("ijh,jhd->ihd", weights, v)
    windows = window_layout(x.view(1, *size, -1), window) if window else None
    torch.testing.assert_close(attention(x[None], size, windows)[0], linear(attention.proj, want.flatten(1)))


@torch.no_grad()
def test_class_attention_is_the_definition():
    """The class token is the only query, a key like the others, and all that changes."""
    heads, d, n = 2, 4, 5
    block = randomise(ClassBlock(heads * d, heads, 2.0, 0.1)).double()
    x = torch.randn(1 + n, heads * d, dtype=torch.float64)
    y = by_hand(block.norm1, x)
    q, k, v = (linear(getattr(block.attn, name), y).view(1 + n, heads, d) for name in "qkv")
    share = (torch.einsum("hd,jhd->jh", q[0], k) / math.sqrt(d)).softmax(0)  # [keys, heads]
    out = torch.einsum("jh,jhd->hd", share, v)
    token = x[0] + block.gamma_1 * linear(block.attn.proj, out.flatten())
    token = token + block.gamma_2 * mlp_by_hand(block.mlp, by_hand(block.norm2, token))
    torch.testing.assert_close(block(x[None])[0, 0], token)


def test_weights_of_class_attention_are_drawn_as_the_authors_do():
    model = CaiT({**NANO, "embed_dims": 512}, **WHOLE)
    assert model.class_blocks.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
    for block in (*model.blocks, *model.class_blocks.blocks):
        assert all((gamma == 0.5).all() for gamma in (block.gamma_1, block.gamma_2))


def timm_cait(**options):
    model = Cait(img_size=64, embed_dim=32, depth=3, num_heads=2, num_classes=10, init_values=0.5, **options)
    return randomise(model).eval()


@torch.no_grad()
def test_logits_equal_timms():
    theirs = timm_cait()
    ours = CaiT(NANO, pretrain_img_size=64, **WHOLE).eval()
    report = load_pretrained(ours, {"model": theirs.state_dict()}, keep_classifier=True)
    assert report.scheme == "official"  # the same names
    assert report.share == 1
    assert set(report.ignored) == {"head.weight", "head.bias"}
    x = torch.randn(2, 3, 64, 64)
    ((out, token),) = ours(x)
    logits = token @ report.classifier["head.weight"].T + report.classifier["head.bias"]
    assert relative_error(logits, theirs(x)) < 1e-5
    (dense,) = theirs.forward_intermediates(x, indices=[2], norm=True, intermediates_only=True)
    assert relative_error(out, dense) < 1e-5


@torch.no_grad()
def test_dense_work_ignores_class_attention():
    """Maps are from the blocks without class token; layers of the token are left out, also of the file."""
    state = timm_cait().state_dict()
    dense = CaiT(NANO, pretrain_img_size=64, out_norm="none").eval()
    assert dense.class_blocks is None
    assert dense.tokens is None
    report = load_pretrained(dense, state)
    assert report.share == 1
    left = {key for key in report.ignored if key.startswith("class_blocks.")}
    assert len(left) == 1 + 2 * 18
    assert set(report.ignored) - left == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    whole = CaiT(NANO, pretrain_img_size=64, **WHOLE).eval()
    load_pretrained(whole, state)
    x = torch.randn(1, 3, 50, 70)
    bare = dense(x)[-1].permute(0, 2, 3, 1)
    torch.testing.assert_close(whole(x)[0][0], whole.norm(bare).permute(0, 3, 1, 2))
    own = convert(dense.state_dict(), "official").state
    assert not [key for key in own if "token" in key]
    with pytest.raises(CheckpointMismatchError, match=r"missing keys \(39\): .*class_blocks\.cls_token"):
        load_pretrained(whole, own)


@pytest.mark.parametrize(("frozen_stages", "trains"), [(2, True), (3, False)])
def test_class_attention_is_frozen_with_the_last_block(frozen_stages, trains):
    model = CaiT(NANO, pretrain_img_size=64, frozen_stages=frozen_stages, **WHOLE).train()
    ((out, token),) = model(torch.randn(2, 3, 32, 48))
    if trains:
        (out.square().mean() + token.square().mean()).backward()
    for name, parameter in model.named_parameters():
        if name.startswith(("class_blocks.", "norm.")):
            assert parameter.requires_grad is trains, name
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_class_attention_trains_with_the_attention():
    model = CaiT(NANO, pretrain_img_size=64, finetune="attention", **WHOLE)
    trained = {
        name.split(".", 3)[3] for name, p in model.named_parameters() if p.requires_grad and "class_blocks" in name
    }
    assert trained == {f"attn.{layer}.{part}" for layer in ("q", "k", "v", "proj") for part in ("weight", "bias")}


# The authors' README: millions of parameters, billions of multiply-adds. Ours are lower by up to 0.8 %.
PUBLISHED = [
    ("cait_s24", 224, 47, 9.4),
    ("cait_xs24", 384, 27, 19.3),
    ("cait_s24", 384, 47, 32.2),
    pytest.param("cait_s36", 384, 68, 48.0, marks=pytest.mark.slow),
    pytest.param("cait_m48", 448, 356, 329.6, marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize(("arch", "image", "millions", "billions"), PUBLISHED)
def test_published_totals(arch, image, millions, billions):
    """With the two layers of class attention, and the mixing of heads, which is up to 5 % of the multiply-adds."""
    options = {**WHOLE, "out_indices": (int(arch[-2:]) - 1,)}
    params, cost = classifier_totals(partial(CaiT, arch, pretrain_img_size=image, **options), image)
    assert params == pytest.approx(millions, abs=0.5)
    assert cost == pytest.approx(billions, rel=8e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cait_xxs36_224", "cait_xs24_384", "cait_s36_384"])
def test_parameters_and_initial_layer_scale_are_timms(name):
    arch, image = name.rsplit("_", 1)
    with torch.device("meta"):
        ours = CaiT(arch, **{**WHOLE, "out_indices": (int(arch[-2:]) - 1,), "pretrain_img_size": int(image)})
        assert num_params(ours) == num_params(timm.create_model(name, num_classes=0))
    first = timm.create_model(name, num_classes=0, depth=1).blocks[0]
    assert torch.equal(first.gamma_1, torch.full((ours.arch.embed_dims,), ours.arch.layer_scale))
