"""Conversion between naming schemes: bit-equal there and back, or refused with the names of what would be lost."""

import itertools
import re

import pytest
import torch
from safetensors.torch import load_file

from vitdense import MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import SUFFIXES, convert, save
from vitdense.checkpoint.detect import detect
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.read import read
from vitdense.checkpoint.schemes import NAMING
from vitdense.layers.bias import log_spaced_offsets, relative_position_index

ARCH = {"embed_dims": 8, "depths": (2, 1, 2), "num_heads": (1, 2, 4)}
V1 = {"pool_all_queries": False, "relative_position": False, "absolute_position": True, "residual_pooling": False}
NAMES = {family: list(dict.fromkeys(row.name for row in naming.schemes)) for family, naming in NAMING.items()}


def swin(kind=Swin, **options):
    return kind(ARCH, out_indices=(0, 1, 2), **{"window_size": 4, **options})


def mvit(**arch):
    sizes = {"embed_dims": 8, "depths": (1, 3, 2), "num_heads": 1}
    return MViT({**sizes, **arch}, out_indices=(0, 1, 2), pretrain_img_size=32)


def vit(arch=(), **options):
    sizes = {"embed_dims": 192, "depth": 2, "num_heads": 3}
    return ViT({**sizes, **dict(arch)}, **{"pretrain_img_size": 64, "out_norm": "none", **options})


def state_of(make, extra=(), norms=False):
    with torch.device("meta"):  # drawn below
        model = make()
    shapes = {key: x.shape for key, x in model.state_dict().items() if norms or not re.match(r"norm\d", key)}
    is_real = {key: x.is_floating_point() for key, x in model.state_dict().items()}
    return {
        key: torch.randn(s) if is_real.get(key, True) else torch.tensor(7)
        for key, s in {**shapes, **dict(extra)}.items()
    }


def both(name, *shape):
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


CLASSIFIER = both("norm", 32) | both("head", 10, 32)
NORM, HEAD, POOLED = both("norm", 192), both("head", 10, 192), both("fc_norm", 192)
MASK, POSITION = {"mask_token": (1, 192)}, {"tokens.cls_position": (1, 1, 192)}
DECODER = {
    **{"mask_token": (1, 1, 32), "decoder_pos_embed": (1, 17, 32), "decoder_blocks.1.norm1.weight": (32,)},
    **{"decoder_embed.weight": (32, 192), "decoder_norm.bias": (32,), "decoder_pred.bias": (768,)},
}
SCALED, GATED = {"layer_scale": 1.0}, {"qkv_bias": "no_key", "ffn_dims": 24}
RELATIVE = {"window_size": 2, "relative_position": True, "img_size": 64}
VITS = {  # the arch, options, further tensors, and the schemes with names for all of them
    "ViT": ({}, {}, NORM | HEAD, "official timm mmpretrain"),
    "ViT with pre-logits": ({}, {}, NORM | HEAD | both("pre_logits", 192, 192), "mmpretrain"),
    "trunk": ({}, {}, {}, "official timm mmseg mmpretrain dinov2 transformers"),
    "trunk with its norm": ({}, {}, NORM, "official timm mmseg mmpretrain dinov2 transformers"),
    "distilled DeiT": ({"distilled": True}, {}, NORM | HEAD | both("head_dist", 10, 192), "official timm mmpretrain"),
    "DeiT III": ({"token_position": False, **SCALED}, {}, NORM | HEAD, "official timm mmpretrain"),
    "MAE": ({}, {}, NORM | DECODER, "official"),
    "fine-tuned MAE": ({}, {}, POOLED | HEAD, "official timm mmpretrain"),
    "ViTDet": ({}, RELATIVE, POSITION, "detectron2"),
    "DINOv2": (SCALED, {}, NORM | MASK, "official dinov2 transformers"),
    "DINOv2 with registers": ({"registers": 2, **SCALED}, {}, NORM | MASK, "dinov2 transformers"),
    "large DINOv2": ({"ffn": "swiglu", "ffn_dims": 24, **SCALED}, {}, NORM, "timm dinov2 transformers"),
    "PE": ({"pre_norm": True}, {}, {}, "timm perception"),
    "SigLIP": ({"class_token": False}, {}, NORM | {"attn_pool.probe": (1, 1, 192)}, "timm transformers"),
    "small EVA-02": ({"ffn": "swiglu", **GATED}, {}, POOLED | HEAD, "timm"),
    "EVA-02": ({"ffn": "swiglu_norm", **GATED}, {}, POOLED | HEAD, "timm"),
    "EVA-02 of a detector": ({"ffn": "swiglu_norm", **GATED}, {"window_size": 2}, POSITION, "timm detectron2"),
    "dense ViT": ({}, {"out_norm": "each"}, {}, ""),
}
KINDS = {  # of checkpoints: family, state, and the schemes with names for it in addition to ours
    "Swin": ("swin", lambda: state_of(swin, CLASSIFIER), "official timm torchvision mmdet mmpretrain"),
    "dense Swin": ("swin", lambda: state_of(swin, norms=True), "official mmdet mmpretrain"),
    "Swin V2": ("swin_v2", lambda: state_of(lambda: swin(SwinV2), CLASSIFIER), "official timm torchvision mmpretrain"),
    "dense Swin V2": ("swin_v2", lambda: state_of(lambda: swin(SwinV2), norms=True), "official mmpretrain"),
    **{
        name: ("vit", lambda arch=arch, options=options, extra=extra: state_of(
            lambda: vit(arch, **options), extra, norms="out_norm" in options), schemes)
        for name, (arch, options, extra, schemes) in VITS.items()
    },
}  # fmt: skip
for _name, _arch in {
    "MViTv2": {},
    "MViTv2, growing in MLPs": {"growth": "mlp"},
    "MViTv1, max": {"growth": "mlp", **V1, "pool": "max"},
    "MViTv1": {"growth": "mlp", **V1},
}.items():
    _position = {"tokens.cls_position": (1, 1, 8)} if "absolute_position" in _arch else {}
    for _what, _extra, _norms, _schemes in (
        ("", CLASSIFIER | {"tokens.cls_token": (1, 1, 8)} | _position, False, "official timm"),
        (" without token", CLASSIFIER, False, "official timm mmpretrain"),
        (" trunk", _position, False, f"official timm detectron2{'' if _position else ' mmpretrain'}"),
        (" dense", {}, True, "detectron2 mmpretrain"),
    ):
        KINDS[_name + _what] = (
            "mvit",
            lambda arch=_arch, extra=_extra, norms=_norms: state_of(lambda: mvit(**arch), extra, norms),
            _schemes,
        )
# Names that another scheme has, too, which is found first: without LayerScale, without norms, without a head.
ALSO = {("vit", "timm"): "official", ("vit", "detectron2"): "official", ("vit", "dinov2"): "official"}
ALSO |= {("mvit", "detectron2"): "official", ("swin", "mmpretrain"): "mmdet"}


def kind(name):
    return KINDS[name][1]()


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_round_trips_are_bit_equal_and_unknown_keys_refused(name):
    family, make, schemes = KINDS[name]
    state, schemes = make(), ("vitdense", *schemes.split())
    files = {scheme: convert(state, scheme, windows=[4]) for scheme in schemes}
    for first, second in itertools.product(files, files):
        assert files[first].match.scheme.name == "vitdense"
        there = convert({"model": files[first].state}, second, windows=[4])
        assert there.match.scheme.name in (first, ALSO.get((family, first)))
        assert same(convert(there.state, first, windows=[4]).state, files[first].state)
        assert same(convert(there.state, "vitdense").state, state)
    for scheme in set(NAMES[family]) - {*schemes}:
        refusal = (
            rf"the {scheme} scheme of the {family} family has no names for .*--drop-output-norms"
            rf"|files with {scheme} names have keys such as|--to: got '{scheme}'"  # only read
        )
        with pytest.raises(CheckpointMismatchError, match=refusal):
            convert(state, scheme)


@pytest.mark.parametrize(
    ("name", "scheme", "left"),
    [
        ("ViT", "mmseg", set(HEAD)),
        ("MAE", "mmpretrain", set(DECODER)),
        ("ViT", "detectron2", {"tokens.cls_token", *NORM, *HEAD}),
    ],
)
def test_classifier_can_be_left_out(name, scheme, left):
    state = kind(name)
    with pytest.raises(CheckpointMismatchError, match="--drop-classifier"):
        convert(state, scheme)
    done = convert(state, scheme, drop_classifier=True)
    assert set(done.left_out) == left
    assert f"{len(left)} other tensors left out" in str(done)
    assert same(convert(done.state, "vitdense").state, {key: x for key, x in state.items() if key not in left})


def test_distillation_token_is_never_left_out_of_a_scheme_with_tokens():
    with pytest.raises(CheckpointMismatchError, match=r"no names for 2 tensors: tokens\.dist_token, tokens\.dist_pos"):
        convert(kind("distilled DeiT"), "mmseg", drop_classifier=True)


def test_missing_patch_bias_of_mmseg_is_zero():
    state = convert(kind("trunk"), "mmseg").state
    bare = {key: value for key, value in state.items() if key != "patch_embed.projection.bias"}
    ours = convert(bare, "vitdense").state
    assert torch.equal(ours["patch_embed.proj.bias"], torch.zeros(192))
    assert same(convert(ours, "mmseg").state, bare)
    bare.pop("patch_embed.projection.weight")
    bare["patch_embed.projection.bias"] = torch.ones(192)
    with pytest.raises(CheckpointMismatchError, match=r"projection\.bias also needs patch_embed\.projection\.weight"):
        convert(bare, "vitdense")


def test_buffers_are_made_for_schemes_that_keep_them():
    state = kind("Swin")
    block = "layers.0.blocks.1.attn."
    made = convert(state, "official").state
    assert torch.equal(made[block + "relative_position_index"], relative_position_index((4, 4)))
    flat = convert(state, "torchvision").state["features.1.1.attn.relative_position_index"]
    assert torch.equal(flat, relative_position_index((4, 4)).flatten())
    assert not any("index" in key for key in convert(state, "timm").state)
    state = kind("Swin V2")
    with pytest.raises(CheckpointMismatchError, match="--window-size"):
        convert(state, "official")
    made = convert(state, "official", windows=[4, 4, 2], pretrained_windows=[0, 6, 0]).state
    assert made["layers.2.blocks.0.attn.relative_position_index"].shape == (4, 4)
    assert torch.equal(made["layers.1.blocks.0.attn.relative_coords_table"], log_spaced_offsets((4, 4), (6, 6)))
    assert torch.equal(made[block + "relative_coords_table"], log_spaced_offsets((4, 4), (4, 4)))
    with pytest.raises(CheckpointMismatchError, match="windows: got 2"):
        convert(state, "official", windows=[4, 4])


def test_attention_masks_are_left_out_of_schemes_without_them():
    state = convert(kind("Swin"), "official").state
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    assert convert(state, "official").state.keys() == state.keys()
    done = convert(state, "timm")
    assert "stages.0.blocks.1.attn_mask" in done.ignored
    assert "attn_mask" in str(done) or "attn.bias.index" in str(done)


def test_a_detector_is_converted_whole_to_schemes_of_detectors():
    state = {f"backbone.{key}": value for key, value in kind("dense Swin").items()}
    heads = {"neck.lateral_convs.0.conv.weight": torch.ones(1), "roi_head.fc.bias": torch.ones(2)}
    there = convert({"state_dict": state | heads, "meta": {}}, "mmdet")
    assert heads.keys() <= there.state.keys()
    assert "backbone.stages.0.blocks.0.attn.w_msa.qkv.weight" in there.state
    assert same(convert(there.state, "vitdense").state, state | heads)
    stripped = {key: value for key, value in (state | heads).items() if not key.startswith("backbone.norm")}
    alone = convert(stripped, "torchvision")
    assert alone.left_out == list(heads)
    assert "2 other tensors left out: neck" in str(alone)
    assert not any(key.startswith("backbone.") for key in alone.state)


@pytest.mark.parametrize(
    ("name", "prefix", "key"),
    [("ViTDet", "backbone.net.", "backbone.simfp_2.0.bias"), ("MViTv2 dense", "backbone.bottom_up.", "roi_heads.a")],
)
def test_whole_detectors_of_detectron2_keep_its_names_alone(name, prefix, key):
    state = convert(kind(name), "detectron2").state
    assert all(key.startswith(prefix) for key in state)
    head = {"roi_heads.box_head.fc1.bias": torch.ones(1), key: torch.ones(1)}
    whole = convert(state | head, "detectron2")
    assert whole.is_whole
    assert whole.state.keys() == (state | head).keys()
    alone = convert(state | head, "vitdense")  # no other project knows detectron2's heads
    assert alone.left_out == list(head)
    assert same(alone.state, convert(state, "vitdense").state)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_have_what_was_saved(tmp_path, suffix):
    done = convert(kind("Swin"), "mmdet")
    assert all(key.startswith("backbone.") for key in done.state)
    path = tmp_path / f"a{suffix}"
    save(done.state, path, done.scheme.wrapper, {"meta": {"classes": ["cat"]}})
    saved = read(path)
    if suffix == ".safetensors":
        assert same(load_file(path), done.state)
    else:
        assert saved["meta"] == {"classes": ["cat"]}
        saved = saved["state_dict"]
    assert same(saved, done.state)


def test_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.onnx"):
        save({"a": torch.ones(1)}, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_table_of_a_window_that_is_not_square_is_not_written_flat():
    """A table of 2x14 has as many rows as one of 5x5, and would be read as that."""
    state = swin(window_size=(2, 14)).state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"\(3, 27, 1\)"):
        convert(state, "official")
    assert same(convert(state, "vitdense").state, state)


class TestDetection:
    @pytest.mark.parametrize(
        ("name", "names"), [("Swin", ["mmdet", "mmpretrain"]), ("MViTv2 without token", ["mmpretrain"])]
    )
    def test_ambiguous_schemes_are_refused_and_prefix_decides(self, name, names):
        """mmpretrain's last norm is its classifier's; a dense backbone has an output norm of the same name."""
        state = convert(kind(name), "mmpretrain").state
        headless = {key: value for key, value in state.items() if not key.startswith("head")}
        with pytest.raises(CheckpointMismatchError, match=r"scheme=\.\.\., prefix=\.\.\.") as error:
            detect(headless)
        assert all(f"scheme='{name}' with prefix='backbone.'" in str(error.value) for name in names)
        assert "norm.weight" in detect(headless, prefix="").ours
        assert "norm3.weight" in detect(headless, prefix="backbone.").ours

    def test_official_positions_are_read_flat_and_as_a_map(self):
        """The authors' dense code and their classifier have the same key for them."""
        state = swin(absolute_position=True, pretrain_img_size=32).state_dict()
        trunk = {key: value for key, value in state.items() if not key.startswith("norm")}
        flat = convert(trunk | {"norm.weight": torch.ones(32), "norm.bias": torch.ones(32)}, "official").state
        assert flat["absolute_pos_embed"].shape == (1, 64, 8)
        dense = convert(state, "official").state
        assert dense["absolute_pos_embed"].shape == (1, 8, 8, 8)
        for theirs in (flat, dense):
            bare = {key: value for key, value in theirs.items() if not key.startswith("norm")}
            assert torch.equal(detect(bare).ours["absolute_pos_embed.table"], state["absolute_pos_embed.table"])

    def test_single_stage_without_merging_is_detected(self):
        state = Swin({"embed_dims": 8, "depths": (2,), "num_heads": (1,)}, out_indices=(0,), window_size=4).state_dict()
        for name in ("official", "mmdet", "vitdense"):
            assert same(convert(convert(state, name).state, "vitdense").state, state)

    def test_legacy_names_are_read_and_not_written(self):
        state = kind("Swin")
        old = convert(state, "mmpretrain").state
        for name in ("weight", "bias"):
            old[f"backbone.norm.{name}"] = old.pop(f"backbone.norm3.{name}")
        old["backbone.stages.0.blocks.1.attn.attn_mask"] = torch.zeros(4, 16, 16)
        assert detect(old).scheme.name == "mmpretrain"
        assert same(convert(old, "vitdense").state, state)
        assert convert(old, "mmpretrain").state.keys() == convert(state, "mmpretrain").state.keys()
        mmseg = convert(state, "mmdet").state | {"backbone.stages.0.blocks.1.attn_mask": torch.zeros(4, 16, 16)}
        assert same(convert(mmseg, "vitdense").state, state)

    def test_unknown_scheme_is_refused(self):
        with pytest.raises(CheckpointMismatchError, match="got 'keras', expected one of vitdense, official, timm"):
            detect(kind("Swin"), scheme="keras")
        with pytest.raises(CheckpointMismatchError, match=r"--to: got 'mmdet', expected one of .* swin_v2 family"):
            convert(kind("Swin V2"), "mmdet")
        for to in ("transformers_eomt", "transformers_lwdetr", "transformers_rfdetr"):  # only read
            with pytest.raises(CheckpointMismatchError, match=rf"--to: got '{to}', expected one of (?!.*{to}.* for)"):
                convert(kind("trunk"), to)

    def test_checkpoint_without_a_backbone_is_refused(self):
        alien = {"conv0.weight": torch.ones(1), "linear.bias": torch.ones(1)}
        with pytest.raises(CheckpointMismatchError, match=r"swin or swin_v2 or mvit or vit or .*family.*conv0\.weight"):
            detect(alien)
        for family in NAMING:
            with pytest.raises(CheckpointMismatchError, match=rf"nearest scheme is 'vitdense' of {family}\b"):
                detect(alien, [family])
