"""Tensors that are no dense arrays of finite numbers are refused by loading and by conversion, with their names."""

import pytest
import torch

from vitdense import Swin
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained

KEY = "stages.0.blocks.0.mlp.fc1.weight"
UNUSUAL = {
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "sparse": lambda x: x.to_sparse(),
    "meta device": lambda x: x.to("meta"),
}
NOT_REAL = {
    "NaN": lambda x: x.index_fill(0, torch.tensor(0), torch.nan),
    "infinity": lambda x: x.index_fill(0, torch.tensor(0), torch.inf),
    "int8": lambda x: x.to(torch.int8),
    "complex": lambda x: x.to(torch.complex64),
}


@pytest.fixture
def model():
    return Swin({"embed_dims": 8, "depths": (2, 2), "num_heads": (1, 2)}, out_indices=(0, 1))


@pytest.mark.filterwarnings("ignore")  # torch deprecates quantised, and calls nested ones a prototype
@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize(
    "act", [load_pretrained, lambda model, state: convert(state, "official")], ids=["load", "convert"]
)
def test_unusual_tensors_are_refused(model, act, kind):
    state = {**model.state_dict(), KEY: UNUSUAL[kind](model.state_dict()[KEY])}
    with pytest.raises(CheckpointMismatchError, match=r"mlp\.fc1\.weight"):
        act(model, state)


@pytest.mark.parametrize("kind", NOT_REAL)
def test_numbers_that_are_not_real_are_not_converted(model, kind):
    state = {**model.state_dict(), KEY: NOT_REAL[kind](model.state_dict()[KEY])}
    with pytest.raises(CheckpointMismatchError, match=r"mlp\.fc1\.weight"):
        convert(state, "official", drop_output_norms=True)


@pytest.mark.parametrize("meta", [None, [1]])
def test_meta_of_another_kind_is_refused(model, meta):
    content = {"state_dict": model.state_dict(), "meta": meta}
    for act in (lambda: load_pretrained(model, content), lambda: convert(content, "official")):
        with pytest.raises(CheckpointMismatchError, match="meta of the checkpoint"):
            act()
