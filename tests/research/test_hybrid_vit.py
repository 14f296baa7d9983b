"""Plain ViTs on the map of a ResNet (ViT section 3.1)."""

import re

import pytest
import torch
from test_vit import NANO
from torch import nn

from vitdense import HybridViT
from vitdense.flops import num_params
from vitdense.hub import create
from vitdense.research.hybrid_vit.model import SameConv


# timm's counts, without a classifier.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit_base_r50_s16", 97_890_112),
        ("vit_base_r50_s16_384.orig_in21k_ft_in1k", 98_950_952 - 769_000),
        ("vit_small_r26_s32", 36_431_912 - 385_000),
        ("vit_large_r50_s32", 328_994_856 - 1_025_000),
    ],
)
def test_parameters_of_hybrids_are_timms(name, parameters):
    with torch.device("meta"):
        model = create(name, out_norm="final")
    assert num_params(model) == parameters
    assert model.out_strides == (int(re.search(r"_s(\d+)", name)[1]),) * 4


@pytest.mark.parametrize(("stem", "layers"), [("r50_s32", [3, 4, 6, 3]), ("r50_s16", [3, 4, 9]), ("r26_s32", [2] * 4)])
def test_stages_of_hybrids(stem, layers):
    """One of the paper's two ResNet-50s has the blocks of stage 4 in stage 3: as many layers."""
    with torch.device("meta"):
        resnet = HybridViT(NANO, stem=stem).patch_embed.backbone
    assert [len(stage.blocks) for stage in resnet.stages] == layers
    assert not [module for module in resnet.modules() if isinstance(module, nn.BatchNorm2d)]


def test_branches_of_a_new_resnet_are_zero():
    """The last norm of each starts at 0, as in the authors' code."""
    stages = HybridViT(NANO, stem="r26_s32").patch_embed.backbone.stages
    norms = [block.norm3.weight for stage in stages for block in stage.blocks]
    assert len(norms) == 8
    assert not any(weight.any() for weight in norms)


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2), (1, 1)])
def test_same_padding_for_even_sizes_is_timms(kernel, stride):
    from timm.layers import StdConv2dSame

    ours, theirs = SameConv(4, 6, kernel, stride), StdConv2dSame(4, 6, kernel, stride, eps=1e-8)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 8, 10)
    assert torch.equal(ours(x), theirs(x))


def test_an_unknown_stem_is_refused():
    with pytest.raises(ValueError, match="stem: got 'r101'"):
        HybridViT(NANO, stem="r101")
