"""`tools/convert.py` as a user runs it."""

import subprocess
import sys

import pytest
import torch
from conftest import REPO
from safetensors.torch import load_file

from vitdense.backbones import Swin, SwinV2
from vitdense.weights.read import read

ARCH = {"embed_dims": 8, "depths": (2, 1, 2, 1), "num_heads": (1, 2, 4, 8)}


def run(*args, status=0):
    done = subprocess.run(
        [sys.executable, "tools/convert.py", *map(str, args)], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def classifier(tmp_path):
    """A checkpoint of a backbone without output norms, random everywhere."""
    state = {
        k: torch.randn_like(v) / 10 for k, v in Swin(ARCH, window_size=4).state_dict().items() if "norm" not in k[:4]
    }
    torch.save({"state_dict": state}, tmp_path / "own.pth")
    return state


def test_there_and_back_with_verification(tmp_path, classifier):
    pytest.importorskip("mmdet")
    out = run(tmp_path / "own.pth", tmp_path / "mm.safetensors", "--to", "mmdet", "--verify")
    assert "swin: vitdense -> mmdet names" in out
    assert "verify mmdet: largest relative difference of a stage 256x256 " in out
    assert out.splitlines()[-1] == str(tmp_path / "mm.safetensors")
    out = run(tmp_path / "mm.safetensors", tmp_path / "timm.pth", "--to", "timm", "--verify")
    assert "verify mmdet: " in out
    assert "verify timm: " in out
    assert set(read(tmp_path / "timm.pth")) > {"layers.1.downsample.norm.bias"}
    run(tmp_path / "timm.pth", tmp_path / "back.safetensors", "--to", "vitdense")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == classifier.keys()
    assert all(torch.equal(back[key], classifier[key]) for key in back)


def test_what_cannot_be_converted_is_a_message_and_no_file(tmp_path):
    dst = tmp_path / "out.pth"
    assert "no-such.pth is not a file" in run(tmp_path / "no-such.pth", dst, "--to", "timm", status=2)
    torch.save(SwinV2(ARCH, window_size=4).state_dict(), tmp_path / "v2.pth")
    assert "--window-size 8" in run(tmp_path / "v2.pth", dst, "--to", "official", status=2)
    args = tmp_path / "v2.pth", dst, "--to", "official", "--window-size"
    assert "windows: got 2, [4, 4], expected one, or one for each stage" in run(*args, 4, 4, status=2)
    assert "--window-size: got 0, expected tokens above 0" in run(*args, 0, status=2)
    assert "ending in one of .safetensors" in run(tmp_path / "v2.pth", tmp_path / "x.onnx", "--to", "timm", status=2)
    assert not dst.exists()


def test_swin_v2_with_another_window_of_pretraining(tmp_path):
    """It tells the coordinates, and only the buffers of a file tell it."""
    model = SwinV2(ARCH, window_size=4)
    state = {key: torch.randn_like(v) / 10 for key, v in model.state_dict().items() if not key.startswith("norm")}
    torch.save(state, tmp_path / "v2.pth")
    args = tmp_path / "v2.pth", tmp_path / "out.pth", "--to", "timm", "--verify", "--window-size", 4
    assert "verify timm: largest" in run(*args, "--pretrained-window-size", 8, 8, 8, 4)
