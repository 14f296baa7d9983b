"""What a forward or backward pass costs on an accelerator, counted without one: kernels, bytes, FLOPs, activations.

Run the pass inside a `CostCounter`, on the meta device for speed. Counts are exact and repeatable.

- A kernel is every ATen call below autograd that is neither a view nor an allocation.
- Its bytes are all tensors that it reads or writes, each once; an expanded dimension is stored once.
  Floating-point elements have 2 bytes, as in half precision. `index_select`, `index` and `gather` read as much as they
  write, and the index.
- `scaled_dot_product_attention` is one kernel forward and one backward, as the fused kernels of a GPU are, also where
  the CPU takes it apart.
- What autograd keeps for the backward pass is every storage once, without parameters and buffers.
- A FLOP is half a multiply-add (`torch.utils.flop_counter`).

On a CPU counts can differ: a model may choose by device, and ``x[i] = 0`` is one kernel there, two on other devices.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
ELEMENT_BYTES = 2  # of a floating-point element
# Views and allocations that are not views by their schema.
FREE = {
    aten.empty,
    aten.empty_like,
    aten.empty_permuted,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten._unsafe_view,
    aten.detach_,
    aten.squeeze_,
    aten.t_,
    aten.transpose_,
    aten.unsqueeze_,
}
GATHERS = {aten.index, aten.index_select, aten.gather}
# Calls that write their first argument or take its shape and dtype, and do not read it.
FILLS = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.rand_like,
    aten.randn_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
    aten.zero_,
    aten.fill_,
    aten.bernoulli_,
    aten.uniform_,
}


@dataclass(frozen=True)
class Device:
    """What a roofline needs of a GPU."""

    flops: float  # peak of dense matrix products in bfloat16, in FLOP/s
    bandwidth: float  # bandwidth of the memory, in bytes/s
    source: str  # where both figures are from
    launch: float = 4e-6  # seconds of a kernel launch in eager mode. An order of magnitude: the host decides it


# A measured peak is below the data sheet's: compare models on one device, not devices.
DEVICES = {
    "h200": Device(790e12, 4.8e12, "FLOP/s: a product of large matrices, measured; bandwidth: data sheet"),
    # Half of the FLOP/s with sparsity.
    "h100": Device(989.5e12, 3.35e12, "data sheet (SXM5) in archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html"),
    "a100": Device(312e12, 2.039e12, "data sheet (SXM4, 80 GB) in glennklockwood.com/garden/processors/A100"),
    "rtx4090": Device(165.15e12, 1.008e12, "waredb.com/processor/nvidia-geforce-rtx-4090"),
}


@dataclass(frozen=True)
class Cost:
    """Cost of what ran inside a `CostCounter`."""

    calls: Mapping[str, int]  # kernel launches by name. Names are ATen's, and attention and attention_backward
    bytes_of: Mapping[str, int]  # bytes that they move, by the same names
    flops: int  # FLOPs, two per multiply-add
    kept: int  # bytes that autograd keeps for the backward pass
    casts: int  # kernels that only change the dtype of a floating-point tensor

    @property
    def kernels(self) -> int:
        """Kernel launches."""
        return sum(self.calls.values())

    @property
    def bytes(self) -> int:
        """Bytes that the kernels move."""
        return sum(self.bytes_of.values())

    def seconds(self, device: Device) -> tuple[float, float, float]:
        """Roofline time on a device: of the FLOPs, of the bytes, of the launches. It ranks; it does not predict."""
        return self.flops / device.flops, self.bytes / device.bandwidth, self.kernels * device.launch


class CostCounter(TorchDispatchMode):
    """Counts what runs inside ``with CostCounter(model) as counter``; the result is `counter.cost`.

    While it counts, attention returns no values. Counters cannot be nested.

    Args:
        model: Its parameters and buffers are not counted as kept. Create the counter after the model is on its device.

    Raises:
        RuntimeError: From the pass: it runs in inference mode, which hides calls from the counter, or multiplies
            tensors of two dtypes, which fails on every device but meta.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        own = [*model.parameters(), *model.buffers()] if model is not None else []
        self._own = {_storage(t) for t in own}
        # A tensor of every storage that is kept, so that none is freed in the pass and its key reused.
        self._kept: dict[int, Tensor] = {}
        self._contexts = ExitStack()
        self.calls: Counter[str] = Counter()
        self.bytes_of: Counter[str] = Counter()
        self.flops = self.casts = self.kept = 0

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        return Cost(dict(self.calls), dict(self.bytes_of), self.flops, self.kept, self.casts)

    def __enter__(self) -> "CostCounter":
        # Below autocast, which casts the arguments of attention, and in place of autograd, which would take it apart.
        library = self._contexts.enter_context(torch.library._scoped_library("aten", "IMPL"))
        for device in ("CPU", "CUDA", "Meta"):
            library.impl("scaled_dot_product_attention", self._attention, f"Autograd{device}")
        self._contexts.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda t: t))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.close()
        self._kept.clear()  # torch refers to the last function that a library had for an operator, and so to this

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            raise RuntimeError("inference mode hides calls from the counter: count under torch.no_grad()")
        packet = func._overloadpacket
        if packet in flop_registry:
            _check_dtypes(str(packet), _tensors(args))
        out = func(*args, **kwargs)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        if func.is_view or packet in FREE:
            return out
        results = _tensors(out)
        if not results:  # a question, such as for a common dtype
            return out
        if packet in GATHERS:
            self.count(str(packet), 2 * _bytes(results) + _bytes(_tensors(args[1:])))
            return out
        written = {argument.name for argument in func._schema.arguments if argument.is_out}
        read = args[1:] if packet in FILLS or packet is aten.copy_ else args
        inputs = _tensors((read, [value for name, value in kwargs.items() if name not in written]))
        if packet in (aten._to_copy, aten.copy_):
            dtypes = {t.dtype for t in (*inputs, *results)}
            self.casts += len(dtypes) > 1 and all(dtype.is_floating_point for dtype in dtypes)
        self.count(str(packet), _bytes(inputs) + _bytes(results))
        return out

    def count(self, name: str, moved: int, flops: int = 0) -> None:
        """Count a kernel that moves so many bytes."""
        self.calls[name] += 1
        self.bytes_of[name] += moved
        self.flops += flops

    def _keep(self, t: Tensor) -> Tensor:
        key = _storage(t)
        if key not in self._own and key not in self._kept:
            self._kept[key] = t.detach()
            self.kept += _storage_bytes(t)
        return t

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """`scaled_dot_product_attention`; dropout, the causal mask and the scale do not change its cost."""
        _check_dtypes("attention", (query, key, value))
        return _FusedAttention.apply(self, query, key, value, attn_mask)


class _FusedAttention(Function):
    """The shapes, the memory layout and the cost of fused attention; no values."""

    @staticmethod
    def forward(ctx: FunctionCtx, counter: CostCounter, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        shape = (*q.shape[:-1], v.shape[-1])  # [..., heads, Nq, dv]
        order = (*range(q.ndim - 3), q.ndim - 2, q.ndim - 3, q.ndim - 1)  # in memory: [..., Nq, heads, dv]
        out = q.new_empty([shape[i] for i in order]).permute(order)  # [..., heads, Nq, dv]
        ctx.counter = counter
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.multiply_adds = q.shape[:-1].numel() * k.shape[-2]  # per channel of q or v
        flops = 2 * ctx.multiply_adds * (q.shape[-1] + v.shape[-1])
        counter.count("attention", _bytes(_tensors((q, k, v, bias, out))), flops)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out = ctx.saved_tensors
        of_q, of_k, of_v = (torch.empty_like(t) for t in (q, k, v))
        of_bias = torch.empty_like(bias) if ctx.needs_input_grad[4] else None
        # Logits are computed again: three products have the channels of q, two the channels of v.
        flops = 2 * ctx.multiply_adds * (3 * q.shape[-1] + 2 * v.shape[-1])
        moved = _bytes(_tensors((q, k, v, bias, out, grad, of_q, of_k, of_v, of_bias)))
        ctx.counter.count("attention_backward", moved, flops)
        return None, of_q, of_k, of_v, of_bias


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _check_dtypes(name: str, tensors: Sequence[Tensor]) -> None:
    """The meta device does not look."""
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1:
        raise RuntimeError(f"{name}: expected tensors of one dtype, got {', '.join(sorted(map(str, dtypes)))}")


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
    """Costs of a model for one batch."""

    forward: Cost  # a forward pass in eval mode without gradients
    train: Cost  # forward and backward pass in train mode, added to gradients that are there


def count(model: nn.Module, x: Tensor, run: Callable[[Tensor], Sequence[Tensor]] | None = None) -> ModelCost:
    """Cost of a model that returns maps. The first pass, which fills the caches, is not counted: see `count_pass`.

    The model stays in train mode, with gradients.

    Args:
        model: On the device of `x`; the meta device computes nothing.
        x: Images, ``[B, 3, H, W]``.
        run: Function of `x` that returns maps; the model itself when None.
    """
    costs = []
    for train in (False, True):
        count_pass(model, x, run, train)
        costs.append(count_pass(model, x, run, train))
    return ModelCost(*costs)


def count_pass(
    model: nn.Module, x: Tensor, run: Callable[[Tensor], Sequence[Tensor]] | None = None, train: bool = False
) -> Cost:
    """Cost of one pass of a model, including what the pass has to make because no cache has it yet.

    After `vitdense.layers.layout.empty_cache`, the pass costs as much as the first pass of a process. After passes of
    other sizes, it costs as much as the first pass of a new size. The model stays in the mode of the pass.

    Args:
        model, x, run: See `count`.
        train: Forward and backward pass in train mode, added to gradients, instead of a forward pass in eval mode
            without gradients. The loss is the sum of the means of the maps. Parameters without a gradient get zeros.
    """
    model.train(train)
    if train:
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    with CostCounter(model) as counter, torch.set_grad_enabled(train):
        outs = (run or model)(x)
        if train:
            sum(out.mean() for out in outs).backward()
    return counter.cost


def live_bytes(model: nn.Module) -> int:
    """Bytes of all tensors of the process except the parameters, buffers and gradients of a model.

    Bytes are counted as in `Cost.kept`. The difference of two calls, before and after passes, is what the passes left
    in caches.
    """
    gc.collect()
    parameters = [*model.parameters()]
    own = {_storage(t) for t in (*parameters, *model.buffers(), *(p.grad for p in parameters)) if t is not None}
    tensors = [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter)]
    return sum({_storage(t): _storage_bytes(t) for t in tensors if _storage(t) not in own}.values())
