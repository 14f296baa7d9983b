"""mmengine's loading goes through ours, where `vitdense.engine` is imported."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine")
from conftest import REPO
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader, load_checkpoint
from safetensors.torch import save_file

import vitdense.engine  # noqa: F401
from vitdense.backbones import base
from vitdense.backbones.base import MMENGINE_GLOBALS
from vitdense.engine import checkpoints
from vitdense.engine.launch import find_checkpoint
from vitdense.weights import read as read_module
from vitdense.weights.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.weights.read import read


class Malicious:
    def __reduce__(self):
        return exec, ("raise SystemExit('ran')",)


def test_a_pickle_with_code_is_refused_by_mmengine_too(tmp_path):
    torch.save({"state_dict": {"weight": torch.ones(1)}, "x": Malicious()}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match=r"without running code from it.*GLOBAL \S*exec was not"):
        load_checkpoint(torch.nn.Linear(1, 1), str(tmp_path / "bad.pth"))


def test_mmengine_loads_what_we_read_and_keeps_versions_and_devices(tmp_path):
    source, target = torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2)
    torch.nn.init.normal_(source.weight)
    torch.save({"state_dict": source.state_dict(), "meta": {"seed": np.int64(3)}}, tmp_path / "a.pth")
    saved = load_checkpoint(target, str(tmp_path / "a.pth"), map_location="cpu", strict=True)
    assert torch.equal(target.weight, source.weight)
    assert saved["state_dict"]._metadata == source.state_dict()._metadata  # versions of modules
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    load_checkpoint(torch.nn.BatchNorm2d(2), str(tmp_path / "a.safetensors"), strict=True)
    for name in ("a.pth", "a.safetensors"):
        saved = CheckpointLoader.load_checkpoint(str(tmp_path / name), map_location="meta")
        assert saved.get("state_dict", saved)["weight"].device.type == "meta"


def test_what_is_not_there_is_said_by_us():
    with pytest.raises(CheckpointNotFoundError, match=r"nowhere\.pth is not a file"):
        CheckpointLoader.load_checkpoint("nowhere.pth")


def test_other_prefixes_keep_their_loaders():
    loader = CheckpointLoader._get_checkpoint_loader
    for ours in ("a.pth", "https://h/a.pth", "timm://m", "hf://o/r/f", "torchvision://swin_t"):
        assert loader(ours) is checkpoints.load_from_vitdense
    for theirs in ("open-mmlab://resnet50", "mmcls://m", "s3://b/a.pth", "petrel://b/a.pth", "modelzoo://resnet50"):
        assert loader(theirs) is not checkpoints.load_from_vitdense


def test_torchvision_names_of_existing_configs_keep_their_weights(tmp_path, monkeypatch):
    asked = []
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pth")
    monkeypatch.setattr(read_module, "download", lambda address, *_: asked.append(address) or {"a": torch.ones(1)})
    for name in ("resnet50", "resnet50.imagenet1k_v2", "swin_t", "swin_t.imagenet1k_v1"):
        CheckpointLoader.load_checkpoint(f"torchvision://{name}")
    files = [address.rsplit("/", 1)[1] for address in asked]
    assert files == ["resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth", "swin_t-704ceda3.pth", "swin_t-704ceda3.pth"]


def test_the_first_process_fetches_and_the_others_wait(monkeypatch):
    events = []
    monkeypatch.setattr(base, "barrier", lambda: events.append("barrier"))
    monkeypatch.setattr(checkpoints, "read", lambda *args, **kwargs: events.append("read") or {})
    for rank, expected in ((0, ["read", "barrier"]), (1, ["barrier", "read"])):
        monkeypatch.setattr(base, "get_rank", lambda rank=rank: rank)
        checkpoints.load_from_vitdense("https://host/a.pth")
        assert events == expected
        events.clear()
        checkpoints.load_from_vitdense("a.pth")
        assert events == ["read"]
        events.clear()

    def fail(*args, **kwargs):
        raise CheckpointNotFoundError

    monkeypatch.setattr(base, "get_rank", lambda: 0)
    monkeypatch.setattr(checkpoints, "read", fail)
    with pytest.raises(CheckpointNotFoundError):
        checkpoints.load_from_vitdense("https://host/a.pth")
    assert events == ["barrier"]  # the others do not wait for ever


def test_without_the_import_mmengine_stays_as_it_is():
    code = (
        "import vitdense, vitdense.backbones; from mmengine.runner.checkpoint import CheckpointLoader as c; "
        "print(c._get_checkpoint_loader('a.pth').__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "load_from_local", done.stderr


class Attribute:
    """Pickles as `getattr(owner, name)`."""

    def __init__(self, owner, name):
        self.call = (getattr, (owner, name))

    def __reduce__(self):
        return self.call


def test_mmengine_checkpoints_are_read_and_their_getattr_reaches_log_buffers_only(tmp_path):
    buffer = HistoryBuffer([1.0, 2.0], [1, 1])
    torch.save({"message_hub": buffer, "meta": {"seed": np.int64(3)}}, tmp_path / "run.pth")
    with pytest.raises(CheckpointMismatchError, match="without running code"):
        read(tmp_path / "run.pth", allow=())
    saved = read(tmp_path / "run.pth", allow=MMENGINE_GLOBALS)
    assert saved["message_hub"].mean() == 1.5
    torch.save({"x": Attribute(torch.Tensor, "numpy")}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match="asks for 'numpy'"):
        read(tmp_path / "bad.pth", allow=(*MMENGINE_GLOBALS, torch.Tensor))


def test_names_of_weights_and_addresses_pass_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "swin_t.ms_in1k"
    assert [find_checkpoint(c) for c in (name, "hf://o/r/a.pth")] == [name, "hf://o/r/a.pth"]
    (tmp_path / name).mkdir()  # a work folder of that name comes first
    with pytest.raises(CheckpointNotFoundError):
        find_checkpoint(name)
