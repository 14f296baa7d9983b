import pytest
import torch

from vitdense.backbones import Swin
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
    with pytest.raises(CheckpointMismatchError, match=r"does not have just these names: \['layers\.2\.downsample"):
        verify(done)


def test_a_project_that_is_not_installed_is_said():
    (verdict,) = verify(converted("official"))
    assert verdict.errors is None
    assert "its code is not a package" in str(verdict)
