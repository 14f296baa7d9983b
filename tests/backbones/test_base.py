"""What all backbones share beyond the contract: names of other projects in a whole model's state dict."""

import copy
import pickle

import pytest
import torch
from mmengine.runner.checkpoint import load_state_dict
from torch import nn

from vitdense.backbones import MViT, Swin
from vitdense.weights.convert import convert
from vitdense.weights.errors import CheckpointMismatchError

ARCH = {"embed_dims": 8, "depths": (1, 2), "num_heads": (1, 2)}


class Detector(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.backbone = Swin(ARCH, out_indices=(0, 1), **options)
        self.head = nn.Linear(2, 2)


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_mvit_with_flat_block_names_loads_into_a_detector():
    source, target = Detector(), Detector()
    for model in (source, target):
        model.backbone = MViT({**ARCH, "num_heads": 1}, out_indices=(0, 1), pretrain_img_size=64)
    target.load_state_dict(convert(source.state_dict(), "detectron2").state, strict=True)
    assert same(source, target)


@pytest.mark.parametrize("scheme", ["mmdet", "official", "vitdense"])
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), lambda model: model])
def test_detector_accepts_other_naming_schemes(scheme, twin):
    source, target = Detector(), twin(Detector())
    state = convert(source.state_dict(), scheme).state
    before = dict(state)
    target.load_state_dict(state, strict=True)
    assert same(source, target)
    assert state.keys() == before.keys()  # the caller's dict stays


def test_mmengine_load_state_dict_accepts_other_naming_schemes(capsys):
    source, target = Detector(), Detector()
    load_state_dict(target, convert(source.state_dict(), "mmdet").state)
    assert same(source, target)


def test_unknown_backbone_keys_raise_even_if_not_strict():
    model = Detector()
    before = copy.deepcopy(model)
    with pytest.raises(CheckpointMismatchError, match=r"conv1\.weight"):
        model.load_state_dict({"backbone.conv1.weight": torch.ones(1)}, strict=False)
    assert same(model, before)
    model.load_state_dict({"head.bias": torch.ones(2)}, strict=False)  # nothing of the backbone: nothing to say
    assert model.head.bias.tolist() == [1, 1]
