"""Frozen trunks: nothing of them trains or is stored for the backward pass; checkpoints without them."""

import pytest
import torch
from conftest import needs_research
from torch import nn

import vitdense
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.checkpoint.load import fingerprint, fit_whole, load_pretrained
from vitdense.models.base import Backbone

NANO = {"embed_dims": 16, "depths": (1, 2), "num_heads": (2, 4)}
VIT = {"embed_dims": 32, "num_heads": 2, "layer_scale": 0.5, "registers": 2, "rope": "dinov3"}
FROZEN = {"frozen_stages": "all", "drop_path_rate": 0.5}


def frozen_vit(depth=2, kind=vitdense.ViT, **options):
    return kind({**VIT, "depth": depth}, out_indices=(depth - 1,), **FROZEN, **options)


class Detector(nn.Module):
    """A frozen trunk, a Swin unless another is given, and a head."""

    def __init__(self, weights=None, depth=2, backbone=None, **options):
        super().__init__()
        arch = {**NANO, "depths": (1, depth)}
        swin = vitdense.Swin(arch, window_size=4, out_indices=(0, 1), init_cfg=weights, **FROZEN | options)
        self.backbone = swin if backbone is None else backbone
        self.head = nn.Conv2d(self.backbone.out_channels[-1], 3, 1)

    def forward(self, x):
        return self.head(self.backbone(x)[-1])


@pytest.fixture
def weights(tmp_path):
    torch.save(vitdense.Swin(NANO, window_size=4, out_indices=(0, 1)).state_dict(), tmp_path / "swin.pth")
    return tmp_path / "swin.pth"


@pytest.fixture
def trained(weights):
    model = Detector([dict(type="Pretrained", checkpoint=weights)])
    model.backbone.init_weights()
    return model


def saved_without_trunk(model):
    """A checkpoint as `vitdense.OmitFrozenBackboneHook` of older releases saved it."""
    parts = {n: part for n, part in model.named_modules() if isinstance(part, Backbone) and part.load_report}
    state = {key: x for key, x in model.state_dict().items() if not key.startswith(tuple(f"{name}." for name in parts))}
    omitted = {}
    for name, part in parts.items():
        weights = part.init_cfg[0] if isinstance(part.init_cfg, list) else part.init_cfg
        weights = {"checkpoint": str(weights["checkpoint"] if isinstance(weights, dict) else weights)}
        omitted[name] = weights, fingerprint(part, part.load_report)
    return {"state_dict": state, "meta": {"epoch": 3, "omitted_backbones": omitted}}


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
def test_twenty_steps_change_nothing_of_a_frozen_trunk(backbone):
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


def test_checkpoint_without_its_trunk(trained):
    checkpoint = saved_without_trunk(trained)
    assert set(checkpoint["state_dict"]) == {"head.weight", "head.bias"}
    assert checkpoint["meta"]["epoch"] == 3
    model = Detector()
    state, _ = fit_whole(model, checkpoint)
    model.load_state_dict(state)
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(model.eval()(x), trained.eval()(x))


def test_trunk_that_is_gone_or_changed_is_an_error(trained, weights):
    checkpoint = saved_without_trunk(trained)
    torch.save(vitdense.Swin(NANO, window_size=4, out_indices=(0, 1)).state_dict(), weights)
    with pytest.raises(CheckpointMismatchError, match=r"frozen backbone, and .*swin\.pth has other weights"):
        fit_whole(Detector(), checkpoint)
    weights.unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"saved without its frozen backbone.*swin\.pth"):
        fit_whole(Detector(), checkpoint)


@pytest.mark.parametrize(
    "use", [lambda saved: load_pretrained(Detector().backbone, saved), lambda s: convert(s, "timm")]
)
def test_without_its_trunk_it_is_no_checkpoint_of_the_trunk(trained, use):
    with pytest.raises(
        CheckpointMismatchError, match=r"without its frozen backbone, which has the weights .*swin\.pth"
    ):
        use(saved_without_trunk(trained))


def test_a_model_without_such_a_trunk_is_an_error(trained):
    with pytest.raises(CheckpointMismatchError, match="frozen backbone, which the model does not have"):
        fit_whole(nn.ModuleDict({"head": trained.head}), saved_without_trunk(trained))


def test_the_frozen_trunk_of_an_adapter(tmp_path):
    def make():
        trunk = dict(
            arch=dict(embed_dims=16, depth=4, num_heads=2), frozen_stages="all", init_cfg=str(tmp_path / "v.pth")
        )
        return nn.ModuleDict({"backbone": vitdense.ViTAdapter(trunk, conv_inplane=4, deform_num_heads=2)})

    torch.save(make().backbone.trunk.state_dict(), tmp_path / "v.pth")
    trained, model = make(), make()
    trained.backbone.init_weights()
    checkpoint = saved_without_trunk(trained)
    assert not any(key.startswith("backbone.trunk.") for key in checkpoint["state_dict"])
    model.load_state_dict(fit_whole(model, checkpoint)[0])
    assert all(torch.equal(value, trained.state_dict()[key]) for key, value in model.state_dict().items())


def test_resized_tensors_are_not_in_the_fingerprint(weights):
    def digest(changes_resized=None):
        model = vitdense.Swin(NANO, window_size=6, out_indices=(0, 1))
        report = load_pretrained(model, weights)
        assert len(report.resized) == 3
        changed = [key for key in report.loaded if (key in report.resized) == changes_resized]
        for name in changed[:1]:
            model.state_dict()[name].add_(1)
        return fingerprint(model, report)

    assert digest() == digest(changes_resized=True) != digest(changes_resized=False)


@pytest.mark.parametrize("frozen_stages", ["none", 3, -2, 1.5])
def test_wrong_frozen_stages(frozen_stages):
    with pytest.raises(ValueError, match=r"frozen_stages: got .*, expected -1 .none. to 2, or 'all'"):
        Detector(frozen_stages=frozen_stages)
