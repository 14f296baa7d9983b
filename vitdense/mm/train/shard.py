"""Parameters, gradients and optimizer states in shards over the processes: `fully_shard` of torch (FSDP2).

A model is built, filled and resumed whole, in the memory of the host, exactly as without; only then every process keeps
its part, on its device. Checkpoints are whole again: those of any other run.
"""

from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import all_reduce, is_main_process
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from vitdense.models.base import Backbone


def shard(model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Leave every process its part of the parameters, in place, on its device.

    Blocks of backbones are gathered one after another while they run; all else, such as heads, for the whole pass.

    Args:
        model: A detector or segmentor with the same values in all processes.
        optimizer: Of its parameters. Its states become parts as well.
    """
    mesh = init_device_mesh(torch.device(get_device()).type, (torch.distributed.get_world_size(),))
    old = list(model.parameters())
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    blocks = (block for backbone in backbones for block, *_ in backbone.layers()[1:])
    for block in dict.fromkeys(blocks):  # those of a trunk are also in a ViT-Adapter's
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to(get_device())  # what is neither parameter nor buffer, such as the device of the data preprocessor
    if optimizer is None:
        return
    parts = dict(zip(old, model.parameters()))
    for group in optimizer.param_groups:
        group["params"] = [parts[whole] for whole in group["params"]]
    for whole in list(optimizer.state):
        part = parts[whole]
        optimizer.state[part] = {
            name: distribute_tensor(value.to(part.device), part.device_mesh, part.placements, src_data_rank=None)
            if value.shape == whole.shape
            else value
            for name, value in optimizer.state.pop(whole).items()
        }


def gather(tree: Any) -> Any:
    """The same tree with whole tensors, on the CPU of the main process; empty ones in the others. All must call it."""

    def whole(part: DTensor) -> torch.Tensor:
        value = part.full_tensor()  # one tensor at a time
        return value.cpu() if is_main_process() else value.new_empty(0)

    return tree_map_only(DTensor, whole, tree)


def is_finite(x: torch.Tensor) -> bool:
    """Whether a tensor is finite, all parts of it; all processes must call it."""
    if not isinstance(x, DTensor):
        return bool(x.isfinite().all())
    flag = x.to_local().isfinite().all().int()
    all_reduce(flag, "min")
    return bool(flag)
