"""DistributedDataParallel of two processes on a CPU: it raises when a parameter it waits for gets no gradient, or gets
it twice; what it computes is what one process computes for the whole batch."""

import copy
import os
import sys
from functools import partial

import pytest
import torch
from conftest import run_ranks
from contract_rows import ADAPTERS, TRUNK
from test_contract import BACKBONES
from test_vit_adapter import adapter
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("mmengine")
from mmengine.model import revert_sync_batchnorm

from vitdense.layers import layout

ROTARY, LORA = BACKBONES["vit, registers, rotary, SwiGLU"], {"type": "lora", "targets": ("qkv", "proj")}
FROZEN = {"frozen_stages": "all", "drop_path_rate": 0.5}  # drop path, which frozen trunks do not have
ROTARY_TRUNK = {"arch": TRUNK["arch"] | ROTARY.arch}
CASES = {
    f"{family}: {options}": partial(make, **options)
    for family, make in BACKBONES.items()
    for options in ({"frozen_stages": 1}, {"with_cp": True, "frozen_stages": 0}, {"out_indices": (0, 1)})
}
CASES |= {
    "frozen ViT": lambda: ROTARY(**FROZEN),
    "frozen ViT, shared norm": lambda: ROTARY(**FROZEN, out_norm="shared"),
    "frozen ViT, stem with batch norms": lambda: BACKBONES["vit, distilled, parallel, hMLP, LayerScale"](**FROZEN),
    "frozen Swin": lambda: BACKBONES["swin"](**FROZEN),
    "LoRA of a ViT": lambda: ROTARY(finetune=LORA),
    "LoRA of Swin, checkpointing": lambda: BACKBONES["swin"](finetune=LORA, frozen_stages=1, with_cp=True),
    "adapter": adapter,
    "adapter, windows": ADAPTERS["vit_adapter, windows, patches of 14"],
    "adapter, checkpointing": lambda: adapter(TRUNK | {"with_cp": True}, with_cp=True),
    "adapter, frozen trunk": lambda: adapter(TRUNK | FROZEN),
    "adapter, frozen rotary trunk": lambda: adapter(ROTARY_TRUNK | FROZEN, vit_feature="each"),
    "adapter, LoRA of the trunk": lambda: adapter(TRUNK | {"finetune": LORA, "out_indices": (0, 3)}),
}


class Heads(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Conv2d(channels, 2, 1) for channels in backbone.out_channels)

    def forward(self, x):
        return sum(head(out).square().mean() for head, out in zip(self.heads, self.backbone(x), strict=True))


def _steps_equal_one_process(rank: int, name: str) -> None:
    torch.manual_seed(0)
    alone = Heads(revert_sync_batchnorm(CASES[name]())).double().train()  # DDP refuses SyncBN on a CPU
    for module in alone.modules():
        if isinstance(module, _BatchNorm):  # statistics would be of half a batch
            module.eval()
    model, tables = copy.deepcopy(alone), []
    together = DistributedDataParallel(model)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (alone, model)]
    for step in range(3):
        torch.manual_seed(step)
        images = torch.randn(4, 3, 40, 56, dtype=torch.double)
        for run, part, optimiser in zip((alone, together), (images, images[rank::2]), optimisers):
            optimiser.zero_grad()
            run(part).backward()
        for (key, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert (p.grad is not None) == p.requires_grad, (name, key)
            if p.requires_grad:
                torch.testing.assert_close(p.grad, q.grad, msg=f"{name}: {key} in step {step}")
        for optimiser in optimisers:
            optimiser.step()
        tables.append(sum(len(cache) for cache in layout._caches))
    assert tables[0] == tables[-1], f"{name}: rotations are made anew, though only broadcasts wrote to the periods"
    for key, tensor in model.state_dict().items():
        theirs = tensor.clone()
        torch.distributed.broadcast(theirs, src=0)
        assert torch.equal(tensor, theirs), f"{name}: {key} differs"


def _ddp_worker(rank: int, rendezvous: str, cases: list[str]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    adapter().train()(torch.randn(2, 3, 32, 32))  # SyncBN on a CPU in a process group, without DDP
    for name in cases:
        _steps_equal_one_process(rank, name)
    torch.distributed.barrier()
    # Nothing is torn down: destroying the group can wait for ever on the CPU, and the process ends here.
    sys.stdout.flush()
    os._exit(0)


QUICK = ["frozen Swin", "LoRA of a ViT", "adapter, checkpointing"]
QUICK += [name for name in CASES if name.partition(": ")[0] in ("swin", "mvit", "vit")]


@pytest.mark.long
@pytest.mark.commands
@pytest.mark.parametrize("cases", [QUICK, pytest.param([*CASES], marks=pytest.mark.slow)], ids=["some", "all"])
def test_ddp_without_find_unused_parameters(tmp_path, cases):
    run_ranks(_ddp_worker, str(tmp_path / "rendezvous"), cases)
