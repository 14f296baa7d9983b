from functools import partial

import pytest
import torch
from conftest import classifier_totals
from research_rows import with_random_batch_norms
from torch import nn
from torchvision import models as torchvision_models
from torchvision.models import resnet

from vitdense.checkpoint.load import load_pretrained
from vitdense.research.resnet.model import ResNet
from vitdense.research.resnet.sizes import RESNET

NANO = {"embed_dims": 16, "depths": (1, 2, 3, 1)}


@pytest.mark.parametrize("bottleneck", [True, False])
def test_maps_equal_torchvisions_to_the_bit(bottleneck):
    kind, depths = resnet.Bottleneck if bottleneck else resnet.BasicBlock, (1, 2, 1, 1)
    theirs = resnet.ResNet(kind, depths, num_classes=10).eval()
    ours = ResNet({"embed_dims": 64, "depths": depths, "bottleneck": bottleneck}).eval()
    assert load_pretrained(ours, with_random_batch_norms(theirs).state_dict()).share == 1
    x = torch.randn(2, 3, 97, 131).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        maps, want = ours(x), theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        for got, stage in zip(maps, (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True):
            want = stage(want)
            assert torch.equal(got, want)


@pytest.mark.parametrize("name", RESNET)
def test_totals_match_torchvision(name):
    published = torchvision_models.get_model_weights(name).IMAGENET1K_V1.meta
    params, cost = classifier_totals(partial(ResNet, name))
    assert params == published["num_params"] / 1e6
    assert cost == pytest.approx(published["_ops"], abs=1e-3)


def test_initialisation():
    """He's for convolutions, and 0 for the norm at the end of a branch."""
    model = ResNet({"embed_dims": 64, "depths": (1, 1)}, out_indices=(0, 1))
    block = model.layer1.blocks[0]
    assert model.conv1.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    assert block.conv2.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert not block.bn3.weight.any()


def test_files_without_the_counters_of_norms_load():
    state = ResNet(NANO).state_dict()
    report = load_pretrained(ResNet(NANO), {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")})
    assert {key.rsplit(".")[-1] for key in report.kept_at_init} == {"num_batches_tracked"}


@pytest.mark.parametrize("norm_eval", [True, False])
def test_norms_keep_their_statistics_where_they_should(norm_eval):
    model = ResNet(NANO, norm_eval=norm_eval, frozen_stages=1).train()
    training = {name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d) and m.training}
    assert any(name.startswith("layer2.") for name in training) is not norm_eval
    assert not any(name.startswith(("bn1", "layer1.")) for name in training)
