import pytest
import torch
from safetensors.torch import load_file

from vitdense.backbones import Swin, SwinV2
from vitdense.layers.bias import log_spaced_offsets, relative_position_index
from vitdense.weights.convert import convert, save
from vitdense.weights.detect import detect, sizes
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.read import read
from vitdense.weights.sources import SCHEMES

ARCH = {"embed_dims": 8, "depths": (2, 1, 2), "num_heads": (1, 2, 4)}
MAKE = {
    "swin": lambda **options: Swin(ARCH, out_indices=(0, 1, 2), window_size=4, **options),
    "swin_v2": lambda **options: SwinV2(ARCH, out_indices=(0, 1, 2), window_size=4, **options),
}
NAMES = {family: list(dict.fromkeys(row.name for row in rows)) for family, rows in SCHEMES.items()}


def classifier(family):
    """A classification checkpoint by our names: no output norms, a norm and a head."""
    state = {key: torch.randn_like(v) for key, v in MAKE[family]().state_dict().items() if not key.startswith("norm")}
    shapes = {"norm.weight": (32,), "norm.bias": (32,), "head.weight": (10, 32), "head.bias": (10,)}
    return state | {key: torch.randn(shape) for key, shape in shapes.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("family", "first", "second"), [(f, a, b) for f, names in NAMES.items() for a in names for b in names]
)
def test_every_direction_and_back_is_bit_equal_with_the_classifier(family, first, second):
    options = {"windows": [4]}
    original = convert(classifier(family), first, **options)
    assert original.found.scheme.name == "vitdense"
    there = convert(original.state, second, **options)
    assert there.found.scheme.name == first
    back = convert({"model": there.state}, first, **options)
    assert back.found.scheme.name == second
    assert same(back.state, original.state)


@pytest.mark.parametrize("family", SCHEMES)
def test_dense_backbones_keep_their_output_norms(family):
    state = {key: torch.randn_like(value) for key, value in MAKE[family]().state_dict().items()}
    for to in ("official", "mmdet" if family == "swin" else "mmpretrain", "vitdense"):
        there = convert(state, to, windows=[4])
        assert any(key.endswith("norm0.weight") for key in there.state)
        assert same(convert(there.state, "vitdense").state, state)
    with pytest.raises(CheckpointMismatchError, match=r"timm scheme.*no names for 6 tensors: norm0\.weight"):
        convert(state, "timm")


def test_buffers_are_made_where_the_scheme_keeps_them():
    state = classifier("swin")
    block = "layers.0.blocks.1.attn."
    made = convert(state, "official").state
    assert torch.equal(made[block + "relative_position_index"], relative_position_index((4, 4)))
    flat = convert(state, "torchvision").state["features.1.1.attn.relative_position_index"]
    assert torch.equal(flat, relative_position_index((4, 4)).flatten())
    assert not any("index" in key for key in convert(state, "timm").state)
    state = classifier("swin_v2")
    with pytest.raises(CheckpointMismatchError, match=r"depend on the window.*--window-size 8"):
        convert(state, "official")
    made = convert(state, "official", windows=[4, 4, 2], pretrained_windows=[0, 6, 0]).state
    assert made["layers.2.blocks.0.attn.relative_position_index"].shape == (4, 4)
    assert torch.equal(made["layers.1.blocks.0.attn.relative_coords_table"], log_spaced_offsets((4, 4), (6, 6)))
    assert torch.equal(made[block + "relative_coords_table"], log_spaced_offsets((4, 4), (4, 4)))
    with pytest.raises(ValueError, match="expected one, or one for each stage"):
        convert(state, "official", windows=[4, 4])


def test_buffers_of_the_image_size_are_left_out_where_there_is_no_place_for_them():
    state = convert(classifier("swin"), "official").state
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    assert convert(state, "official").state.keys() == state.keys()
    done = convert(state, "timm")
    assert "stages.0.blocks.1.attn_mask" in done.dropped
    assert "attn_mask" in str(done) or "attn.bias.index" in str(done)


def test_a_detector_stays_whole_where_the_scheme_has_detectors():
    state = {f"backbone.{key}": value for key, value in MAKE["swin"]().state_dict().items()}
    heads = {"neck.lateral_convs.0.conv.weight": torch.ones(1), "roi_head.fc.bias": torch.ones(2)}
    there = convert({"state_dict": state | heads, "meta": {}}, "mmdet")
    assert heads.keys() <= there.state.keys()
    assert "backbone.stages.0.blocks.0.attn.w_msa.qkv.weight" in there.state
    assert same(convert(there.state, "vitdense").state, state | heads)
    stripped = {key: value for key, value in (state | heads).items() if ".norm" not in key.split("blocks")[0]}
    alone = convert(stripped, "torchvision")
    assert alone.left_out == list(heads)
    assert "2 beside the backbone left out: neck" in str(alone)
    assert not any(key.startswith("backbone.") for key in alone.state)


def test_mmdet_gets_the_prefix_without_which_it_loads_nothing():
    assert all(key.startswith("backbone.") for key in convert(classifier("swin"), "mmdet").state)


def test_the_sizes_are_read_off_the_parameters():
    assert sizes(classifier("swin")) == {**ARCH, "extra_norm_every": 0, "windows": ((4, 4),) * 3}
    arch = {**ARCH, "depths": (1, 4, 1), "extra_norm_every": 2}
    found = sizes(SwinV2(arch, out_indices=(0, 1, 2)).state_dict())
    assert found == {**arch, "windows": ()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin"])
def test_files_are_whole_or_not_there(tmp_path, suffix):
    done = convert(classifier("swin"), "mmdet")
    path = tmp_path / f"a{suffix}"
    save(done.state, path, done.scheme.wrapper, {"meta": {"classes": ["cat"]}})
    saved = read(path)
    if suffix == ".safetensors":
        assert same(load_file(path), done.state)
    else:
        assert saved["meta"] == {"classes": ["cat"]}
        saved = saved["state_dict"]
    assert same(saved, done.state)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="disk"):
        save({"a": Unsaveable()}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match=r"a\.onnx, expected a name ending in"):
        save(done.state, tmp_path / "a.onnx")


class Unsaveable(torch.Tensor):
    def detach(self):
        raise RuntimeError("the disk is full")


class TestDetection:
    def test_schemes_whose_names_look_alike_are_told_apart(self):
        state = classifier("swin")
        for name in NAMES["swin"]:
            assert detect(convert(state, name).state).scheme.name == name

    def test_two_that_contradict_each_other_are_never_guessed(self):
        """mmpretrain's last norm is the classifier's, mmdet's of the same name is an output's."""
        state = convert(classifier("swin"), "mmpretrain").state
        headless = {key: value for key, value in state.items() if not key.startswith("head")}
        message = "contradict each other: mmdet, mmpretrain; name the one it is by scheme="
        with pytest.raises(CheckpointMismatchError, match=message):
            detect(headless)
        assert "norm3.weight" in detect(headless, scheme="mmdet").ours()
        assert "norm.weight" in detect(headless, scheme="mmpretrain").ours()

    def test_two_that_agree_are_no_contradiction(self):
        trunk = {key: v for key, v in classifier("swin").items() if not key.startswith(("norm", "head"))}
        assert detect(convert(trunk, "official").state).scheme.name == "official"

    def test_a_scheme_that_does_not_exist(self):
        with pytest.raises(CheckpointMismatchError, match="got 'keras', expected one of vitdense, official, timm"):
            detect(classifier("swin"), scheme="keras")
        with pytest.raises(CheckpointMismatchError, match=r"--to: got 'mmdet', expected one of .* swin_v2 family"):
            convert(classifier("swin_v2"), "mmdet")

    def test_what_is_no_backbone_at_all(self):
        message = "not a checkpoint of the swin or swin_v2 family in a known naming scheme; the nearest is"
        with pytest.raises(CheckpointMismatchError, match=message):
            detect({"conv1.weight": torch.ones(1), "fc.bias": torch.ones(1)})
