"""ResNet with attention between its blocks: a start that changes nothing."""

import pytest
import torch
from mmengine.logging import MMLogger
from research_rows import with_random_batch_norms
from test_resnet import NANO
from torch import nn
from torchvision import models as torchvision_models

from vitdense import NonLocalResNet, ResNet
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.research.non_local.model import ATTENTION

ONE = {"kind": "nonlocal", "after": ((2, 1),)}
kinds = pytest.mark.parametrize("kind", ATTENTION)


def attention_of(model):
    return [layer for stage in model.stage_modules() for layer in stage.attn.values()]


@kinds
def test_pretrained_features_do_not_change_until_attention_is_trained(kind):
    theirs = torchvision_models.resnet18().eval()
    plain = ResNet("resnet18").eval()
    ours = NonLocalResNet("resnet18", attention={"kind": kind, "after": ((1, 1), (2, 0))}).eval()
    load_pretrained(plain, with_random_batch_norms(theirs).state_dict())
    report = load_pretrained(ours, theirs.state_dict())
    names = [key for key in ours.state_dict() if key.startswith(("layer2.attn.1.", "layer3.attn.0."))]
    assert report.kept_at_init == names
    assert report.ignored == ["head.weight", "head.bias"]
    assert ours.state_dict().keys() - set(names) == plain.state_dict().keys()
    assert plain.state_dict().keys() == theirs.state_dict().keys() - {"fc.weight", "fc.bias"}
    x = torch.randn(2, 3, 61, 45)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(ours(x), plain(x), strict=True))
        for layer in attention_of(ours):
            nn.init.ones_(layer.norm.weight)
        changed = [not torch.equal(a, b) for a, b in zip(ours(x), plain(x), strict=True)]
    assert changed == [False, True, True, True]


def test_attention_follows_its_block():
    """COCO's place in the paper: right before the last block of the stage of stride 16."""
    order = []
    model = NonLocalResNet(NANO, attention=ONE).eval()
    for name in ("layer3.1", "layer3.attn.1", "layer3.2"):
        model.get_submodule(name).register_forward_hook(lambda _, args, out, name=name: order.append((name, out.shape)))
    model(torch.randn(2, 3, 64, 96))
    assert [name for name, _ in order] == ["layer3.1", "layer3.attn.1", "layer3.2"]
    assert {shape[1:] for _, shape in order} == {(256, 4, 6)}


def test_a_checkpoint_has_all_attention_or_none():
    model, plain = NonLocalResNet(NANO, attention={**ONE, "after": [[1, 0], [2, 1]]}), ResNet(NANO)
    state = with_random_batch_norms(model).state_dict()
    assert load_pretrained(NonLocalResNet(NANO, attention={**ONE, "after": ((1, 0), (2, 1))}), state).share == 1
    with pytest.raises(CheckpointMismatchError, match=r"layer2\.attn\.0"):
        load_pretrained(plain, state)
    with pytest.raises(CheckpointMismatchError, match=r"layer2\.attn\.0\.theta"):
        load_pretrained(model, {key: value for key, value in state.items() if "layer2.attn" not in key})
    with pytest.raises(CheckpointMismatchError, match="no names for"):
        convert(state, "torchvision")


@kinds
def test_attention_is_the_identity_after_init_cfg_drew_all_convolutions(kind):
    import vitdense.mm.registry  # noqa: F401 brings mmengine's initialisers

    init_cfg = [{"type": "Kaiming", "layer": "Conv2d"}, {"type": "Constant", "val": 1, "layer": "BatchNorm2d"}]
    model = NonLocalResNet(NANO, attention={"kind": kind, "after": ((2, 1),)}, init_cfg=init_cfg)
    before = model.conv1.weight.clone()
    MMLogger.get_current_instance().setLevel("ERROR")
    model.init_weights()
    assert not torch.equal(model.conv1.weight, before)
    (layer,) = attention_of(model.eval())
    x = torch.randn(1, 256, 4, 6)
    assert torch.equal(layer(x), x)
    assert layer.theta.weight.std().item() == pytest.approx(0.01, rel=0.1)


def test_every_parameter_is_in_one_layer_and_attention_with_its_block():
    model = NonLocalResNet(NANO, attention=ONE, out_indices=(0, 2))
    layers = [{id(p) for module in modules for p in module.parameters()} for modules in model.layers()]
    assert len(layers) == 1 + 1 + 2 + 3
    used = [p for name, p in model.named_parameters() if not name.startswith("layer4.")]
    assert sum(map(len, layers)) == len(used) == len(set().union(*layers))
    assert {id(p) for p in model.layer3.attn.parameters()} < layers[1 + 1 + 2 + 1]


def test_the_callers_dict_is_not_changed():
    attention = {**ONE, "pool": "after"}
    NonLocalResNet(NANO, attention=attention)
    assert attention == {**ONE, "pool": "after"}
