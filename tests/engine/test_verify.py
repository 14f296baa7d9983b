import pytest
import torch

from vitdense.backbones import MViT, Swin, ViT
from vitdense.engine.verify import verify
from vitdense.weights.convert import convert
from vitdense.weights.errors import CheckpointMismatchError

ARCH = {"embed_dims": 8, "depths": (2, 1, 2, 1), "num_heads": (1, 2, 4, 8)}


def draw(state):
    """Random weights with which every part is seen in the maps: smaller ones of queries and keys attend evenly."""
    return {
        key: torch.randn_like(x) / (1 if key.endswith("qkv.weight") else 10) if x.is_floating_point() else x
        for key, x in state.items()
    }


def converted(to):
    state = Swin(ARCH, window_size=4).state_dict()
    return convert(draw({key: x for key, x in state.items() if not key.startswith("norm")}), to)


def test_maps_that_differ_are_an_error():
    """A merging in the other order of neighbours has every shape right."""
    done = converted("timm")
    key = "layers.2.downsample.reduction.weight"
    done.backbone[key] = done.backbone[key].roll(8, dims=1)
    with pytest.raises(CheckpointMismatchError, match=r"verify timm: .*at most 0\.0001 expected.*nothing was written"):
        verify(done)


def test_names_that_the_other_model_does_not_have_are_an_error():
    done = converted("timm")
    done.backbone.pop("layers.2.downsample.reduction.weight")
    with pytest.raises(CheckpointMismatchError, match=r"not have just these names and shapes: \['layers\.2\.down"):
        verify(done)


def test_a_project_that_is_not_installed_is_said():
    (verdict,) = verify(converted("official"))
    assert verdict.errors is None
    assert "its code is not a package" in str(verdict)


V1 = {"pool": "max", "relative_position": False, "absolute_position": True, "residual_pooling": False}


def converted_mvit(to, image=64, **arch):
    model = MViT({"embed_dims": 8, "depths": (1, 2, 2, 1), "num_heads": 1, **arch}, pretrain_img_size=image)
    state = draw({key: x for key, x in model.state_dict().items() if not key.startswith("norm")})
    return convert(state | {"tokens.cls_token": torch.randn(1, 1, 8)} if to == "timm" else state, to)


@pytest.mark.parametrize("growth", ["attention", "mlp"])
@pytest.mark.parametrize("to", ["timm", "mmpretrain"])
def test_mvit_at_the_size_its_tables_tell(to, growth):
    pytest.importorskip(to)
    (verdict,) = verify(converted_mvit(to, growth=growth))
    assert verdict.errors.keys() == {(64, 64)}
    assert verdict.errors[64, 64] < 1e-5


def test_tables_of_mvit_that_are_swapped_are_an_error():
    done = converted_mvit("timm")
    key = "stages.0.blocks.0.attn.norm_{}.bias"
    for name in (key.format("q"), key.format("k")):
        done.backbone[name] = torch.randn(8)
    with pytest.raises(CheckpointMismatchError, match=r"verify timm: .*64x64"):
        verify(done)


@pytest.mark.parametrize(
    ("options", "message"),
    [(V1, "absolute positions, which it does not build"), ({"image": (64, 96)}, "tables are of 64x96 pixels")],
)
def test_an_mvit_that_the_other_project_does_not_have_is_said(options, message):
    (verdict,) = verify(converted_mvit("timm", **options))
    assert verdict.errors is None
    assert message in str(verdict)


VIT = {"embed_dims": 192, "depth": 4, "num_heads": 3}


def converted_vit(to, arch=(), image=64, **options):
    model = ViT({**VIT, **dict(arch)}, pretrain_img_size=image, out_norm="none", **options)
    beside = {"norm.weight": torch.ones(192), "norm.bias": torch.ones(192), "decoder_pred.bias": torch.ones(1)}
    return convert(draw(model.state_dict()) | beside, to, drop_classifier=True)


DISTILLED = {"arch": {"distilled": True}}
DEIT3 = {"arch": {"token_position": False, "layer_scale": 1.0}}


@pytest.mark.parametrize(
    ("to", "options"),
    [
        *((to, {}) for to in ("timm", "mmpretrain", "mmseg")),
        *((to, DISTILLED) for to in ("timm", "mmpretrain")),
        ("timm", DEIT3),
        ("timm", {**DEIT3, "parallel": 2, "image": 96}),
    ],
)
def test_a_vit_at_the_size_its_positions_tell(to, options):
    pytest.importorskip(to)
    (verdict,) = verify(converted_vit(to, **options))
    assert verdict.errors[(options.get("image", 64),) * 2] < 1e-5


def test_a_vit_of_the_authors_is_run_in_timm_where_that_has_their_names():
    def published(**options):
        state = converted_vit("official", image=32, **options).state
        return {key: value for key, value in state.items() if not key.startswith("decoder")}

    assert [verdict.scheme for verdict in verify(convert(published(), "google"))] == ["timm", "google"]
    (verdict,) = verify(convert(published(), "timm"))
    assert verdict.errors[32, 32] < 1e-5
    verdicts = verify(convert(published(**DEIT3), "timm"))  # they call LayerScale otherwise
    assert [verdict.scheme for verdict in verdicts] == ["official", "timm"]


@pytest.mark.parametrize(
    "make",
    [
        converted,
        converted_mvit,
        converted_vit,
        lambda to: converted_vit(to, **DISTILLED),
        lambda to: converted_vit(to, **DEIT3),
        lambda to: converted_vit(to, **DEIT3, parallel=2),
    ],
)
def test_queries_and_keys_that_are_swapped_are_an_error(make):
    pytest.importorskip("timm")
    done = make("timm")
    assert max(verify(done)[0].errors.values()) < 1e-5
    for key, value in done.backbone.items():
        if ".qkv." in key:
            q, k, v = value.chunk(3)
            done.backbone[key] = torch.cat([k, q, v])
    with pytest.raises(CheckpointMismatchError, match=r"verify timm: .*nothing was written"):
        verify(done)


def test_a_vit_whose_branches_are_swapped_is_an_error():
    done = converted_vit("timm", **DEIT3)
    first, second = "blocks.1.ls1.gamma", "blocks.1.ls2.gamma"
    done.backbone[first], done.backbone[second] = done.backbone[second], done.backbone[first]
    with pytest.raises(CheckpointMismatchError, match=r"verify timm: .*64x64.*nothing was written$"):
        verify(done)


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("mmpretrain", DEIT3, "mmpretrain has no model with tokens without positions, whose DeiT III computes"),
        ("official", {"stem": "hmlp"}, "its code is not a package"),
        ("timm", {"arch": {"embed_dims": 48}}, "do not tell the heads of a width that is not published, 48"),
        ("timm", {"window_size": 2}, "it has a class token, and the checkpoint has none"),
    ],
)
def test_a_vit_that_the_other_project_does_not_have_is_said(to, options, message):
    (verdict,) = verify(converted_vit(to, **options))
    assert verdict.errors is None
    assert message in str(verdict)


def test_a_file_with_masks_of_an_image_size_is_verified():
    """Published classifiers of the authors and of mmseg hold them."""
    state = convert({k: v for k, v in Swin(ARCH, window_size=4).state_dict().items() if k[:4] != "norm"}, "mmdet").state
    state["backbone.stages.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    verdicts = verify(convert(state, "timm"))
    assert [verdict.scheme for verdict in verdicts] == ["mmdet", "timm"]
    assert all(verdict.errors for verdict in verdicts)


def test_options_that_no_trial_builds_are_said():
    state = Swin(ARCH, window_size=4, mlp_ratio=2, in_channels=1, qkv_bias=False).state_dict()
    (verdict,) = verify(convert(state, "timm", drop_output_norms=True))
    assert "images of 1 channels, an MLP that is not 4 times as wide, no bias of queries" in str(verdict)
