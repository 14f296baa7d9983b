"""Shards over processes: what training computes is what one process computes."""

import copy
import os
import sys
from pathlib import Path

import pytest
import torch
from conftest import run_ranks
from mmengine.model import revert_sync_batchnorm
from safetensors.torch import save_file
from test_contract import BACKBONES
from test_ddp import Heads
from test_vit_adapter import adapter
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_norm_

from vitdense.checkpoint.load import load_pretrained
from vitdense.extensions.shard.shard import is_finite, save_parts, shard
from vitdense.mm.checkpoints import read_parts
from vitdense.mm.errors import ConfigError

pytestmark = [pytest.mark.long, pytest.mark.commands]
LORA = {"type": "lora", "targets": ("qkv", "proj")}
MODELS = {**BACKBONES, "vit_adapter": adapter}
CASES = (("swin", {"with_cp": True}), ("vit", {"finetune": LORA}), ("vit_adapter", {}))
OTHERS = (("swin_v2", {}), ("mvit", {"frozen_stages": 1}), ("vit", {"frozen_stages": "all"}))
OTHERS += (("vit", {"finetune": "attention", "with_cp": True}),)


def train(model, optimizer, batches, is_part):
    values = []
    for i, batch in enumerate(batches):
        loss = model(batch) / 2
        loss.backward()
        values.append(loss.detach())
        if i % 2:
            norm = clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.1)
            assert is_finite(norm)
            values.append(norm.full_tensor() if is_part else norm)
            optimizer.step()
            optimizer.zero_grad()
    return torch.stack(values)


def _worker(rank, rendezvous, file, cases):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    _load(file)
    _steps(rank, rendezvous, cases)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # destroying the group can wait for ever on the CPU


def _steps(rank, rendezvous, cases):
    for family, options in cases:
        torch.manual_seed(0)
        alone = Heads(revert_sync_batchnorm(MODELS[family](**options))).double().train()
        for module in alone.modules():
            if isinstance(module, _BatchNorm):  # statistics would be of half a batch
                module.eval()
        model = copy.deepcopy(alone)
        optimizers = [torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 0.01) for m in (alone, model)]
        x = torch.randn(8, 4, 3, 40, 56, dtype=torch.double)
        for run, optimizer in zip((alone, model), optimizers):  # states, which become parts
            train(run, optimizer, x[:4], is_part=False)
        whole = sum(p.numel() for p in model.parameters())
        shard(model, optimizers[1])
        parts = [p for p in model.parameters() if isinstance(p, DTensor)]
        assert len(parts) == len(list(model.parameters()))
        assert sum(p.to_local().numel() for p in parts) < 0.6 * whole
        want = train(alone, optimizers[0], x[4:], is_part=False)
        got = train(model, optimizers[1], x[4:, rank::2], is_part=True)
        torch.distributed.all_reduce(got)
        torch.testing.assert_close(got / 2, want, msg=f"{family} {options}")
        folder = Path(f"{rendezvous}_{family}_{len(options)}")
        folder.mkdir(exist_ok=True)
        tree = {"model": dict(model.state_dict()), "optimizer": optimizers[1].state_dict(), "iter": 4}
        saved = read_parts(folder, save_parts(tree, folder))
        want = {"model": dict(alone.state_dict()), "optimizer": optimizers[0].state_dict(), "iter": 4}
        torch.testing.assert_close(saved, want, msg=f"{family} {options}")


def _load(file):
    """Into a model that was built on meta and sharded: no process ever has room for the whole of it."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    want = BACKBONES["swin"]().eval()
    load_pretrained(want, file)
    with torch.device("meta"):
        model = BACKBONES["swin"]().eval()
    for block, *_ in model.layers()[1:]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    load_pretrained(model, file)
    x = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(x), want(x), strict=True))


@pytest.mark.parametrize("cases", [CASES, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"])
def test_weights_are_loaded_into_parts_and_steps_equal_those_of_one_process(tmp_path, cases):
    """With checkpointing, frozen parts, low-rank updates, accumulation and clipping."""
    save_file(BACKBONES["swin"]().state_dict(), tmp_path / "swin.safetensors")
    run_ranks(_worker, str(tmp_path / "rendezvous"), str(tmp_path / "swin.safetensors"), cases)


def test_a_parameter_without_dimensions_is_refused_by_its_name():
    head = nn.Linear(2, 2)
    head.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ConfigError, match=r"--shard.*0\.scale"):
        shard(nn.Sequential(head))
