from dataclasses import replace

import pytest
import torch
from conftest import needs_research

from peers import comparable
from verify import verify
from vitdense import Swin
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.families import Model

pytestmark = pytest.mark.long

ARCH = {"embed_dims": 8, "depths": (2, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
SWIN = Model("tiny", "tiny", "Swin", ARCH, options={"window_size": 4})
NAT = Model("tiny", "tiny", "NAT", {**ARCH, "mlp_ratio": 2.0})
MVIT = {"embed_dims": 8, "depths": (1, 2, 2, 1), "num_heads": 1}
V1 = {"pool": "max", "relative_position": False, "absolute_position": True, "residual_pooling": False}
VIT = {"embed_dims": 192, "depth": 4, "num_heads": 3}
DISTILLED = {"distilled": True}
DEIT3 = {"token_position": False, "layer_scale": 1.0}


def mvit(image=64, **arch):
    return Model("tiny", "tiny", "MViT", {**MVIT, **arch}, options={"pretrain_img_size": image})


def vit(image=64, arch=(), family="ViT", **options):
    return Model("tiny", "tiny", family, {**VIT, **dict(arch)}, options={"pretrain_img_size": image, **options})


def draw(state):
    return {
        key: torch.randn_like(x) / (1 if key.endswith("qkv.weight") else 10) if x.is_floating_point() else x
        for key, x in state.items()
    }


def converted(row, to, **extra):
    model, spec = comparable(row)
    state = draw({key: x for key, x in model.state_dict().items() if not key.startswith("norm")}) | extra
    windows = row.options.get("window_size"), row.options.get("pretrained_window_sizes")
    done = convert(state, to, windows=windows[0] and [windows[0]], pretrained_windows=windows[1], drop_classifier=True)
    return done, model, spec


def swapped(first, second):
    def swap(state):
        state[first], state[second] = state[second], state[first]

    return swap


def queries_for_keys(state):
    for key, value in state.items():
        if ".qkv." in key:
            q, k, v = value.chunk(3)
            state[key] = torch.cat([k, q, v])


MERGE = "layers.2.downsample.reduction.weight"
NORM = "stages.0.blocks.0.attn.norm_{}.bias"
CHANGES = {
    "neighbours in patch merging": (SWIN, lambda state: state.update({MERGE: state[MERGE].roll(8, dims=1)})),
    "norms": (mvit(), swapped(NORM.format("q"), NORM.format("k"))),
    "branches": (vit(arch=DEIT3), swapped("blocks.1.ls1.gamma", "blocks.1.ls2.gamma")),
    "queries, swin": (SWIN, queries_for_keys),
    "queries, mvit": (mvit(), queries_for_keys),
    "queries, vit": (vit(), queries_for_keys),
    "queries, distilled": (vit(arch=DISTILLED), queries_for_keys),
    "queries, deit3": (vit(arch=DEIT3), queries_for_keys),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_in_each_others_place_are_an_error(change):
    """All shapes match."""
    row, swap = CHANGES[change]
    done, *ours = converted(row, "timm")
    assert max(verify(done, *ours)[0].errors) < 1e-5
    swap(done.backbone)
    with pytest.raises(CheckpointMismatchError, match=r"verify timm: .*\d+x\d+"):
        verify(done, *ours)


def test_missing_key_or_size_mismatch_of_a_peer_is_an_error():
    done, *ours = converted(SWIN, "timm")
    done.backbone[MERGE] = done.backbone[MERGE][:1]
    with pytest.raises(CheckpointMismatchError, match=f"size mismatch .*{MERGE}"):
        verify(done, *ours)
    done.backbone.pop(MERGE)
    with pytest.raises(CheckpointMismatchError, match=f"missing keys .*{MERGE}"):
        verify(done, *ours)


@pytest.mark.parametrize("row", [SWIN, pytest.param(NAT, marks=needs_research)], ids=["swin", "nat"])
def test_project_without_a_package_is_not_run(row):
    done, *ours = converted(row, "official")
    (result,) = verify(done, *ours)
    assert result.errors is None
    assert "verify official: not run" in str(result)


@pytest.mark.parametrize(
    ("row", "to", "feature"),
    [
        (mvit(**V1), "timm", "max pooling, absolute positions"),
        (mvit(image=(64, 96)), "timm", "non-square"),
        (vit(arch=DEIT3), "mmpretrain", "tokens without positions"),
        (vit(arch=DEIT3), "official", "LayerScale"),
        (vit(window_size=2), "timm", "windows"),
        (replace(SWIN, options={"mlp_ratio": 2.0, "in_channels": 1}), "timm", "mlp_ratio=2.0, in_channels=1"),
    ],
)
def test_feature_that_a_peer_does_not_have_is_named(row, to, feature):
    pytest.importorskip("timm" if to == "official" else to)
    (result,) = verify(*converted(row, to))
    assert result.errors is None
    assert feature in str(result)


def test_source_and_target_are_run_and_attention_masks_ignored():
    """Published checkpoints of the authors and of mmseg have attention masks of one image size."""
    model, spec = comparable(SWIN)
    state = {key: x for key, x in Swin(ARCH, window_size=4).state_dict().items() if not key.startswith("norm")}
    state = convert(state, "mmdet").state
    state["backbone.stages.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    results = verify(convert(state, "timm"), model, spec)
    assert [result.scheme for result in results] == ["mmdet", "timm"]
    assert all(max(result.errors) < 1e-5 for result in results)
