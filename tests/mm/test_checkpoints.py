"""mmengine's loading and saving of checkpoints through ours."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.runner.checkpoint import CheckpointLoader, load_checkpoint
from safetensors.torch import save_file

from vitdense.checkpoint import read as read_module
from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.checkpoint.read import read
from vitdense.mm.checkpoints import RUN_GLOBALS, install_loader, read_checkpoint
from vitdense.mm.work_folder import find_checkpoint


@pytest.fixture
def installed():
    install_loader()


class Call:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def test_load_checkpoint_keeps_module_versions_and_map_location(tmp_path, installed):
    source, target = torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2)
    torch.nn.init.normal_(source.weight)
    meta = {"seed": np.int64(3), "config": "raise SystemExit('ran')"}  # the last is text that mmengine would run
    torch.save({"state_dict": source.state_dict(), "meta": meta}, tmp_path / "a.pth")
    saved = load_checkpoint(target, str(tmp_path / "a.pth"), map_location="cpu", strict=True)
    assert torch.equal(target.weight, source.weight)
    assert saved["meta"] == {"seed": 3}
    assert saved["state_dict"]._metadata == source.state_dict()._metadata  # versions of modules
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    load_checkpoint(torch.nn.BatchNorm2d(2), str(tmp_path / "a.safetensors"), strict=True)
    for name in ("a.pth", "a.safetensors"):
        saved = CheckpointLoader.load_checkpoint(str(tmp_path / name), map_location="meta")
        assert saved.get("state_dict", saved)["weight"].device.type == "meta"


def test_prefixes_with_our_loader(installed):
    def loader(filename):
        return CheckpointLoader._get_checkpoint_loader(filename).__name__

    for ours in ("a.pth", "https://h/a.pth", "timm://m", "hf://o/r/f", "torchvision://swin_t"):
        assert loader(ours) == "load_from_vitdense"
    for theirs in ("open-mmlab://resnet50", "mmcls://m", "s3://b/a.pth", "petrel://b/a.pth", "modelzoo://resnet50"):
        assert loader(theirs) != "load_from_vitdense"


def test_torchvision_names_have_the_weights_of_mmengine(tmp_path, monkeypatch):
    asked = []
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pth")
    monkeypatch.setattr(read_module, "download", lambda address, *_: asked.append(address) or {"a": torch.ones(1)})
    for name in ("resnet50", "resnet50.imagenet1k_v2", "swin_t", "swin_t.imagenet1k_v1"):
        read_checkpoint(f"torchvision://{name}")
    files = [address.rsplit("/", 1)[1] for address in asked]
    assert files == ["resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth", "swin_t-704ceda3.pth", "swin_t-704ceda3.pth"]


class Model(BaseModel):
    forward = None


class Custom:
    """An object that a hook of a user may store in the message hub."""


def test_custom_object_in_the_message_hub_needs_allow_pickle(tmp_path):
    path = str(tmp_path / "run.pth")
    model = Model()
    model.layer = torch.nn.Linear(1, 1)
    torch.save({"state_dict": model.state_dict(), "message_hub": {"runtime_info": {"mine": Custom()}}}, path)
    install_loader()  # as the tools do, before the Runner makes its hooks
    refused = pytest.raises(CheckpointMismatchError, match="allow_pickle")
    for option, outcome in ((True, nullcontext()), (False, refused)):
        hook = dict(type="vitdense.ExactLoadHook", allow_pickle=option)
        name = f"custom_object_{option}"
        runner = Runner(model, str(tmp_path), custom_hooks=[hook], load_from=path, experiment_name=name)
        with outcome:
            runner.load_or_resume()


def test_log_history_loads_and_getattr_is_limited_to_log_buffers(tmp_path):
    buffer = HistoryBuffer([1.0, 2.0], [1, 1])
    torch.save({"message_hub": buffer, "meta": {"seed": np.int64(3)}}, tmp_path / "run.pth")
    with pytest.raises(CheckpointMismatchError, match="HistoryBuffer"):
        read(tmp_path / "run.pth", allow=())
    saved = read_checkpoint(str(tmp_path / "run.pth"))
    assert type(saved["message_hub"]) is HistoryBuffer
    assert saved["message_hub"].mean() == 1.5
    torch.save({"x": Call(getattr, torch.Tensor, "numpy")}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match="numpy"):
        read(tmp_path / "bad.pth", allow=(*RUN_GLOBALS, torch.Tensor))


def test_find_checkpoint_keeps_urls_and_names_of_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "swin_tiny.ms_in1k"
    assert [find_checkpoint(c) for c in (name, "hf://o/r/a.pth")] == [name, "hf://o/r/a.pth"]
    (tmp_path / name).mkdir()  # a folder of that name has priority
    with pytest.raises(CheckpointNotFoundError):
        find_checkpoint(name)


@pytest.mark.parametrize(("version", "said"), [("99.1", "vitdense 99.1 wrote it"), ("new", "meta.vitdense_version")])
def test_a_checkpoint_of_a_newer_version_is_refused_by_its_name(tmp_path, version, said):
    torch.save({"state_dict": {}, "meta": {"vitdense_version": version}}, tmp_path / "a.pth")
    with pytest.raises(CheckpointMismatchError, match=said):
        read_checkpoint(str(tmp_path / "a.pth"))
