"""Frozen trunks: nothing of them trains or is stored for the backward pass."""

import pytest
import torch
from conftest import needs_research
from torch import nn

import vitdense
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import fit_whole, load_pretrained

NANO = {"embed_dims": 16, "depths": (1, 2), "num_heads": (2, 4)}
VIT = {"embed_dims": 32, "num_heads": 2, "layer_scale": 0.5, "registers": 2, "rope": "dinov3"}
FROZEN = {"frozen_stages": "all", "drop_path_rate": 0.5}


def frozen_vit(depth=2, kind=vitdense.ViT, **options):
    return kind({**VIT, "depth": depth}, out_indices=(depth - 1,), **FROZEN, **options)


class Detector(nn.Module):
    """A frozen trunk, a Swin unless another is given, and a head."""

    def __init__(self, depth=2, backbone=None, **options):
        super().__init__()
        arch = {**NANO, "depths": (1, depth)}
        swin = vitdense.Swin(arch, window_size=4, out_indices=(0, 1), **FROZEN | options)
        self.backbone = swin if backbone is None else backbone
        self.head = nn.Conv2d(self.backbone.out_channels[-1], 3, 1)

    def forward(self, x):
        return self.head(self.backbone(x)[-1])


@pytest.mark.parametrize(
    "backbone",
    [
        lambda: None,
        frozen_vit,
        pytest.param(lambda: frozen_vit(kind=vitdense.StemViT), marks=needs_research),  # which has batch norms
        lambda: vitdense.ViTAdapter(frozen_vit(out_norm="none"), deform_num_heads=4),
    ],
    ids=["swin", "vit", "vit, batch norms", "in vit_adapter"],
)
def test_twenty_steps_do_not_change_a_frozen_trunk(backbone):
    model = Detector(backbone=backbone()).train()
    trunk = getattr(model.backbone, "trunk", model.backbone)
    before = {key: value.clone() for key, value in trunk.state_dict().items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)
    for _ in range(20):
        optimiser.zero_grad()
        model(torch.randn(2, 3, 32, 40)).square().mean().backward()
        optimiser.step()
    assert all(torch.equal(value, before[key]) for key, value in trunk.state_dict().items())
    x = torch.randn(2, 3, 32, 40)
    assert torch.equal(trunk(x)[-1], trunk(x)[-1])  # no drop path
    assert model.head.weight.grad is not None


@pytest.mark.parametrize("backbone", [lambda depth: None, frozen_vit], ids=["swin", "vit"])
def test_a_frozen_trunk_stores_nothing_for_the_backward_pass(backbone):
    def stored(depth):
        sizes = []
        model = Detector(depth=depth, backbone=backbone(depth)).train()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes), lambda x: x):
            assert not model.backbone(torch.randn(1, 3, 64, 64))[-1].requires_grad
            model(torch.randn(1, 3, 64, 64))
        return sizes

    assert stored(2) == stored(6)
    assert stored(2)


@pytest.mark.parametrize(
    "use",
    [
        lambda saved: load_pretrained(Detector().backbone, saved),
        lambda saved: fit_whole(Detector(), saved),
        lambda saved: convert(saved, "timm"),
    ],
)
def test_a_checkpoint_of_0_3_without_its_trunk_is_refused(use):
    meta = {"omitted_backbones": {"backbone": ({"checkpoint": "swin.pth"}, "0" * 64)}}
    saved = {"state_dict": Detector().head.state_dict(prefix="head."), "meta": meta}
    with pytest.raises(CheckpointMismatchError, match=r"without its frozen backbone, which has the weights swin\.pth"):
        use(saved)


@pytest.mark.parametrize("frozen_stages", ["none", 3, -2, 1.5])
def test_wrong_frozen_stages(frozen_stages):
    with pytest.raises(ValueError, match=r"frozen_stages: got .*, expected -1 .none. to 2, or 'all'"):
        Detector(frozen_stages=frozen_stages)
