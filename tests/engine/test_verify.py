import pytest
import torch

from vitdense.backbones import MViT, Swin
from vitdense.engine.verify import verify
from vitdense.weights.convert import convert
from vitdense.weights.errors import CheckpointMismatchError

ARCH = {"embed_dims": 8, "depths": (2, 1, 2, 1), "num_heads": (1, 2, 4, 8)}


def converted(to):
    state = Swin(ARCH, window_size=4).state_dict()
    return convert({k: torch.randn_like(v) / 10 for k, v in state.items() if not k.startswith("norm")}, to)


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
    state = {key: torch.randn_like(v) / 10 for key, v in model.state_dict().items() if not key.startswith("norm")}
    return convert(state | {"cls_token": torch.randn(1, 1, 8)} if to == "timm" else state, to)


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
