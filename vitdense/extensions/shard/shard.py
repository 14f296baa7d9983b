"""Parameters, gradients and optimizer states in shards over the processes: `fully_shard` of torch (FSDP2).

A model is built, loaded and resumed whole, in host memory, as without shards. Then every process keeps its part on its
device. A checkpoint is a folder, to which every process writes its part (torch's distributed checkpoints); any other
run can read it like a file.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from mmengine.device import get_device
from mmengine.dist import all_gather_object, all_reduce, get_rank, is_main_process
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from vitdense.files import sha256_of
from vitdense.mm.errors import ConfigError
from vitdense.models.base import Backbone


def shard(model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Shard a model in place: every process keeps its part of the parameters on its device.

    Blocks of backbones are gathered one at a time while they run; other modules, such as heads, for the whole pass.

    Args:
        model: A detector or segmentor with the same values in all processes.
        optimizer: The optimizer of its parameters, whose states are sharded too.

    Raises:
        ConfigError: The model has scalar parameters, such as the scales of ATSS, which torch cannot shard.
    """
    if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
        raise ConfigError(f"--shard: torch makes no parts of a parameter without dimensions, such as {scalars[0]}")
    mesh = init_device_mesh(torch.device(get_device()).type, (torch.distributed.get_world_size(),))
    old = list(model.parameters())
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    blocks = (block for backbone in backbones for block, *_ in backbone.layers()[1:])
    for block in dict.fromkeys(blocks):  # a ViT-Adapter lists its trunk's blocks, too
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to(get_device())  # also sets the device of the data preprocessor
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


def save_parts(tree: Any, folder: Path) -> dict[str, Any]:
    """Write the sharded tensors of a tree, every process its own parts, as safetensors. All processes must call it.

    Args:
        tree: Content of a checkpoint.
        folder: An empty folder on a disk that the processes share.

    Returns:
        The tree with None for sharded tensors, and ``parts``: the SHA-256 digests of the files by name.

    Raises:
        ConfigError: The processes do not share the folder.
        OSError: A process cannot write.
    """
    parts = {keystr(path): x for path, x in tree_flatten_with_path(tree)[0] if isinstance(x, DTensor)}
    try:
        dcp.save(parts, storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except dcp.api.CheckpointException as error:  # has the errors of all processes
        raise next(iter(error.failures.values()))[0] from error
    own = {path.name: sha256_of(path) for path in folder.glob(f"shard-{get_rank() + 1:05}-*")}
    digests = {name: sha256 for each in all_gather_object(own) for name, sha256 in each.items()}
    absent = [name for name in digests if not (folder / name).is_file()]
    if absent and is_main_process():  # it may rename the folder while others look
        raise ConfigError(f"--shard: {folder} has no {absent[0]}; the processes need a work folder that they share")
    return {**tree_map_only(DTensor, lambda part: None, tree), "parts": digests}


def is_finite(x: torch.Tensor) -> bool:
    """Whether all parts of a tensor are finite. All processes must call it."""
    if not isinstance(x, DTensor):
        return bool(x.isfinite().all())
    flag = x.to_local().isfinite().all().int()
    all_reduce(flag, "min")
    return bool(flag)
