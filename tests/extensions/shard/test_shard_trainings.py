"""Trainings with `--shard`, as torchrun starts them, on CPUs."""

import pytest
import torch
from commands import run_command
from test_processes import config, same, torchrun, trained  # noqa: F401  two are fixtures

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.mm.checkpoints import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.commands]


def test_shards_end_with_the_same_bits(config, trained, tmp_path):  # noqa: F811
    """From a file; so does a run without shards that resumes from their checkpoint, a folder."""
    start = ["--shard", "--resume", trained / "iter_3.pth", "--cfg-options", "default_hooks.checkpoint.interval=1"]
    torchrun("train", config, "--work-dir", tmp_path / "parts", *start)
    want, got = (read_checkpoint(str(folder / "iter_6.pth")) for folder in (trained, tmp_path / "parts"))
    same(got, want)
    assert not list((tmp_path / "parts").glob(".*parts"))
    whole = read_checkpoint(str(tmp_path / "parts/weights.pth"))
    assert all(torch.equal(x, whole["state_dict"][key]) for key, x in want["state_dict"].items())
    torchrun("train", config, "--work-dir", tmp_path / "copies", "--resume", tmp_path / "parts/iter_4.pth")
    same(read_checkpoint(str(tmp_path / "copies/iter_6.pth")), want)
    assert run_command(["test", str(tmp_path / "parts")])[0] == 0

    part = next((tmp_path / "parts/iter_4.pth").glob("*.safetensors"))
    content = bytearray(part.read_bytes())
    content[-9] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointMismatchError, match="damaged"):
        read_checkpoint(str(tmp_path / "parts/iter_4.pth"))
