from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitdense import MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import SUFFIXES, convert, save
from vitdense.checkpoint.detect import detect
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.read import read
from vitdense.layers.bias import log_spaced_offsets, relative_position_index
from vitdense.models.registry import NAMING

ARCH = {"embed_dims": 8, "depths": (2, 1, 2), "num_heads": (1, 2, 4)}
MVIT_ARCH = {"embed_dims": 8, "depths": (1, 3, 2), "num_heads": 1}
VIT_ARCH = {"embed_dims": 192, "depth": 3, "num_heads": 3}
V1 = {
    "pool_all_queries": False,
    "relative_position": False,
    "absolute_position": True,
    "residual_pooling": False,
}
V1_MAX = {**V1, "pool": "max"}
MAKE = {
    "swin": lambda **options: Swin(ARCH, out_indices=(0, 1, 2), window_size=4, **options),
    "swin_v2": lambda **options: SwinV2(ARCH, out_indices=(0, 1, 2), window_size=4, **options),
    "mvit": lambda **arch: MViT({**MVIT_ARCH, **arch}, out_indices=(0, 1, 2), pretrain_img_size=32),
    "vit": lambda **options: ViT({**VIT_ARCH, **options.pop("arch", {})}, pretrain_img_size=64, **options),
}
NAMES = {family: list(dict.fromkeys(row.name for row in naming.schemes)) for family, naming in NAMING.items()}


def classifier(family):
    """A classification checkpoint by our names: no output norms, a norm and a head."""
    state = {key: torch.randn_like(v) for key, v in MAKE[family]().state_dict().items() if not key.startswith("norm")}
    shapes = {"norm.weight": (32,), "norm.bias": (32,), "head.weight": (10, 32), "head.bias": (10,)}
    return state | {key: torch.randn(shape) for key, shape in shapes.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "first", "second"), [(f, a, b) for f in ("swin", "swin_v2") for a in NAMES[f] for b in NAMES[f]]
)
def test_swin_round_trip_is_bit_equal(family, first, second):
    options = {"windows": [4]}
    original = convert(classifier(family), first, **options)
    assert original.match.scheme.name == "vitdense"
    there = convert(original.state, second, **options)
    assert there.match.scheme.name == first
    back = convert({"model": there.state}, first, **options)
    assert back.match.scheme.name == second
    assert same(back.state, original.state)


EXTRAS = {  # what a checkpoint of an MViT may have in addition to the trunk
    "classifier": {"norm.weight": (32,), "norm.bias": (32,), "head.weight": (10, 32), "head.bias": (10,)},
    "class token": {"tokens.cls_token": (1, 1, 8)},
    "its position": {"tokens.cls_position": (1, 1, 8)},  # of v1
    "output norms": {},  # they have the names of our backbone
}
KEEPS = {  # what every form of every scheme keeps of it
    "vitdense": [set(EXTRAS)],
    "official": [{"classifier", "class token", "its position"}],
    "timm": [{"classifier", "class token", "its position"}],
    "detectron2": [{"output norms", "its position"}],
    "mmpretrain": [{"classifier"}, {"output norms"}],
}


def mvit_state(parts, **arch):
    """A checkpoint by our names with the parts named."""
    state = MAKE["mvit"](**arch).state_dict()
    if "output norms" not in parts:
        state = {key: value for key, value in state.items() if not key.startswith("norm")}
    shapes = {key: shape for part in parts for key, shape in EXTRAS[part].items()}
    return {key: torch.randn(value.shape) for key, value in state.items()} | {
        k: torch.randn(s) for k, s in shapes.items()
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "arch",
    [{}, {"growth": "mlp"}, {"growth": "mlp", **V1_MAX}, {"growth": "mlp", **V1}],
    ids=["attention", "mlp", "v1, max", "v1"],
)
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in NAMES["mvit"] for b in NAMES["mvit"]])
def test_mvit_round_trip_is_bit_equal(first, second, arch):
    parts = max((a & b for a in KEEPS[first] for b in KEEPS[second]), key=len)
    if "absolute_position" not in arch:
        parts = parts - {"its position"}
    state = mvit_state(parts, **arch)
    original = convert(state, first)
    assert original.match.scheme.name == "vitdense"
    there = convert({"model_state": original.state}, second)
    # detectron2's trunk has the authors' names: where its norms are missing, it is taken for theirs.
    trunk_alone = first == "detectron2" and "output norms" not in parts
    assert there.match.scheme.name == ("official" if trunk_alone else first)
    back = convert(there.state, first)
    assert same(back.state, original.state)
    assert same(convert(there.state, "vitdense").state, state)


@pytest.mark.parametrize(("first", "part"), [("mmpretrain", "class token"), ("detectron2", "classifier")])
def test_mvit_tensor_without_a_name_is_refused(first, part):
    key = next(iter(EXTRAS[part])).replace(".", r"\.")
    with pytest.raises(CheckpointMismatchError, match=rf"the {first} scheme .* has no names for .*{key}"):
        convert(mvit_state({"classifier", part}), first)


@pytest.mark.parametrize(
    ("growth", "blocks", "numbers"),
    [("attention", ["1.blocks.0", "2.blocks.0"], [1, 4]), ("mlp", ["0.blocks.0", "1.blocks.2"], [0, 3])],
)
def test_timm_skip_projection_is_named_by_branch(growth, blocks, numbers):
    state = mvit_state(set(), growth=growth)
    branch = {"attention": "attn", "mlp": "mlp"}[growth]
    found = {key for key in convert(state, "timm").state if "shortcut" in key and key.endswith(".weight")}
    assert found == {f"stages.{block}.shortcut_proj_{branch}.weight" for block in blocks}
    assert {f"blocks.{n}.proj.weight" for n in numbers} <= convert(state, "official").state.keys()


def test_3d_convolutions_over_one_frame_become_2d():
    state = mvit_state({"classifier"})
    videos = {key: x[:, :, None] if x.ndim == 4 else x for key, x in convert(state, "official").state.items()}
    assert sum(x.ndim == 5 for x in videos.values()) == 1 + 6 * 3
    assert same(convert(videos, "vitdense").state, state)


MVIT_FAULTS = {  # how a checkpoint is damaged, and what the error names
    "a block is missing": (lambda s: [s.pop(k) for k in list(s) if k.startswith("blocks.2.")], r"blocks\.2\."),
    "no attention weights": (
        lambda s: [s.pop(k) for k in list(s) if k.endswith("qkv.weight")],
        r"blocks\.0\.attn\.qkv\.weight",
    ),
    "a scalar": (
        lambda s: s.update({"blocks.1.attn.qkv.weight": torch.ones(())}),
        r"blocks\.1\.attn\.qkv\.weight",
    ),
    "positions of no square": (
        lambda s: s.update({"pos_embed": torch.ones(1, 7, 8)}),
        r"position embedding has shape \(1, 7, 8\)",
    ),
    "positions of one axis": (
        lambda s: s.update({"pos_embed": torch.ones(7)}),
        r"position embedding has shape \(7,\)",
    ),
}


@pytest.mark.parametrize("what", MVIT_FAULTS)
def test_incomplete_or_malformed_mvit_is_refused(what):
    state = convert(mvit_state({"classifier"}), "official").state
    damage, message = MVIT_FAULTS[what]
    damage(state)
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(state, "timm")


def test_timm_skip_projection_needs_qkv_weight():
    state = mvit_state({"classifier"})
    state.pop("stages.1.blocks.0.attn.qkv.weight")
    with pytest.raises(CheckpointMismatchError, match=r"stages\.1\.blocks\.0\.attn\.qkv\.weight"):
        convert(state, "timm")


# What a checkpoint of a plain ViT may have: options of the model with it, and further tensors.
VIT_PARTS = {
    "class token": ({}, {}),  # and its position
    "distillation": (
        {"arch": {"distilled": True}},
        {"head_dist.weight": (10, 192), "head_dist.bias": (10,)},
    ),
    "no positions of tokens": ({"arch": {"token_position": False}}, {}),
    "layer scale": ({"arch": {"layer_scale": 1.0}}, {}),
    "relative": ({"window_size": 2, "relative_position": True, "img_size": 64}, {"tokens.cls_position": (1, 1, 192)}),
    "registers": ({"arch": {"registers": 2}}, {}),
    "no key bias": ({"arch": {"qkv_bias": "no_key"}}, {}),
    "swiglu": ({"arch": {"ffn": "swiglu", "ffn_dims": 24}}, {}),
    "swiglu, norm": ({"arch": {"ffn": "swiglu_norm", "ffn_dims": 24}}, {}),
    "norm before blocks": ({"arch": {"pre_norm": True}}, {}),
    "no class token": ({"arch": {"class_token": False}}, {}),
    "attention pooling": ({}, {"attn_pool.probe": (1, 1, 192)}),
    "mask token": ({}, {"mask_token": (1, 192)}),
    "windows": ({"window_size": 2}, {"tokens.cls_position": (1, 1, 192)}),
    "output norms": ({"out_norm": "each"}, {}),
    "norm": ({}, {"norm.weight": (192,), "norm.bias": (192,)}),
    "head": ({}, {"head.weight": (10, 192), "head.bias": (10,)}),
    "pooled": ({}, {"fc_norm.weight": (192,), "fc_norm.bias": (192,)}),
    "pre-logits": ({}, {"pre_logits.weight": (192, 192), "pre_logits.bias": (192,)}),
    "decoder": (
        {},
        {
            **{"mask_token": (1, 1, 32), "decoder_pos_embed": (1, 17, 32), "decoder_blocks.1.norm1.weight": (32,)},
            **{"decoder_embed.weight": (32, 192), "decoder_norm.bias": (32,), "decoder_pred.bias": (768,)},
        },
    ),
}
FOUNDATION = {
    *("registers", "no key bias", "swiglu", "swiglu, norm", "norm before blocks", "no class token"),
    "attention pooling",
}
VIT_KEEPS = {  # what every form of every scheme keeps of it
    "vitdense": [set(VIT_PARTS)],
    "official": [
        set(VIT_PARTS) - FOUNDATION - {"relative", "output norms", "pre-logits", "windows"},
    ],
    "timm": [
        {"class token", "distillation", "no positions of tokens", "layer scale", "norm", "head", "pooled"},
        {"class token", "layer scale", "swiglu", "norm"},
    ]
    + [{"class token", "no key bias", swiglu, "pooled", "head"} for swiglu in ("swiglu", "swiglu, norm")]
    + [{"windows", "no key bias", "swiglu, norm"}, {"class token", "layer scale", "norm before blocks"}]
    + [{"no class token", "norm", "attention pooling"}],
    "mmseg": [{"class token", "no positions of tokens", "norm"}],
    "mmpretrain": [
        {"class token", "distillation", "no positions of tokens", "layer scale", "norm", "head", "pooled", "pre-logits"}
    ],
    "detectron2": [{"relative"}, {"windows", "no key bias", "swiglu, norm"}],
    "dinov2": [{"class token", "layer scale", "norm", "mask token", "registers", "swiglu"}],
    "dinov3": [],
    "eomt_dinov3": [],
    "transformers_eomt": [],
    "transformers_lwdetr": [],
    "transformers_rfdetr": [],
    "transformers": [
        {"class token", "layer scale", "norm", "mask token", "registers", "swiglu"},
        {"no class token", "norm", "attention pooling"},
    ],
    "perception": [{"class token", "layer scale", "norm before blocks"}],
}
VIT_KINDS = {  # of checkpoints, by what they have
    "a ViT": {"class token", "norm", "head"},
    "a ViT with pre-logits": {"class token", "norm", "head", "pre-logits"},
    "a backbone": {"class token"},
    "a backbone with its norm": {"class token", "norm"},
    "a distilled DeiT": {"class token", "distillation", "norm", "head"},
    "a DeiT III": {"class token", "no positions of tokens", "layer scale", "norm", "head"},
    "an MAE": {"class token", "norm", "decoder"},
    "a fine-tuned MAE": {"class token", "pooled", "head"},
    "a ViTDet": {"relative"},
    "a DINOv2": {"class token", "layer scale", "norm", "mask token"},
    "a DINOv2 with registers": {"class token", "layer scale", "norm", "mask token", "registers"},
    "a large DINOv2 without its mask token": {"class token", "layer scale", "norm", "swiglu"},
    "a PE": {"class token", "norm before blocks"},
    "a SigLIP": {"no class token", "norm", "attention pooling"},
    "a small EVA-02": {"class token", "no key bias", "swiglu", "pooled", "head"},
    "an EVA-02": {"class token", "no key bias", "swiglu, norm", "pooled", "head"},
    "a detector's EVA-02": {"windows", "no key bias", "swiglu, norm"},
    "ours for dense work": {"class token", "output norms"},
}


def vit_state(parts, out_norm="none"):
    """A checkpoint by our names with the parts named."""
    options, extra = {"out_norm": out_norm, "arch": {}}, {}
    for part in parts:
        of_model, of_file = VIT_PARTS[part]
        options |= {**of_model, "arch": options["arch"] | of_model.get("arch", {})}
        extra |= of_file
    with torch.device("meta"):  # drawn below
        model = MAKE["vit"](**options)
    state = {
        key: torch.randn(x.shape) if x.is_floating_point() else torch.tensor(7) for key, x in model.state_dict().items()
    }
    return state | {key: torch.randn(shape) for key, shape in extra.items()}


def keeps(scheme, kind):
    if scheme == "perception" and "norm before blocks" not in VIT_KINDS[kind]:  # its files have that norm
        return False
    return any(VIT_KINDS[kind] <= parts for parts in VIT_KEEPS[scheme])


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [(k, a, b) for k in VIT_KINDS for a in NAMES["vit"] for b in NAMES["vit"] if keeps(a, k) and keeps(b, k)],
)
def test_vit_round_trip_is_bit_equal(kind, first, second):
    state = vit_state(VIT_KINDS[kind])
    original = convert(state, first)
    assert original.match.scheme.name == "vitdense"
    there = convert({"model": original.state}, second)
    # Without LayerScale, the authors', timm's and detectron2's names are the same.
    assert there.match.scheme.name in (first, "official" if first in ("timm", "detectron2", "dinov2") else first)
    back = convert(there.state, first)
    assert same(back.state, original.state)
    assert same(convert(there.state, "vitdense").state, state)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "scheme"), [(kind, scheme) for kind in VIT_KINDS for scheme in NAMES["vit"] if not keeps(scheme, kind)]
)
def test_vit_tensor_without_a_name_is_refused(kind, scheme):
    refusal = (
        rf"the {scheme} scheme of the vit family has no names for|files with {scheme} names have keys such as"
        rf"|--to: got '{scheme}'"  # only read
    )
    with pytest.raises(CheckpointMismatchError, match=refusal):
        convert(vit_state(VIT_KINDS[kind]), scheme)


@pytest.mark.parametrize(
    ("kind", "scheme", "left"),
    [
        ("a ViT", "mmseg", {"head.weight", "head.bias"}),
        ("an MAE", "mmpretrain", set(VIT_PARTS["decoder"][1])),
        ("a ViT", "detectron2", {"tokens.cls_token", "norm.weight", "norm.bias", "head.weight", "head.bias"}),
    ],
)
def test_classifier_can_be_left_out(kind, scheme, left):
    state = vit_state(VIT_KINDS[kind])
    with pytest.raises(CheckpointMismatchError, match="--drop-classifier"):
        convert(state, scheme)
    done = convert(state, scheme, drop_classifier=True)
    assert set(done.left_out) == left
    assert f"{len(left)} other tensors left out" in str(done)
    assert same(convert(done.state, "vitdense").state, {key: x for key, x in state.items() if key not in left})


def test_distillation_token_is_never_left_out_of_a_scheme_with_tokens():
    state = vit_state(VIT_KINDS["a distilled DeiT"])
    with pytest.raises(CheckpointMismatchError, match=r"no names for 2 tensors: tokens\.dist_token, tokens\.dist_pos"):
        convert(state, "mmseg", drop_classifier=True)


def test_missing_patch_bias_of_mmseg_is_zero():
    state = convert(vit_state({"class token"}), "mmseg").state
    bare = {key: value for key, value in state.items() if key != "patch_embed.projection.bias"}
    ours = convert(bare, "vitdense").state
    assert torch.equal(ours["patch_embed.proj.bias"], torch.zeros(192))
    assert same(convert(ours, "mmseg").state, bare)
    bare.pop("patch_embed.projection.weight")
    bare["patch_embed.projection.bias"] = torch.ones(192)
    with pytest.raises(CheckpointMismatchError, match=r"projection\.bias also needs patch_embed\.projection\.weight"):
        convert(bare, "vitdense")


def test_plain_vit_is_not_detected_as_mvit():
    """An MViT may have all its keys; but some block of an MViT pools, or changes its width."""
    for parts in ({"class token"}, {"class token", "norm"}, {"relative"}):
        names = "detectron2" if "relative" in parts else "official"
        state = convert(vit_state(parts), names).state
        assert detect(state).family == "vit"
        with pytest.raises(CheckpointMismatchError, match="expected a checkpoint of the mvit family, got one of vit"):
            detect(state, ["mvit"])
    assert detect(convert(mvit_state(set(), growth="mlp", **V1), "official").state).family == "mvit"


DENSE = {
    "swin": ("official", "mmdet"),
    "swin_v2": ("official", "mmpretrain"),
    "mvit": ("detectron2", "mmpretrain"),
}


@pytest.mark.parametrize("family", DENSE)
def test_dense_backbones_keep_their_output_norms(family):
    state = {key: torch.randn_like(value) for key, value in MAKE[family]().state_dict().items()}
    for to in (*DENSE[family], "vitdense"):
        there = convert(state, to, windows=[4])
        assert any(key.endswith(("norm0.weight", "scale2_norm.weight")) for key in there.state)
        assert same(convert(there.state, "vitdense").state, state)
    message = r"timm scheme.*no names for 6 tensors: norm0\.weight.*--drop-output-norms"
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(state, "timm")


def test_buffers_are_made_for_schemes_that_keep_them():
    state = classifier("swin")
    block = "layers.0.blocks.1.attn."
    made = convert(state, "official").state
    assert torch.equal(made[block + "relative_position_index"], relative_position_index((4, 4)))
    flat = convert(state, "torchvision").state["features.1.1.attn.relative_position_index"]
    assert torch.equal(flat, relative_position_index((4, 4)).flatten())
    assert not any("index" in key for key in convert(state, "timm").state)
    state = classifier("swin_v2")
    with pytest.raises(CheckpointMismatchError, match="--window-size"):
        convert(state, "official")
    made = convert(state, "official", windows=[4, 4, 2], pretrained_windows=[0, 6, 0]).state
    assert made["layers.2.blocks.0.attn.relative_position_index"].shape == (4, 4)
    assert torch.equal(made["layers.1.blocks.0.attn.relative_coords_table"], log_spaced_offsets((4, 4), (6, 6)))
    assert torch.equal(made[block + "relative_coords_table"], log_spaced_offsets((4, 4), (4, 4)))
    with pytest.raises(CheckpointMismatchError, match="windows: got 2"):
        convert(state, "official", windows=[4, 4])


def test_attention_masks_are_left_out_of_schemes_without_them():
    state = convert(classifier("swin"), "official").state
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    assert convert(state, "official").state.keys() == state.keys()
    done = convert(state, "timm")
    assert "stages.0.blocks.1.attn_mask" in done.dropped
    assert "attn_mask" in str(done) or "attn.bias.index" in str(done)


def test_detector_stays_whole_in_schemes_of_detectors():
    state = {f"backbone.{key}": value for key, value in MAKE["swin"]().state_dict().items()}
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


def test_prefixes_of_mmdet_and_detectron2_are_written():
    assert all(key.startswith("backbone.") for key in convert(classifier("swin"), "mmdet").state)
    head = {"roi_heads.box_head.fc1.bias": torch.ones(1)}
    state = convert(vit_state({"relative"}), "detectron2").state
    assert all(key.startswith("backbone.net.") for key in state)
    head["backbone.simfp_2.0.bias"] = torch.ones(1)
    whole = convert(state | head, "detectron2")
    assert whole.state.keys() == (state | head).keys()
    assert whole.is_whole
    assert convert(state | head, "vitdense").left_out == list(head)
    del head["backbone.simfp_2.0.bias"]
    state = convert(mvit_state({"output norms"}), "detectron2").state
    assert all(key.startswith("backbone.bottom_up.") for key in state)
    assert "backbone.bottom_up.scale2_norm.weight" in state
    assert convert(state | head, "detectron2").state.keys() == (state | head).keys()
    alone = convert(state | head, "vitdense")  # no other project knows detectron2's heads
    assert "norm0.weight" in alone.state
    assert alone.left_out == list(head)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_written_atomically(tmp_path, monkeypatch, suffix):
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

    def write_a_little(file, content):
        with file.open("wb") as opened:
            opened.write(bytes(content)[:3])
        started.append(file)
        raise OSError("the disk is full")

    started = []
    monkeypatch.setattr(Path, "write_bytes", write_a_little)
    with pytest.raises(OSError, match="disk"):
        save({"a": torch.ones(1)}, path)
    assert len(started) == 1
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.onnx"):
        save({"a": torch.ones(1)}, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_table_of_a_window_that_is_not_square_is_not_written_flat():
    """A table of 2x14 has as many rows as one of 5x5, and would be read as that."""
    state = Swin(ARCH, out_indices=(0, 1, 2), window_size=(2, 14)).state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"\(3, 27, 1\)"):
        convert(state, "official")
    assert same(convert(state, "vitdense").state, state)


def test_output_norms_can_be_left_out():
    state = MAKE["swin"]().state_dict()
    done = convert(state, "timm", drop_output_norms=True)
    assert same(convert(done.state, "vitdense").state, {k: v for k, v in state.items() if not k.startswith("norm")})


class TestDetection:
    def test_similar_schemes_are_distinguished(self):
        state = classifier("swin")
        for name in NAMES["swin"]:
            assert detect(convert(state, name).state).scheme.name == name

    @pytest.mark.parametrize(
        ("state", "names"),
        [(classifier("swin"), ["mmdet", "mmpretrain"]), (mvit_state({"classifier"}), ["mmpretrain"])],
    )
    def test_ambiguous_schemes_are_refused_and_prefix_decides(self, state, names):
        """mmpretrain's last norm is that of its classifier; a dense backbone has an output norm of the same name."""
        state = convert(state, "mmpretrain").state
        headless = {key: value for key, value in state.items() if not key.startswith("head")}
        with pytest.raises(CheckpointMismatchError, match=r"scheme=\.\.\., prefix=\.\.\.") as error:
            detect(headless)
        assert all(f"scheme='{name}' with prefix='backbone.'" in str(error.value) for name in names)
        assert "norm.weight" in detect(headless, prefix="").ours
        assert "norm3.weight" in detect(headless, prefix="backbone.").ours

    def test_official_positions_are_read_flat_and_as_a_map(self):
        """The authors' dense code and their classifier have the same key for them."""
        state = MAKE["swin"](absolute_position=True, pretrain_img_size=32).state_dict()
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
        state = classifier("swin")
        old = convert(state, "mmpretrain").state
        for name in ("weight", "bias"):
            old[f"backbone.norm.{name}"] = old.pop(f"backbone.norm3.{name}")
        old["backbone.stages.0.blocks.1.attn.attn_mask"] = torch.zeros(4, 16, 16)
        assert detect(old).scheme.name == "mmpretrain"
        assert same(convert(old, "vitdense").state, state)
        assert convert(old, "mmpretrain").state.keys() == convert(state, "mmpretrain").state.keys()
        mmseg = convert(state, "mmdet").state | {"backbone.stages.0.blocks.1.attn_mask": torch.zeros(4, 16, 16)}
        assert same(convert(mmseg, "vitdense").state, state)

    def test_two_schemes_that_agree_are_not_ambiguous(self):
        trunk = {key: v for key, v in classifier("swin").items() if not key.startswith(("norm", "head"))}
        assert detect(convert(trunk, "official").state).scheme.name == "official"

    def test_unknown_scheme_is_refused(self):
        with pytest.raises(CheckpointMismatchError, match="got 'keras', expected one of vitdense, official, timm"):
            detect(classifier("swin"), scheme="keras")
        with pytest.raises(CheckpointMismatchError, match=r"--to: got 'mmdet', expected one of .* swin_v2 family"):
            convert(classifier("swin_v2"), "mmdet")

    @pytest.mark.parametrize("to", ["transformers_eomt", "transformers_lwdetr", "transformers_rfdetr"])
    def test_names_that_are_only_read_are_not_offered(self, to):
        with pytest.raises(CheckpointMismatchError, match=rf"--to: got '{to}', expected one of (?!.*{to}.* for)"):
            convert(vit_state({"class token", "layer scale", "norm"}), to)

    def test_checkpoint_without_a_backbone_is_refused(self):
        with pytest.raises(CheckpointMismatchError, match=r"swin or swin_v2 or mvit or vit or .*family.*conv0\.weight"):
            detect({"conv0.weight": torch.ones(1), "linear.bias": torch.ones(1)})

    @pytest.mark.parametrize("family", NAMING)
    def test_nearest_scheme_is_of_the_wanted_family(self, family):
        with pytest.raises(CheckpointMismatchError, match=rf"nearest scheme is 'vitdense' of {family}\b"):
            detect({"conv0.weight": torch.ones(1), "linear.bias": torch.ones(1)}, [family])
