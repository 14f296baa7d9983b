"""`vitdense convert` as a user runs it."""

import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import convert
from vitdense import SwinV2, ViT
from vitdense.checkpoint.read import read
from vitdense.families import MODELS, Model
from vitdense.models.vit.sizes import VIT

pytestmark = [pytest.mark.long, pytest.mark.commands]

ARCH = {"embed_dims": 8, "depths": (2, 1, 2, 1), "num_heads": (1, 2, 4, 8)}


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*args, status=0):
        monkeypatch.setattr(sys, "argv", ["convert.py", *map(str, args)])
        if not status:
            convert.main()
            return capsys.readouterr().out
        with pytest.raises(SystemExit) as exit:
            convert.main()
        assert exit.value.code == status
        return capsys.readouterr().err

    return run


def save_random(model, path):
    state = {k: torch.randn_like(x) / 10 for k, x in model.state_dict().items() if not k.startswith("norm")}
    torch.save({"state_dict": state}, path)
    return state


def test_licence_of_the_weights(run, tmp_path, monkeypatch):
    sizes = {"embed_dims": 8, "depth": 1, "num_heads": 1, "layer_scale": 1.0, "registers": 4, "rope": "dinov3"}
    sizes |= {"token_position": False, "absolute_position": False, "qkv_bias": "no_key"}
    save_random(ViT(sizes, out_norm="shared"), tmp_path / "own.pth")
    line = "licence of the weights, which binds the converted file: {}\n"
    # Names of this project tell no licence, DINOv3's names do.
    assert "licence of the" not in run(tmp_path / "own.pth", tmp_path / "theirs.pth", "--to", "dinov3")
    out = run(tmp_path / "theirs.pth", tmp_path / "again.pth", "--to", "vitdense")
    assert line.format("DINOv3-License") in out
    row = Model("nano.ours", "nano", "ViT", "deit_tiny", str(tmp_path / "own.pth"), "WTFPL")
    monkeypatch.setitem(MODELS, row.name, row)
    assert line.format("WTFPL") in run(row.name, tmp_path / "named.pth", "--to", "timm")
    assert convert.licence_of("hf://facebook/dinov3-vits16-pretrain-lvd1689m/a.safetensors", "transformers") == (
        "DINOv3-License"
    )
    assert convert.licence_of("timm://deit_tiny_patch16_224.fb_in1k", "timm") == "Apache-2.0"
    assert convert.licence_of("timm://vit_small_patch16_lingbot.robbyant", "timm") == "Apache-2.0"


def test_there_and_back_with_verification(run, tmp_path):
    state = save_random(ViT("deit_tiny", out_norm="none"), tmp_path / "own.pth")
    out = run(tmp_path / "own.pth", tmp_path / "mm.safetensors", "--to", "mmseg", "--verify", "deit_tiny")
    assert "vit: vitdense -> mmseg names" in out
    assert "verify mmseg: relative difference " in out
    assert out.splitlines()[-1] == str(tmp_path / "mm.safetensors")
    out = run(tmp_path / "mm.safetensors", tmp_path / "timm.pth", "--to", "timm", "--verify", "deit_tiny")
    assert "verify mmseg: relative difference " in out
    assert "verify timm: relative difference " in out
    assert set(read(tmp_path / "timm.pth")) > {"blocks.1.norm1.bias"}
    run(tmp_path / "timm.pth", tmp_path / "back.safetensors", "--to", "vitdense")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in back)


def test_weights_with_a_shared_norm_are_verified_too(run, tmp_path, monkeypatch):
    """The norm of outputs is an option of ours: the maps before it are compared."""
    options = {"out_norm": "shared", "pretrain_img_size": 64}
    row = Model("nano.ours", "nano", "ViT", "lingbot_nano", None, "Apache-2.0", 64, options)
    monkeypatch.setitem(MODELS, row.name, row)
    monkeypatch.setitem(VIT, "lingbot_nano", replace(VIT["dinov3_small"], embed_dims=16, depth=4, num_heads=2))
    save_random(ViT("lingbot_nano", out_norm="shared"), tmp_path / "own.pth")
    out = run(tmp_path / "own.pth", tmp_path / "timm.pth", "--to", "timm", "--verify", "nano.ours")
    assert "verify timm: relative difference " in out


def test_model_to_verify_is_named(run, tmp_path):
    """Nothing is derived from the checkpoint, and nothing written that is not verified."""
    dst = tmp_path / "out.pth"
    save_random(ViT("deit_tiny", out_norm="none"), tmp_path / "own.pth")
    args = tmp_path / "own.pth", dst, "--to", "timm", "--verify"
    assert "--verify MODEL" in run(*args, status=2)
    assert "no_such_model" in run(*args, "no_such_model", status=2)
    assert "error: " in run(*args, "deit3_small", status=2)
    assert "--verify MODEL" in run(*args[:-1], "--image", "cats.jpg", status=2)
    assert not dst.exists()


def test_windows_of_swin_v2_come_from_the_model_named(run, tmp_path):
    save_random(SwinV2("tiny", window_size=8), tmp_path / "v2.pth")
    args = tmp_path / "v2.pth", tmp_path / "out.pth", "--to", "official", "--verify", "swinv2_tiny"
    assert "verify official: not run" in run(*args)
    assert read(tmp_path / "out.pth")["model"]["layers.0.blocks.0.attn.relative_position_index"].shape == (64, 64)


def test_user_errors_write_no_file(run, tmp_path):
    dst = tmp_path / "out.pth"
    assert "no-such.pth" in run(tmp_path / "no-such.pth", dst, "--to", "timm", status=2)
    torch.save(SwinV2(ARCH, window_size=4).state_dict(), tmp_path / "v2.pth")
    assert "--window-size 8" in run(tmp_path / "v2.pth", dst, "--to", "official", status=2)
    args = tmp_path / "v2.pth", dst, "--to", "official", "--window-size"
    assert "windows: got 2" in run(*args, 4, 4, status=2)
    assert "--window-size: got 0" in run(*args, 0, status=2)
    assert "x.onnx" in run(tmp_path / "v2.pth", tmp_path / "x.onnx", "--to", "timm", status=2)
    assert not dst.exists()


def test_one_digest_of_a_checkpoint_in_parts_is_refused(run, tmp_path):
    folder = tmp_path / "iter_5.pth"
    folder.mkdir()
    torch.save({"parts": {}, "state_dict": {}}, folder / "rest.pth")
    assert "--sha256" in run(folder, tmp_path / "out.pth", "--to", "timm", "--sha256", "0123abcd", status=2)
