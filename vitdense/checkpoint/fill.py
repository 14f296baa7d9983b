"""Fill models with the tensors of a file. Large parameters are neither drawn before nor copied."""

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook

# Elements; smaller parameters are drawn and copied to, as in any model. mmcv's deformable attention makes constants on
# the device of its first one, of 256 x 256.
LARGE = 2**17
M = TypeVar("M", bound=nn.Module)


class Unfilled(nn.Parameter):
    """A parameter on the meta device, without values, until `fill` gives it those of a file."""


class NeedsValuesError(RuntimeError):
    """A model needs values of a large parameter that no file gives."""


# Parameters and what was registered in their place, by the id of the former, while modules are built without values.
_replaced: ContextVar[dict[int, tuple[nn.Parameter, Unfilled]] | None] = ContextVar("_replaced", default=None)


def _leave_unfilled(module: nn.Module, name: str, parameter: nn.Parameter) -> Unfilled | None:
    """Registration hook. It stays, for other threads may build modules while it would come or go."""
    replaced = _replaced.get()
    is_plain = type(parameter) is nn.Parameter and parameter.device.type == "cpu" and not vars(parameter)
    if replaced is None or not is_plain or parameter.numel() < LARGE or parameter._backward_hooks:
        return None
    if id(parameter) not in replaced:
        empty = torch.empty_like(parameter, device="meta")
        replaced[id(parameter)] = parameter, Unfilled(empty, parameter.requires_grad)
    return replaced[id(parameter)][1]  # the same for the same: shared parameters stay shared


register_module_parameter_registration_hook(_leave_unfilled)


@contextlib.contextmanager
def _without_values() -> Iterator[list[Unfilled]]:
    """Modules that this thread builds have large parameters without values, which are in the list at the end.

    Raises:
        NeedsValuesError: A constructor keeps the memory of such a parameter elsewhere, too: a view of it, or itself.
    """
    unfilled: list[Unfilled] = []
    token = _replaced.set({})
    try:
        yield unfilled
        replaced = [*_replaced.get().values()]
    finally:
        _replaced.reset(token)
    unfilled += [new for _, new in replaced]
    memory = [StorageWeakRef(old.untyped_storage()) for old, _ in replaced]
    del replaced
    if not all(storage.expired() for storage in memory):
        raise NeedsValuesError("memory of a parameter is kept by something else")


def build_and_fill(build: Callable[[], M], load: Callable[[M], None]) -> M:
    """A model that `build` makes and `load` gives weights by `fill`, at about the memory of the file alone.

    Its large parameters are on the meta device until then, so that none of their values can be used. Where something
    needs one, the model is built again with all values, drawn as they would have been: a constructor reads it or keeps
    its memory, it has a hook, or the file lacks it.
    """
    generator = torch.get_rng_state()
    with contextlib.suppress(RuntimeError, TypeError):  # what meta tensors raise where values are read
        with _without_values() as unfilled:
            model = build()
        load(model)
        left = [weakref.ref(x) for x in unfilled if isinstance(x, Unfilled)]
        unfilled.clear()
        is_used = any(x() is not None for x in left)  # the others went with layers that the constructor replaced
        kept = (x for module in model.modules() for x in vars(module).values() if isinstance(x, Tensor))
        if not is_used and not any(x.is_meta for x in (*model.parameters(), *model.buffers(), *kept)):
            return model
        del model
    torch.set_rng_state(generator)
    model = build()
    load(model)
    return model


def fill(model: nn.Module, state: Mapping[str, Tensor], is_own: bool) -> None:
    """Give a model the tensors of a state dict, which fit.

    Args:
        model: Tensors that are not in `state` stay.
        state: From `match_exactly`.
        is_own: The tensors were read from a file for this model. An `Unfilled` parameter takes them instead of copies,
            if they alone have their memory.

    Raises:
        NeedsValuesError: An `Unfilled` parameter is not in `state`, or has hooks, or a buffer was made of one.
    """
    unfilled = {key: x for key, x in model.named_parameters(remove_duplicate=False) if isinstance(x, Unfilled)}
    if any(key not in state or x._backward_hooks or x._post_accumulate_grad_hooks for key, x in unfilled.items()):
        raise NeedsValuesError("a parameter is not in the file, or has hooks")
    if unfilled and any(x.is_meta for x in model.buffers()):
        raise NeedsValuesError("a buffer was made of a parameter")
    # Addresses tell memory apart here, for `state` holds all of it.
    users = Counter(x.untyped_storage().data_ptr() for x in state.values()) if unfilled and is_own else {}
    filled = {}
    for key, parameter in unfilled.items():
        if not isinstance(parameter, Unfilled):
            continue  # shared, and filled by its first name
        value = state[key].detach()
        has_form = (value.device.type, value.dtype, value.stride()) == ("cpu", parameter.dtype, parameter.stride())
        storage = value.untyped_storage()
        if not (has_form and users.get(storage.data_ptr()) == 1 and storage.nbytes() == value.nbytes):
            value = torch.empty_like(parameter, device="cpu", requires_grad=False).copy_(value)
        filled[key] = nn.Parameter(value, parameter.requires_grad)
        vars(filled[key]).update(vars(parameter))
        torch.utils.swap_tensors(parameter, filled[key])
    rest = {key: x for key, x in state.items() if key not in filled}
    model.load_state_dict({**model.state_dict(keep_vars=True), **rest}, strict=True)
