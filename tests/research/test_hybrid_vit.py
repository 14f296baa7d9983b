"""Plain ViTs on the map of a ResNet (ViT section 3.1)."""

import re

import pytest
import torch
from test_vit import NANO

from vitdense import HybridViT
from vitdense.flops import num_params
from vitdense.hub import create


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


def test_branches_of_a_new_resnet_are_zero():
    """The last norm of each starts at 0, as in the authors' code."""
    stages = HybridViT(NANO, stem="r26_s32").patch_embed.backbone.stages
    norms = [block.norm3.weight for stage in stages for block in stage.blocks]
    assert len(norms) == 8
    assert not any(weight.any() for weight in norms)
