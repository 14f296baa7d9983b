"""DINOv2, DINOv3 and EVA-02: golden files of the authors' code (DINOv3: of transformers and timm), and refusals."""

import re
from dataclasses import asdict

import pytest
import timm
import torch
from conftest import add_row, assert_same_tensors, of_prefix, relative_error, timm_since
from torch import nn

from vitdense import ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import LoadReport
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.rename import rename, reverse
from vitdense.checkpoint.whole_models import DETECTOR, fit_whole
from vitdense.errors import OptionError
from vitdense.models.vit.sizes import VIT
from vitdense.necks import DeconvPyramid


def dinov2(config):
    registers, dim = config["num_register_tokens"], config["embed_dim"]
    swiglu = config["ffn_layer"] != "mlp"
    return {
        "embed_dims": dim,
        "depth": config["depth"],
        "num_heads": config["num_heads"],
        "patch_size": config["patch_size"],
        "layer_scale": config["init_values"],
        "registers": registers,
        "position_rule": "antialias" if config["interpolate_antialias"] else "dinov2",
        "ffn": "swiglu" if swiglu else "mlp",
        "ffn_dims": (int(4 * dim * 2 / 3) + 7) // 8 * 8 if swiglu else 4 * dim,
    }, {"pretrain_img_size": config["img_size"]}


DINOV3 = {
    "layer_scale": 1.0,
    "registers": 4,
    "norm_eps": 1e-5,
    "token_position": False,
    "absolute_position": False,
    "rope": "dinov3",
}


def dinov3_transformers(config):
    return {
        **DINOV3,
        "embed_dims": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "qkv_bias": "no_key",
        "ffn": "swiglu" if config["use_gated_mlp"] else "mlp",
        "ffn_dims": config["intermediate_size"],
    }, {}


def dinov3_timm(config):
    align = config.get("swiglu_align_to", 1)
    return {
        **DINOV3,
        "embed_dims": config["embed_dim"],
        "depth": config["depth"],
        "num_heads": config["num_heads"],
        "qkv_bias": "no_key" if config["qkv_bias"] else "none",
        "ffn": "swiglu" if config.get("swiglu_mlp") else "mlp",
        "ffn_dims": -(-int(config["embed_dim"] * config.get("mlp_ratio", 4)) // align) * align,
    }, {}


def eva02(config):
    net = config["net"]
    windows = net["window_block_indexes"]
    sizes = {"embed_dims": net["embed_dim"], "depth": net["depth"], "num_heads": net["num_heads"]}
    return {
        **sizes,
        "qkv_bias": "no_key",
        "rope": "eva02",
        "ffn": "swiglu_norm",
        "ffn_dims": int(net["embed_dim"] * 8 / 3),
    }, {
        "window_size": net["window_size"],
        "global_indices": [i for i in range(net["depth"]) if i not in windows],
        "pretrain_img_size": net["pretrain_img_size"],
    }


GOLDEN = {  # our model, and the naming scheme
    "dinov2_plain": (dinov2, "dinov2"),
    "dinov2_reg4": (dinov2, "dinov2"),
    "dinov2_swiglu": (dinov2, "dinov2"),
    "dinov3_transformers_mlp": (dinov3_transformers, "transformers"),
    "dinov3_transformers_swiglu": (dinov3_transformers, "transformers"),
    "dinov3_timm": (dinov3_timm, "timm"),
    "dinov3_timm_qkvb_swiglu": (dinov3_timm, "timm"),
    "eva02_det": (eva02, "detectron2"),
    "eva02_det_windowed": (eva02, "detectron2"),
}


@torch.no_grad()
def outputs_of(model, x, like):
    h, w = (side // model.arch.patch_size for side in x.shape[2:])
    found = {}
    for kind, is_raw in (("norm", False), ("raw", True)):
        norm, model.norm = model.norm, None if is_raw else model.norm
        outs = [out if isinstance(out, tuple) else (out, None) for out in model(x)]
        model.norm = norm
        for i, (out, token) in enumerate(outs):
            found |= {f"{kind}/block{i}/map": out, f"{kind}/block{i}/cls": token}
            if is_raw:
                found |= {f"block{i}": out.permute(0, 2, 3, 1), f"hidden_states/{i + 1}": out, "last_feat": out}
            else:
                found |= {"last_hidden_state": out, "final": out}
    pairs = {name: (found[name], value) for name, value in like.items() if found.get(name) is not None}
    return {
        name: (got, want[:, -h * w :].transpose(1, 2).unflatten(2, (h, w)) if want.ndim == 3 else want)
        for name, (got, want) in pairs.items()
    }


def golden_model(name, golden_file):
    config, tensors = golden_file(name)
    make, scheme = GOLDEN[name]
    state = of_prefix(tensors, "weight/")
    options = {"out_norm": "shared", "output_cls_token": True}
    if scheme == "detectron2":  # of the file with a pyramid, the trunk
        state = of_prefix(state, "net.") or state
        state, options = {f"backbone.net.{key}": value for key, value in state.items()}, {"out_norm": "none"}
    arch, sizes = make(config)
    return ViT(arch, out_indices=range(arch["depth"]), **options, **sizes).eval(), state, tensors


@pytest.mark.parametrize("name", GOLDEN)
def test_outputs_and_weights_equal_the_golden_files(name, golden_file):
    model, state, tensors = golden_model(name, golden_file)
    report, scheme = load_pretrained(model, state), GOLDEN[name][1]
    assert report.scheme == scheme
    assert report.kept_at_init == ["rope.periods"] * name.startswith("dinov3")  # not in these files, and said
    errors = {}
    for case, x in of_prefix(tensors, "input/").items():
        for key, pair in outputs_of(model, x, of_prefix(tensors, f"output/{case}/")).items():
            errors[case, key] = relative_error(*pair)
    assert len(errors) >= {"eva02_det": 1}.get(name, len(model.blocks))
    assert max(errors.values()) < 1e-5, errors
    assert_same_tensors(convert(convert(state, "vitdense").state, scheme).state, state)
    add_row("vit", scheme, f"golden {name}", [max(errors.values())], report.share, "bit-equal")


@torch.no_grad()
def test_pyramid_of_an_eva02_detector_equals_the_golden_file(golden_file):
    """Trunk and pyramid from one file of a detector, as a config's `load_from` reads it."""
    config, tensors = golden_file("eva02_det")
    trunk, _, _ = golden_model("eva02_det", golden_file)
    neck = DeconvPyramid(trunk.arch.embed_dims, out_channels=config["pyramid"]["out_channels"], num_outs=5)
    detector = nn.ModuleDict({"backbone": trunk, "neck": neck}).eval()
    file = {f"backbone.{key}": value for key, value in of_prefix(tensors, "weight/").items()}
    state, report = fit_whole(detector, {"model": file})
    assert report.share == 1
    detector.load_state_dict(state)
    outs = neck(trunk(tensors["input/native"])[-1:])
    wanted = [tensors[f"output/native/p{i}"] for i in range(2, 7)]
    errors = [relative_error(*pair) for pair in zip(outs, wanted, strict=True)]
    assert max(errors) < 1e-5, errors
    back = rename({key: value for key, value in state.items() if key.startswith("neck.")}, reverse(DETECTOR))
    assert_same_tensors(back, {key: x for key, x in file.items() if "simfp_" in key})
    add_row("vit", "detectron2", "golden eva02_det, pyramid", errors, report.share, "bit-equal")


@pytest.mark.parametrize("options", [{"window_size": 5}, {"global_indices": [3]}])
def test_other_windows_than_an_eva02_detectors_are_refused(options, golden_file):
    model, state, _ = golden_model("eva02_det", golden_file)
    theirs = {"window_size": 4, "global_indices": [1, 3], "pretrain_img_size": 96}
    other = ViT(asdict(model.arch), **{**theirs, **options})
    with pytest.raises(CheckpointMismatchError, match="set window_size and global_indices"):
        load_pretrained(other, state)
    state.pop(next(key for key in state if key.endswith("rope_glb.freqs_cos")))
    with pytest.raises(CheckpointMismatchError, match="set window_size and global_indices"):
        load_pretrained(model, state)


DINOV3_NANO = {**DINOV3, "embed_dims": 32, "depth": 2, "num_heads": 2, "qkv_bias": "no_key"}


def dinov3_file(swiglu=False):
    """As the authors' of a DINOv3: its names written out. Periods are rounded; the bias of keys is not zero."""
    dim, hidden = 32, 40
    block = {
        **{f"norm{i}.{x}": (dim,) for i in (1, 2) for x in ("weight", "bias")},
        **{"attn.qkv.weight": (3 * dim, dim), "attn.qkv.bias": (3 * dim,)},
        **{"attn.proj.weight": (dim, dim), "attn.proj.bias": (dim,), "ls1.gamma": (dim,), "ls2.gamma": (dim,)},
    }
    layers = {"w1": (hidden, dim), "w2": (hidden, dim), "w3": (dim, hidden)}
    for name, shape in (layers if swiglu else {"fc1": (hidden, dim), "fc2": (dim, hidden)}).items():
        block |= {f"mlp.{name}.weight": shape, f"mlp.{name}.bias": shape[:1]}
    shapes = {
        **{"cls_token": (1, 1, dim), "storage_tokens": (1, 4, dim), "mask_token": (1, dim)},
        **{"patch_embed.proj.weight": (dim, 3, 16, 16), "patch_embed.proj.bias": (dim,)},
        **{f"blocks.{i}.{name}": shape for i in range(2) for name, shape in block.items()},
        **{f"{norm}.{x}": (dim,) for norm in ("norm", "local_cls_norm") for x in ("weight", "bias")},
    }
    state = {name: (2 if "qkv.weight" in name else 0.3) * torch.randn(shape) for name, shape in shapes.items()}
    for i in range(2):
        state[f"blocks.{i}.attn.qkv.bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(dim)
    return state | {"rope_embed.periods": (100 ** (torch.arange(4) / 4)).bfloat16()}


def dinov3_nano(swiglu=False):
    arch = {**DINOV3_NANO, "ffn_dims": 40, "ffn": "swiglu" if swiglu else "mlp"}
    return ViT(arch, out_norm="shared").eval()


@pytest.mark.parametrize("swiglu", [False, True])
def test_the_authors_dinov3_loads_with_its_periods_and_without_the_bias_of_keys(swiglu):
    state, model, image = dinov3_file(swiglu), dinov3_nano(swiglu), torch.randn(1, 3, 64, 96)
    report = load_pretrained(model, state)
    assert (report.scheme, report.share) == ("dinov3", 1)
    assert set(report.ignored) == {"mask_token", "local_cls_norm.weight", "local_cls_norm.bias"}
    assert torch.equal(model.rope.periods, state["rope_embed.periods"].float())
    with torch.no_grad():
        got = model(image)[-1]
        model.rope.periods = 100 ** (torch.arange(4) / 4)
        assert relative_error(model(image)[-1], got) > 1e-5  # a formula gives others
    without = {key: x.clone() for key, x in state.items()}
    for key in without:
        if key.endswith("qkv.bias"):
            without[key][32:64] = 0
    back = convert(convert(state, "vitdense").state, "dinov3").state
    assert_same_tensors(back, without)  # what has no effect is written as zero
    other = dinov3_nano(swiglu)
    load_pretrained(other, back)
    with torch.no_grad():
        assert torch.equal(other(image)[-1], got)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        *(
            ({"blocks.1.attn.qkv.bias_mask": torch.full((96,), value)}, r"bias_mask: expected 1 .* NaN in a model")
            for value in (float("nan"), 1.0, 0.0)
        ),
        ({"mask_token": torch.ones(1, 32), "norm.weight": torch.full((32,), float("inf"))}, "NaN or infinity"),
    ],
)
def test_values_that_a_dinov3_cannot_have_are_refused(changed, named):
    with pytest.raises(CheckpointMismatchError, match=named):
        load_pretrained(dinov3_nano(), dinov3_file() | changed)


def test_periods_of_the_authors_cannot_be_made_up():
    ours = convert(dinov3_file(), "vitdense").state
    for scheme in ("transformers", "timm"):
        left = {key: x for key, x in ours.items() if key not in ("mask_token", "local_cls_norm.weight")}
        left.pop("local_cls_norm.bias")
        done = convert(left, scheme)
        assert done.ignored == ["rope.periods"]
        report = load_pretrained(model := dinov3_nano(), done.state)
        assert (report.scheme, report.kept_at_init) == (scheme, ["rope.periods"])
        assert torch.equal(model.blocks[0].attn.qkv.qv_bias, ours["blocks.0.attn.qkv.qv_bias"])
        with pytest.raises(CheckpointMismatchError, match="periods"):
            convert(done.state, "dinov3")


def test_timms_files_without_biases_have_zero_ones():
    done = convert(
        {key: x for key, x in convert(dinov3_file(), "vitdense").state.items() if "qv_bias" not in key}
        | {"blocks.0.gamma_1": torch.ones(32)},
        "timm",
        drop_classifier=True,
    )
    report = load_pretrained(model := dinov3_nano(), done.state)
    assert report.kept_at_init == ["rope.periods", *(f"blocks.{i}.attn.qkv.qv_bias" for i in range(2))]
    assert not any(block.attn.qkv.qv_bias.any() for block in model.blocks)


def test_transformers_5_names_in_memory_are_read():
    ours = convert(dinov3_file(True), "vitdense").state
    state = convert(ours, "transformers", drop_classifier=True).state
    assert "layer.1.mlp.gate_proj.weight" in state
    renamed = {f"model.{key}" if key.startswith("layer.") else key: x for key, x in state.items()}
    for file in (state, renamed):
        assert load_pretrained(model := dinov3_nano(True), file).scheme == "transformers"
        assert torch.equal(model.blocks[1].mlp.w12.weight, ours["blocks.1.mlp.w12.weight"])


DINOV2_NANO = {"embed_dims": 32, "depth": 2, "num_heads": 2, "layer_scale": 1.0, "registers": 2, "patch_size": 14}


def dinov2_nano():
    model = ViT(DINOV2_NANO, pretrain_img_size=56, out_norm="shared")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.eval()


@pytest.mark.parametrize("rule", ["dinov2", "antialias"])
def test_positions_are_resized_by_the_rule_of_the_model_and_not_at_loading(rule):
    arch = {**DINOV2_NANO, "position_rule": rule}
    state = ViT(arch, pretrain_img_size=(56, 70), out_norm="none").state_dict()
    other = ViT(arch, out_norm="none")
    with pytest.raises(CheckpointMismatchError, match=r"set pretrain_img_size=\(56, 70\)"):
        load_pretrained(other, state)
    assert load_pretrained(other, state, resize="timm").resized  # asked for


def test_timm_adds_the_position_to_the_class_token_which_cannot_be_undone():
    model, image = dinov2_nano(), torch.randn(1, 3, 56, 56)
    theirs = convert(model.state_dict(), "timm").state
    assert torch.equal(theirs["cls_token"], model.tokens.cls_token + model.tokens.cls_position)
    other = dinov2_nano()
    assert load_pretrained(other, theirs).scheme == "timm"
    with torch.no_grad():
        assert relative_error(other(image)[-1], model(image)[-1]) < 1e-6
    for scheme in ("dinov2", "transformers"):
        with pytest.raises(CheckpointMismatchError, match="the position of the class token is zero"):
            convert(theirs, scheme)


def test_training_checkpoints_of_dinov2_have_chunks_of_blocks():
    model = dinov2_nano()
    state = convert(model.state_dict(), "dinov2").state | {"mask_token": torch.ones(1, 32)}
    chunks = {key.replace("blocks.", f"blocks.{key.split('.')[1]}.", 1) if key.startswith("blocks.") else key: x
              for key, x in state.items()}  # fmt: skip
    assert "blocks.1.1.attn.qkv.weight" in chunks
    training = {
        "teacher": {f"backbone.{key}": x for key, x in chunks.items()} | {"dino_head.mlp.0.weight": torch.ones(1)}
    }
    for file in (chunks, training):
        other = dinov2_nano()
        assert load_pretrained(other, file).share == 1
        assert_same_tensors(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("names", ["transformers_eomt", "eomt_dinov3"])
def test_trunks_of_eomt_with_either_mlp(names, gated):
    """By its authors' names and transformers', which are transformers' names of DINOv3 in other places."""
    ffn = {"ffn": "swiglu" if gated else "mlp", "ffn_dims": 40}
    model = ViT({**DINOV3_NANO, **ffn}, out_norm="shared")
    state = convert(model.state_dict(), "transformers").state
    moved = {"transformers_eomt": (r"layers.\1", "layernorm."), "eomt_dinov3": (r"blocks.\1", "norm.")}[names]
    state = {re.sub(r"^norm\.", moved[1], re.sub(r"^layer\.(\d)", moved[0], key)): x for key, x in state.items()}
    if names == "eomt_dinov3":
        state = {key.replace("embeddings.", "patch_embed.", 1): x for key, x in state.items()}
    report = load_pretrained(ViT({**DINOV3_NANO, **ffn}, out_norm="shared"), state)
    assert report.scheme == names
    assert set(report.kept_at_init) <= {"rope.periods"}


ODD = ((56, 56), (57, 99), (83, 45), (113, 71), (131, 130), (29, 201))  # images (h, w), h and w of no whole patches
TIPS = {"embed_dims": 48, "depth": 3, "num_heads": 4, "registers": 1, "patch_size": 14, "layer_scale": 1.0}
TIPS |= {"position_rule": "bilinear_antialias"}


def tipsv2(ffn):
    return ViT(TIPS | ffn, pretrain_img_size=84, out_norm="none", out_indices=(0, 1, 2)).eval()


def randomised(model):
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3 if parameter.ndim > 1 else 1.0)
    return model.eval()


def whole_patches(x, side=14):
    return nn.functional.pad(x, (0, -x.shape[3] % side, 0, -x.shape[2] % side))


@timm_since("1.0.28")
@pytest.mark.parametrize("gated", [False, True], ids=["base", "giant"])
@torch.no_grad()
def test_tipsv2_of_timm(gated):
    entry = f"vit_{'giant' if gated else 'base'}_patch14_reg1_tipsv2"
    sizes = {"embed_dim": 48, "depth": 3, "num_heads": 4, "img_size": 84, "dynamic_img_size": True}
    theirs = randomised(timm.create_model(entry, **sizes))
    assert isinstance(theirs.blocks[0].mlp, timm.layers.GluMlp) == gated
    for size in ODD:  # timm resizes positions bicubically, transformers as ours
        ffn, x = {"ffn": "swiglu", "ffn_dims": 128} if gated else {}, torch.randn(1, 3, *size)
        ours = tipsv2({**ffn, "position_rule": "antialias"})
        load_pretrained(ours, theirs.state_dict())
        wanted = theirs.forward_intermediates(whole_patches(x), intermediates_only=True)
        assert max(map(relative_error, ours(x), wanted)) < 1e-6, size


@pytest.mark.parametrize("gated", [False, True], ids=["base", "giant"])
@torch.no_grad()
def test_tipsv2_of_transformers(gated, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.AutoConfig.for_model(
        "tipsv2_vision_model", **sizes, image_size=84, use_swiglu_ffn=gated, apply_layernorm=False
    )
    config.out_features = config.stage_names[1:]
    theirs = randomised(transformers.AutoBackbone.from_config(config))
    theirs.save_pretrained(tmp_path)
    files = (tmp_path / "model.safetensors", theirs.state_dict())
    for state in files:  # the names of the authors, and those in memory
        ours = tipsv2({"ffn": "swiglu", "ffn_dims": 128} if gated else {})
        load_pretrained(ours, state)
        for size in ODD:
            x = torch.randn(1, 3, *size)
            wanted = theirs(whole_patches(x)).feature_maps
            assert max(map(relative_error, ours(x), wanted)) < 1e-6, size


def test_tipsv2_is_a_part_of_the_authors_file():
    ours = tipsv2({})
    state = {f"vision_encoder.{key}": x for key, x in convert(ours.state_dict(), "dinov2").state.items()}
    report = load_pretrained(ours, {**state, "temperature": torch.ones(())}, prefix="vision_encoder.")
    assert report.share == 1


RADIO = {"embed_dims": 48, "depth": 3, "num_heads": 4}


def radio(name, **sizes):
    image = sizes.pop("image", 2048)
    arch = asdict(VIT[name]) | RADIO | {"ffn_dims": None} | sizes
    return ViT(arch, pretrain_img_size=image, out_norm="none", out_indices=(0, 1, 2)).eval()


@timm_since("1.0.31")
@pytest.mark.parametrize("release", ["base_v3", "so400m_v4", "huge_v4"])
@torch.no_grad()
def test_c_radio_of_timm(release):
    """The table of positions is resized to a square of the longer side, and cropped; by v3 with aligned corners."""
    size, version = release.split("_")
    sizes = {"embed_dim": 48, "depth": 3, "num_heads": 4, "mlp_ratio": 4.0}
    theirs = randomised(timm.create_model(f"naflexvit_{size}_patch16_radio_{version}", **sizes))
    ours = radio(f"cradio_{version}_{size}")
    report = load_pretrained(ours, theirs.state_dict())
    assert (report.scheme, report.share) == ("timm", 1)
    for shape in (*ODD, (16, 2064)):
        x = torch.randn(1, 3, *shape)
        wanted = theirs.forward_intermediates(whole_patches(x, 16), intermediates_only=True)
        assert max(map(relative_error, ours(x), wanted)) < 1e-6, shape
    assert_same_tensors(convert(ours.state_dict(), "timm").state, theirs.state_dict())
    ours.patch_embed.proj.bias.zero_()  # the authors' model has none
    back = convert(ours.state_dict(), "radio").state
    assert {key.split(".")[1] for key in back} == {"model"}
    assert "radio_model.model.patch_generator.embedder.bias" not in back
    again = radio(f"cradio_{version}_{size}")
    others = {"radio_model.input_conditioner.norm_mean": torch.ones(3, 1, 1), "adaptors.0.weight": torch.ones(2, 2)}
    assert load_pretrained(again, back | others).share == 1
    assert_same_tensors(again.state_dict(), ours.state_dict())


@torch.no_grad()
def test_c_radio_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    theirs = randomised(transformers.AutoModel.from_config(transformers.AutoConfig.for_model("radio", **sizes)))
    theirs.save_pretrained(tmp_path)
    ours = radio("cradio_v4_huge", layer_scale=1.0)  # transformers gives it one
    report = load_pretrained(ours, tmp_path / "model.safetensors")
    assert (report.scheme, report.share) == ("radio", 1)
    theirs.make_preprocessor_external()
    for shape in ODD:
        x = torch.randn(1, 3, *shape)
        wanted = theirs(whole_patches(x, 16)).features
        assert relative_error(ours(x)[-1].flatten(2).transpose(1, 2), wanted) < 1e-6, shape


def test_c_radio_needs_the_whole_table_of_positions_and_tells_its_licence(monkeypatch, caplog):
    ours = radio("cradio_v3_base", image=64)
    with pytest.raises(CheckpointMismatchError, match="pretrain_img_size"):
        load_pretrained(ours, convert(radio("cradio_v3_base", image=128).state_dict(), "radio").state)
    with pytest.raises(OptionError, match="pretrain_img_size"):
        radio("cradio_v3_base", image=(64, 128))
    monkeypatch.setattr("vitdense.models.base.load_pretrained", lambda model, *_, **options: LoadReport("", ""))
    for name in ("tipsv2_base", "cradio_v3_base"):
        ours.load_weights(name)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "cradio_v3_base.c_radio" in said
    assert "NVIDIA-Open-Model-License" in said
