"""The linear head of mmseg: what it computes, and that it trains."""

import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

import vitdense  # noqa: F401


def head(**options):
    kind = {"type": "vitdense.LinearHead", "num_classes": 5, "dropout_ratio": 0.1, "align_corners": False}
    return revert_sync_batchnorm(MODELS.build({**kind, **options}))


def test_one_map():
    linear = head(in_channels=8).eval()
    nn.init.normal_(linear.bn.running_mean)
    nn.init.normal_(linear.conv_seg.weight)
    maps = [torch.randn(2, 8, 12, 16), torch.randn(2, 8, 6, 7)]
    normed = (maps[-1] - linear.bn.running_mean[:, None, None]) / (1 + 1e-5) ** 0.5
    want = torch.einsum("kc,bchw->bkhw", linear.conv_seg.weight[..., 0, 0], normed)
    torch.testing.assert_close(linear(maps), want + linear.conv_seg.bias[:, None, None])
    assert {*dict(linear.named_parameters())} == {"bn.weight", "bn.bias", "conv_seg.weight", "conv_seg.bias"}


def test_several_maps_are_concatenated():
    linear = head(in_channels=[8, 4], in_index=[0, 1]).eval()
    maps = [torch.randn(2, 8, 12, 16), torch.randn(2, 4, 6, 8)]
    small = nn.functional.interpolate(maps[1], (12, 16), mode="bilinear", align_corners=False)
    assert linear(maps).shape == (2, 5, 12, 16)
    torch.testing.assert_close(linear(maps), linear.cls_seg(linear.bn(torch.cat([maps[0], small], 1))))
