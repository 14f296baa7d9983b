"""What a forward or backward pass costs on an accelerator, counted without one: kernels, bytes, FLOPs, activations.

Run the pass inside a `CostCounter`, on the meta device for speed. Counts are exact and repeatable.

- A kernel is every ATen call below autograd that is neither a view nor an allocation.
- Its bytes are those of all tensors it reads and of all it writes, each once; an expanded dimension is stored once.
  Floating-point elements have 2 bytes, as in half precision. `index_select`, `index` and `gather` read as much as they
  write, and the index.
- `scaled_dot_product_attention` is one kernel forward and one backward, as the fused kernels of a GPU are, also where
  the CPU takes it apart.
- What autograd keeps for the backward pass is every storage once, without parameters and buffers.
- A FLOP is half a multiply-add (`torch.utils.flop_counter`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
ELEMENT_BYTES = 2  # of a floating-point element
# Calls that return a view or an allocation although their schema does not say so.
FREE = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.detach,
    aten.alias,
    aten._unsafe_view,
    aten._reshape_alias,
    aten.lift_fresh,
    aten.split,
    aten.split_with_sizes,
    aten.unbind,
    aten.chunk,
}
GATHERS = {aten.index, aten.index_select, aten.gather}
# Calls that take shape and dtype of their argument, and do not read it.
FILLS = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}


@dataclass(frozen=True)
class Device:
    """What a roofline needs of a GPU.

    Attributes:
        flops: Peak of half-precision matrix products in FLOP/s.
        bandwidth: Of its memory in bytes/s.
        launch: Time of a kernel launch in eager mode in seconds.
        source: Where the numbers are from.
    """

    flops: float
    bandwidth: float
    launch: float
    source: str


DEVICES = {
    "h200": Device(
        790e12, 4.8e12, 4e-6, "matmul in bfloat16 measured; bandwidth of the data sheet; launch: order of magnitude"
    ),
}


@dataclass(frozen=True)
class Cost:
    """Cost of what ran inside a `CostCounter`.

    Attributes:
        kernels: Kernel launches.
        bytes: Bytes that they move.
        flops: FLOPs, two per multiply-add.
        kept: Bytes that autograd keeps for the backward pass.
        casts: Kernels that change the dtype of a floating-point tensor.
    """

    kernels: int
    bytes: int
    flops: int
    kept: int
    casts: int

    def seconds(self, device: Device) -> tuple[float, float, float]:
        """Roofline time on a device: of the FLOPs, of the bytes, of the launches. It ranks; it does not predict."""
        return self.flops / device.flops, self.bytes / device.bandwidth, self.kernels * device.launch

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(*(a - b for a, b in zip(vars(self).values(), vars(other).values())))


class CostCounter(TorchDispatchMode):
    """Counts what runs inside ``with CostCounter(model) as counter``; the result is `counter.cost`.

    Args:
        model: Its parameters and buffers are not counted as kept. Create the counter after the model is on its device.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        own = [*model.parameters(), *model.buffers()] if model is not None else []
        self._own = {_storage(t) for t in own}
        self._kept: dict[int, Tensor] = {}  # a tensor of every storage, so that no storage is freed and its key reused
        self._contexts = (_FuseAttention(self), torch.autograd.graph.saved_tensors_hooks(self._keep, lambda t: t))
        self.calls: Counter[str] = Counter()
        self.bytes_of: Counter[str] = Counter()
        self.flops = self.casts = 0

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        kept = sum(_storage_bytes(t) for t in self._kept.values())
        return Cost(sum(self.calls.values()), sum(self.bytes_of.values()), self.flops, kept, self.casts)

    def __enter__(self) -> "CostCounter":
        for context in self._contexts:
            context.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for context in reversed(self._contexts):
            context.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        if func.is_view or packet in FREE:
            return out
        results = _tensors(out)
        if not results:  # a question, such as for a common dtype
            return out
        if packet in GATHERS:
            moved = 2 * _bytes(results) + _bytes(t for t in _tensors((args, kwargs)) if not t.is_floating_point())
        else:
            inputs = [] if packet in FILLS else _tensors((args, kwargs))
            moved = _bytes(inputs) + _bytes(results)
            self.casts += any(
                a.is_floating_point() and b.is_floating_point() and a.dtype != b.dtype
                for a in inputs
                for b in results
                if packet in (aten._to_copy, aten.copy_, aten.copy)
            )
        self.count(str(packet), moved)
        return out

    def count(self, name: str, moved: int, flops: int = 0) -> None:
        """Count a kernel that moves so many bytes."""
        self.calls[name] += 1
        self.bytes_of[name] += moved
        self.flops += flops

    def _keep(self, t: Tensor) -> Tensor:
        if _storage(t) not in self._own:
            self._kept.setdefault(_storage(t), t.detach())
        return t


class _FuseAttention(TorchFunctionMode):
    """Replaces `scaled_dot_product_attention` by a single kernel, of which only the cost is computed."""

    def __init__(self, counter: CostCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask")
        given = dict(zip(names, args), **kwargs)
        return _FusedAttention.apply(self.counter, *(given.get(name) for name in names))


class _FusedAttention(Function):
    """The shapes, the memory layout and the cost of fused attention; no values."""

    @staticmethod
    def forward(ctx: FunctionCtx, counter: CostCounter, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        shape = (*q.shape[:-1], v.shape[-1])  # [..., heads, Nq, dv]
        order = (*range(q.ndim - 3), q.ndim - 2, q.ndim - 3, q.ndim - 1)  # in memory: [..., Nq, heads, dv]
        out = q.new_empty([shape[i] for i in order]).permute(order)  # [..., heads, Nq, dv]
        ctx.counter = counter
        ctx.save_for_backward(q, k, v, bias, out)
        flops = sdpa_flop_count(*(t.flatten(0, -4).shape for t in (q, k, v)))
        counter.count("attention", _bytes(t for t in (q, k, v, bias, out) if t is not None), flops)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        if bias is not None and ctx.needs_input_grad[4]:
            grads.append(torch.empty_like(bias))
        read = [t for t in (q, k, v, bias, out, grad) if t is not None]
        flops = sdpa_backward_flop_count(*(t.flatten(0, -4).shape for t in (grad, q, k, v)))
        ctx.counter.count("attention_backward", _bytes([*read, *grads]), flops)
        return None, *grads, *[None] * (4 - len(grads))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; dimensions of stride 0 are stored once."""
    total = 0
    for t in tensors:
        elements = 1
        for size, stride in zip(t.shape, t.stride()):
            elements *= size if stride else min(size, 1)
        total += elements * (ELEMENT_BYTES if t.is_floating_point() else t.element_size())
    return total


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _storage_bytes(t: Tensor) -> int:
    elements = t.untyped_storage().nbytes() // t.element_size()
    return elements * (ELEMENT_BYTES if t.is_floating_point() else t.element_size())


@dataclass(frozen=True)
class ModelCost:
    """Costs of a model on one image.

    Attributes:
        forward: A forward pass in eval mode without gradients.
        train: Forward and backward pass in train mode, added to gradients that are there.
    """

    forward: Cost
    train: Cost


def count(model: nn.Module, x: Tensor, run: Callable[[Tensor], Sequence[Tensor]] | None = None) -> ModelCost:
    """Cost of a model that returns maps. First passes, which fill caches and gradients, are not counted.

    Args:
        model: On the device of `x`; the meta device computes nothing.
        x: Image, ``[B, 3, H, W]``.
        run: Function of `x` that returns maps; the model itself when None.
    """
    run = run or model

    def evaluate() -> None:
        with torch.no_grad():
            run(x)

    def train() -> None:
        sum(out.float().mean() for out in run(x)).backward()

    costs = []
    for step in (evaluate, train):
        model.train(step is train)
        step()
        with CostCounter(model) as counter:
            step()
        costs.append(counter.cost)
    return ModelCost(*costs)
