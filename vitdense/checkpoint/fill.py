"""Fill models with the tensors of a file."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitdense.layers.buffers import FormulaBuffers


def fill(model: nn.Module, state: Mapping[str, Tensor], is_own: bool) -> None:
    """Fill a model with the tensors of a state dict, which must fit; other tensors stay.

    A model on the meta device that `takes_tensors`, see `Backbone`, gets the tensors themselves. Its other tensors are
    made on torch's default device, by `make_buffers` of `FormulaBuffers` and `reset_parameters`.

    Args:
        model: The model.
        state: From `match_exactly`.
        is_own: Whether the tensors were read from a file for this model. Others are copied, as are tensors that share
            memory.
    """
    ours = model.state_dict(keep_vars=True)
    if not (getattr(model, "takes_tensors", False) and any(x.is_meta for x in ours.values())):
        model.load_state_dict({**ours, **state})
        return
    device = torch.get_default_device()
    users = Counter(x.untyped_storage().data_ptr() for x in state.values())
    taken = {}
    for key, x in state.items():
        memory = x.untyped_storage()
        is_alone = is_own and users[memory.data_ptr()] == 1 and memory.nbytes() == x.nbytes
        taken[key] = x.detach().to(device, ours[key].dtype, copy=not is_alone).contiguous()
    model.load_state_dict(taken, strict=False, assign=True)
    for module in model.modules():
        _make_rest(module, device)


def _make_rest(module: nn.Module, device: torch.device) -> None:
    if isinstance(module, FormulaBuffers) and any(x.is_meta for x in module.buffers(recurse=False)):
        module.make_buffers(device)
    own = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
    if any(x.is_meta for x in own.values()):
        taken = {name: x.detach() for name, x in own.items() if not x.is_meta}
        module.to_empty(device=device, recurse=False)
        module.reset_parameters()
        for name, x in taken.items():
            getattr(module, name).data = x
