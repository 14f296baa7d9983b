"""Parameters, gradients and optimizer states in shards over the processes: `fully_shard` of torch (FSDP2).

A model is built, filled and resumed whole, in the memory of the host, exactly as without; only then every process keeps
its part, on its device. A checkpoint is a folder, to which every process writes its part (torch's distributed
checkpoints); any other run reads it as it reads a file.
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
    """Leave every process its part of the parameters, in place, on its device.

    Blocks of backbones are gathered one after another while they run; all else, such as heads, for the whole pass.

    Args:
        model: A detector or segmentor with the same values in all processes.
        optimizer: Of its parameters. Its states become parts as well.

    Raises:
        ConfigError: It has parameters without dimensions, such as the scales of ATSS, of which torch makes no parts.
    """
    if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
        raise ConfigError(f"--shard: torch makes no parts of a parameter without dimensions, such as {scalars[0]}")
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


def save_parts(tree: Any, folder: Path) -> dict[str, Any]:
    """Write the parts of a tree, every process its own, as safetensors. All must call it.

    Args:
        tree: Content of a checkpoint.
        folder: An empty one, on a disk that the processes share.

    Returns:
        The tree with None in place of parts, and ``parts``: the SHA-256 digests of their files by name.

    Raises:
        ConfigError: The processes do not share the folder.
        OSError: A process cannot write.
    """
    parts = {keystr(path): x for path, x in tree_flatten_with_path(tree)[0] if isinstance(x, DTensor)}
    try:
        dcp.save(parts, storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except dcp.api.CheckpointException as error:  # of all processes
        raise next(iter(error.failures.values()))[0] from error
    own = {path.name: sha256_of(path) for path in folder.glob(f"shard-{get_rank() + 1:05}-*")}
    digests = {name: sha256 for each in all_gather_object(own) for name, sha256 in each.items()}
    absent = [name for name in digests if not (folder / name).is_file()]
    if absent and is_main_process():  # which may rename the folder while others look
        raise ConfigError(f"--shard: {folder} has no {absent[0]}; the processes need a work folder that they share")
    return {**tree_map_only(DTensor, lambda part: None, tree), "parts": digests}


def is_finite(x: torch.Tensor) -> bool:
    """Whether a tensor is finite, all parts of it; all processes must call it."""
    if not isinstance(x, DTensor):
        return bool(x.isfinite().all())
    flag = x.to_local().isfinite().all().int()
    all_reduce(flag, "min")
    return bool(flag)
