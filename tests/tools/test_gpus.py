"""Tests that need two GPUs: NCCL, SyncBN, half precision, shards. ``make test WHAT=gpus``."""

import json

import pytest
import torch
from test_processes import torchrun
from test_tools import shrunk

pytestmark = [
    pytest.mark.long,
    pytest.mark.commands,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("precision", [[], ["--amp", "bfloat16"], ["--amp", "float16"]], ids=" ".join)
def test_shards_train_as_copies_of_the_model(tmp_path, precision):
    """Sums over GPUs differ in their order, and in half precision by its rounding."""
    (tmp_path / "small.py").write_text(shrunk("upernet_swin_nano_shapes", tmp_path))
    tolerance, losses, memory = 1e-2 if precision else 1e-4, {}, {}
    for name, options in (("copies", []), ("shards", ["--shard"])):
        torchrun("train", tmp_path / "small.py", "--work-dir", tmp_path / name, *precision, *options)
        (log,) = (tmp_path / name).glob("*/vis_data/scalars.json")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        losses[name] = [row["loss"] for row in rows if "loss" in row]
        memory[name] = max(row.get("memory", 0) for row in rows)
    assert losses["shards"] == pytest.approx(losses["copies"], rel=tolerance)
    print(precision, "MB of a GPU:", memory)
