"""The model table against timm's own records, and the front door."""

import re
from dataclasses import is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec

import pytest
import timm
import torch
from conftest import timm_since
from torch import nn

import vitdense
from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.families import DEFAULTS, FOLDERS, HALF, MODELS, Model, find_model, row_of
from vitdense.hub import create, list_models
from vitdense.mm.config.query import expected_preprocessor, row_of_weights

LATER = {"tipsv2": "1.0.28", "lingbot": "1.0.29", "cradio": "1.0.31"}  # versions of timm that brought them
OF_TIMM = [name for name, row in MODELS.items() if (row.weights or "").startswith("timm://")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=timm_since(LATER.get(name.partition("_")[0], "1"))) for name in OF_TIMM]
)
def test_rows_agree_with_timm_on_its_weights(name):
    row = MODELS[name]
    theirs = timm.get_pretrained_cfg(row.weights.removeprefix("timm://"))
    assert (row.mean, row.std) == (theirs.mean, theirs.std)
    assert (3, row.image_size, row.image_size) == theirs.input_size
    assert row.licence.lower() == theirs.license


@pytest.mark.parametrize("name", list_models("*.official_in1k"))
def test_rows_of_the_authors_files_agree_with_timm(name):
    row, copied = MODELS[name], MODELS[name.replace("official", "ms")]
    assert timm.get_pretrained_cfg(copied.weights.removeprefix("timm://")).url == row.weights
    assert replace(row, name=copied.name, weights=copied.weights) == copied


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("dinov2")])
def test_rows_of_dinov2_agree_with_timm_on_the_authors_files(name):
    row = MODELS[name]
    size = row.model.removeprefix("dinov2_").removesuffix("_reg")
    of_registers = "_reg4" if row.model.endswith("_reg") else ""
    theirs = timm.get_pretrained_cfg(f"vit_{size}_patch14{of_registers}_dinov2.lvd142m")
    assert (row.weights, row.mean, row.std) == (theirs.url, theirs.mean, theirs.std)
    assert (3, row.image_size, row.image_size) == theirs.input_size
    assert (row.licence.lower(), row.patch_size, row.gate) == (theirs.license, 14, None)


def test_gated_rows_name_their_page_and_patches_match_the_arch():
    assert {row.model.split("_")[0] for row in MODELS.values() if row.gate} == {"dinov3"}
    means = {MODELS[f"dinov3_large.fb_{data}"].mean for data in ("lvd1689m", "sat493m")}
    assert means == {(0.485, 0.456, 0.406), (0.430, 0.411, 0.296)}
    assert [find_model(name).patch_size for name in ("dinov3_base", "eva02_base", "swin_tiny")] == [16, 14, None]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [n if DEFAULTS[row.model] is row else pytest.param(n, marks=pytest.mark.slow) for n, row in MODELS.items()]
)
def test_every_row_builds(name):
    with torch.device("meta"):
        model = create(name)
    assert type(model).__name__ == MODELS[name].family
    assert model.cfg == MODELS[name].without_weights()
    assert len(model.out_channels) == 4
    if model.family == "vit":
        assert model.out_strides == (model.arch.patch_size,) * 4
        assert len(model.layers()) == model.arch.depth + 1


def test_every_published_size_has_a_row():
    """Tables of sizes by folder of the family; a hybrid ViT has ViT's."""
    for folder in [folder for folder in dict.fromkeys(FOLDERS.values()) if find_spec(f"{folder}.sizes")]:
        module = import_module(f"{folder}.sizes")
        tables = [x for name, x in vars(module).items() if isinstance(x, dict) and not name.startswith("_")]
        archs = {name for table in tables for name, arch in table.items() if is_dataclass(arch)}
        assert {row.arch for row in module.rows()} == (archs or {"vit_small", "vit_base", "vit_large"}), folder


def test_a_model_is_its_first_row_and_a_short_name_its_long_one():
    assert find_model("swin_tiny") is MODELS["swin_tiny.ms_in1k"]
    assert find_model("swinv2_tiny") is MODELS["swinv2_tiny_w8.ms_in1k"]
    assert find_model("mvitv2_large").arch == "v2_large"
    assert find_model("swin_gigantic") is None
    assert list_models("swin_large*") == ["swin_large.ms_in22k", "swin_large_384.ms_in22k"]
    assert list_models("deit_base") == ["deit_base.fb_in1k", "deit_base_384.fb_in1k"]
    assert list_models() == list(MODELS)


def test_the_windows_of_a_row_match_its_name():
    for name, row in MODELS.items():
        if row.family == "SwinV2" and row.weights:
            window = int(re.search(r"_w(\d+)", name)[1])
            assert row.options["window_size"] == window
            # The last stage's map is 1/32 of the image.
            assert row.options["pretrained_window_sizes"][3] == min(window, row.image_size // 32)


def test_create_loads_and_is_ready_to_evaluate(tmp_path):
    source = vitdense.Swin("tiny", window_size=7)
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.02)
    torch.save(source.state_dict(), tmp_path / "swin.pth")
    model = vitdense.create("swin_tiny", pretrained=tmp_path / "swin.pth", out_indices=(0, 2), drop_path_rate=0.5)
    assert type(model) is vitdense.Swin
    assert not model.training
    assert model.load_report.share == 1
    assert model.is_init
    assert model.out_channels == (96, 384)
    x = torch.randn(1, 3, 61, 45)
    with torch.no_grad():
        assert torch.equal(model(x)[1], source.eval()(x)[2])


@pytest.mark.parametrize(
    ("timm", "ours"),
    [
        ("vit_small_patch16_224", "vit_small.augreg_in21k"),
        ("vit_small_patch16_224.augreg_in1k", "vit_small.augreg_in1k"),
        ("mvitv2_large.fb_in1k", "mvitv2_large_mlp.fb_in1k"),
    ],
)
def test_names_of_timm_are_in_the_table(timm, ours):
    assert find_model(timm) is MODELS[ours]


def test_arguments_of_timm_that_mean_ours_are_accepted_and_others_named():
    with torch.device("meta"):
        model = create("swin_tiny", in_chans=4, drop_path=0.3, features_only=True, num_classes=0)
    assert model.patch_embed.proj.in_channels == 4
    assert model.stages[-1].blocks[-1].drop_path.drop_prob == pytest.approx(0.3)
    for options, hint in (
        ({"num_classes": 10}, "no option num_classes; a backbone returns maps"),
        ({"img_size": 224}, "no option img_size; leave it out"),
        ({"windw_size": 7}, "windw_size"),
    ):
        with pytest.raises(TypeError, match=hint):
            create("swin_tiny", **options)


def test_only_models_with_weights_are_listed():
    assert set(list_models("swinv2*", pretrained=True)) < set(list_models("swinv2*"))
    assert all(MODELS[name].weights for name in list_models(pretrained=True))


def test_options_override_the_row():
    with torch.device("meta"):
        assert create("swinv2_tiny_w16.ms_in1k", window_size=12).stages[0].blocks[0].spec.window == (12, 12)


@pytest.mark.parametrize(
    ("name", "options", "error", "named"),
    [
        ("swin_tinny", {}, ValueError, "swin_tiny"),
        ("qqqq", {}, ValueError, "list_models"),
        ("swinv2_giant", {"pretrained": True}, ValueError, "swinv2_large"),
        ("swin_tiny", {"window": 7}, TypeError, "window"),
        ("swin_tiny", {"out_indices": (4,)}, ValueError, "out_indices"),
        ("swin_tiny", {"pretrained": "none.pth"}, CheckpointNotFoundError, r"none.pth.*pretrained=FILE"),
        ("swin_tiny", {"in_chans": 4, "in_channels": 3}, ValueError, "in_chans and in_channels"),
        ("swin_tiny", {"prefix": "model."}, ValueError, "pretrained"),
    ],
)
def test_what_cannot_be_created_is_refused(name, options, error, named):
    with pytest.raises(error, match=named):
        create(name, **options)


def test_images_of_four_channels_need_an_option(tmp_path, monkeypatch):
    torch.save(vitdense.ViT("deit_tiny").state_dict(), tmp_path / "deit.pth")
    row = Model("nano.ours", "nano", "ViT", "deit_tiny", str(tmp_path / "deit.pth"))
    monkeypatch.setitem(MODELS, row.name, row)
    with pytest.raises(CheckpointMismatchError, match=r"the model 4: .*channels='mean', 'repeat' or a list"):
        create("nano.ours", in_channels=4, pretrained=True)
    model = create("nano.ours", in_channels=4, pretrained=True, channels="mean")
    assert "3 -> 4" in model.load_report.channels


def test_cfg_is_the_row_of_the_weights(tmp_path, monkeypatch):
    file = tmp_path / "deit.pth"
    torch.save(vitdense.ViT("deit_tiny").state_dict(), file)
    weights = Model("nano.ours", "nano", "ViT", "deit_tiny", str(file), "MIT", mean=HALF[0], std=HALF[1])
    monkeypatch.setitem(MODELS, weights.name, weights)
    assert create("deit_tiny", pretrained="nano.ours").cfg is weights
    assert create("nano.ours", pretrained=True).cfg is weights
    for pretrained in (False, file):  # a file says nothing of its licence
        cfg = create("nano.ours", pretrained=pretrained).cfg
        assert (cfg.name, cfg.mean, cfg.std) == ("nano", *HALF)
        assert (cfg.weights, cfg.licence, cfg.sha256, cfg.gate) == (None, None, None, None)
    assert expected_preprocessor(row_of_weights({"init_cfg": {"type": "Pretrained", "checkpoint": "nano.ours"}})) == {
        "mean": [127.5] * 3, "std": [127.5] * 3, "bgr_to_rgb": True
    }  # fmt: skip


def test_a_file_with_the_name_of_a_row_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(vitdense.ViT("deit_tiny").state_dict(), "deit_tiny.fb_in1k")
    assert row_of("deit_tiny.fb_in1k") is None
    assert create("deit_tiny", pretrained="deit_tiny.fb_in1k").cfg.licence is None
    assert row_of("deit_small.fb_in1k") is MODELS["deit_small.fb_in1k"]
    row = MODELS["swin_tiny.ms_in1k"]
    name = row.weights.removeprefix("timm://")
    assert row_of(row.weights) is row_of(f"hf://timm/{name}/model.safetensors") is row


def test_channels_and_strides_as_users_of_timm_read_them():
    info = create("swin_tiny", features_only=True, out_indices=(1, 3)).feature_info
    assert info.channels() == [192, 768]
    assert info.reduction() == [8, 32]
    assert info[0] == {"num_chs": 192, "reduction": 8, "module": "norm1", "index": 0}


def test_the_package_names_what_it_has():
    assert {"create", "list_models", "Swin", "SwinV2", "MViT", "ViT", "DeconvPyramid"} <= set(dir(vitdense))
    for name in ("JointViT", "TokenViT", "WindowedViT"):
        assert issubclass(getattr(vitdense, name), vitdense.ViT)
    with pytest.raises(AttributeError, match="Swim"):
        vitdense.Swim  # noqa: B018
