"""Export of a model for inference: a program of `torch.export`, for images of all sizes or of one.

The model takes images ``[B, 3, H, W]`` and returns tensors, as a backbone does. For models of mmdet and mmseg see
`vitdense.mm.cli.export`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as symbolic_shapes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vitdense.errors import OptionError
from vitdense.files import atomic_write
from vitdense.layers.layout import copied
from vitdense.runtime import Bounds, Output, counting

# Least side in pixels. Smaller images have maps of one row or column, for which torch exports another program.
MIN_SIDE = 33


class _Exportable(nn.Module):
    def __init__(self, model: nn.Module, forms: Mapping[Callable, Callable]) -> None:
        super().__init__()
        self.model, self.forms = model, forms

    def forward(self, image: Tensor) -> object:
        with _Answering(self.forms):
            return self.model(image)


class _Answering(TorchFunctionMode):
    """Replaces functions of torch by their forms, but for calls that a form does not handle."""

    def __init__(self, forms: Mapping[Callable, Callable]) -> None:
        super().__init__()
        self.forms = forms

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        answer = self.forms[func](*args, **kwargs) if func in self.forms else NotImplemented
        return func(*args, **kwargs) if answer is NotImplemented else answer


# Forms have the argument names of torch.


def bilinear(x: Tensor, points: Tensor) -> Tensor:
    """`grid_sample` of a map ``[N, d, h, w]`` at points ``[N, Q, P, 2]`` in -1..1, zero outside: ``[N, d, Q, P]``.

    It uses four gathers of rows, because runtimes are slow at `GridSample`, or compute it wrong.
    """
    number, _, h, w = x.shape
    rows = x.permute(0, 2, 3, 1).flatten(0, 2)  # [N * h * w, d]
    size = torch.cat([torch.full((1,), n, dtype=points.dtype, device=x.device) for n in (w, h)])  # [2]
    place = ((points + 1) * size - 1) / 2  # [N, Q, P, 2] in positions
    corner = place.floor()
    share = place - corner
    image = torch.arange(number, device=x.device)[:, None, None] * (h * w)  # [N, 1, 1]
    total = None
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        at = corner + torch.tensor([dx, dy], dtype=corner.dtype, device=x.device)  # [N, Q, P, 2]
        weights = torch.stack([share[..., i] if d else 1 - share[..., i] for i, d in enumerate((dx, dy))], -1)
        weights = torch.where((at >= 0) & (at < size), weights, 0.0).prod(-1, keepdim=True)  # [N, Q, P, 1]
        column, row = torch.minimum(at.clamp(min=0), size - 1).long().unbind(-1)  # [N, Q, P] each
        part = F.embedding(image + row * w + column, rows) * weights  # [N, Q, P, d]
        total = part if total is None else total + part
    return total.permute(0, 3, 1, 2)  # [N, d, Q, P]


def _grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    handled = input.ndim == 4 and (mode, padding_mode) == ("bilinear", "zeros") and not align_corners
    return bilinear(input, grid) if handled else NotImplemented


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer in the type of its weights, also for positions, which mm computes in float32."""
    return F.linear(input.to(weight.dtype), weight, bias)


def _pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode != "constant" or not all(type(n) is int and n <= 0 for n in pad):
        return NotImplemented
    for dim, (before, after) in enumerate(zip(pad[::2], pad[1::2]), 1):
        input = input.narrow(-dim, -before, input.shape[-dim] + before + after)
    return input


def _of_copy(function: Callable) -> Callable:
    """A convolution of a copy: torch asks for the memory format, which depends on sizes."""
    return lambda input, *args, **kwargs: function(copied(input), *args, **kwargs)


def _max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Pooling with kernel 1, as FPN's last level, by a slice."""
    handled = kernel_size == 1 and type(stride) is int and not (padding or ceil_mode or return_indices)
    return input[..., ::stride, ::stride] if handled else NotImplemented


def _meshgrid(*tensors: Tensor, **options: object) -> tuple[Tensor, ...]:
    """Copies: flattening a view would ask for its sizes."""
    return tuple(map(copied, torch.meshgrid(*tensors, **options)))


def _scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: object, **kwargs: object
) -> Tensor:
    """Attention whose mask has no image axis if it is the same for all images: torch 2.14 asks for the axis's size."""
    if attn_mask is not None and attn_mask.ndim > 2 and type(attn_mask.shape[0]) is int and attn_mask.shape[0] == 1:
        attn_mask = attn_mask[0]
    return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)


def _multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """Attention of queries ``[Q, B, C]`` to keys ``[N, B, C]``, mask ``[Q, N]`` or ``[B * heads, Q, N]``."""
    given = (bias_k, bias_v, key_padding_mask, *(others.get(key) for key in ("static_k", "static_v")))
    if query.ndim != 3 or add_zero_attn or use_separate_proj_weight or any(x is not None for x in given):
        return NotImplemented
    rows = [copied(x.transpose(0, 1)).to(in_proj_weight.dtype) for x in (query, key, value)]  # [B, Q or N, C]
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    parts = zip(rows, in_proj_weight.chunk(3), biases)
    q, k, v = (F.linear(*part).unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)  # [B, heads, N, d]
    logits = q * q.shape[-1] ** -0.5 @ k.mT  # [B, heads, Q, N]
    if attn_mask is not None:
        mask = attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (query.shape[1], num_heads))
        logits = logits.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    shares = logits.softmax(-1)
    y = copied((shares @ v).transpose(1, 2)).flatten(2)  # [B, Q, C]
    weights = shares.mean(1) if average_attn_weights else shares  # [B, Q, N] or [B, heads, Q, N]
    out = F.linear(y, out_proj_weight, out_proj_bias).transpose(0, 1)  # [Q, B, C]
    return out, weights if need_weights else None


def _adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """``[B, C, H, W]`` to ``[B, C, h, w]``, as products with a matrix for each axis."""
    h, w = (output_size, output_size) if isinstance(output_size, int) else output_size
    if input.ndim != 4 or None in (h, w):
        return NotImplemented
    return _shares(input.shape[2], h, input) @ input @ _shares(input.shape[3], w, input).T  # [B, C, h, w]


def _shares(size: int, out: int, x: Tensor) -> Tensor:
    """Weights of adaptive pooling along an axis, ``[out, size]``: output i is the mean of the n inputs from
    ``floor(i n / out)`` to ``ceil((i + 1) n / out)``."""
    i = torch.arange(out, device=x.device)[:, None] * size  # [out, 1]
    start, stop = i // out, (i + size + out - 1) // out
    place = torch.arange(size, device=x.device)
    inside = (place >= start) & (place < stop)  # [out, size]
    return inside.to(x.dtype) / (stop - start).to(x.dtype)


# Forms that runtimes support, or run faster; and forms for all sizes, where torch's operator fits one size only.
FORMS: Mapping[Callable, Callable] = {F.grid_sample: _grid_sample, F.linear: _linear, F.pad: _pad}
SIZELESS_FORMS: Mapping[Callable, Callable] = {
    **FORMS,
    torch.conv2d: _of_copy(torch.conv2d),
    torch.conv_transpose2d: _of_copy(torch.conv_transpose2d),
    F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    F.max_pool2d: _max_pool2d,
    torch.meshgrid: _meshgrid,
    F.scaled_dot_product_attention: _scaled_dot_product_attention,
    F.multi_head_attention_forward: _multi_head_attention_forward,
}


@contextmanager
def one_program() -> Iterator[None]:
    """Torch's options for one program of all sizes."""
    # Without it torch treats size 1 apart, and every test for 1 becomes a condition on the image. Torch 2.6 does not
    # have it, and finds fewer programs for all sizes.
    has_it = hasattr(symbolic_shapes, "backed_size_oblivious")
    oblivious = symbolic_shapes.patch(backed_size_oblivious=True) if has_it else nullcontext()
    # Every size is another expression, so looking them up takes longer than the cache saves.
    uncached = dynamo.patch(fake_tensor_cache_enabled=False)
    with oblivious, uncached:
        yield


def export_program(model: nn.Module, image: Tensor, dynamic: bool = True) -> ExportedProgram:
    """Export a model as a program of `torch.export`, which runs without this package.

    Args:
        model: Takes images ``[B, 3, H, W]`` and returns tensors. In eval mode.
        image: An image for the model, ``[B, 3, H, W]``, in its dtype.
        dynamic: Export for all batch sizes, and all heights and widths from `MIN_SIDE` pixels on; otherwise for the
            shape of `image`.

    Returns:
        The program; ``program.module()(image)`` runs it.

    Raises:
        ValueError: The model is in training mode, the image is too small, or torch finds no program of all sizes.
    """
    if model.training:
        raise OptionError("model: got training mode, expected eval mode; call model.eval() first")
    if not dynamic:
        with torch.no_grad():
            return torch.export.export(_Exportable(model, FORMS), (image,), strict=False)
    if min(image.shape[2:]) < MIN_SIDE:
        raise OptionError(
            f"image: got {tuple(image.shape)}, expected sides of at least {MIN_SIDE} pixels for a program of all sizes"
        )
    shape = {0: Dim("batch"), 2: Dim("height", min=MIN_SIDE), 3: Dim("width", min=MIN_SIDE)}
    try:
        whole = _Exportable(model, SIZELESS_FORMS)
        with torch.no_grad(), one_program():
            return torch.export.export(whole, (image,), dynamic_shapes=(shape,), strict=False)
    except (torch._dynamo.exc.UserError, GuardOnDataDependentSymNode) as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise OptionError(f"torch finds no program of all sizes ({reason}); export for one (--static H W)") from error


def save_program(program: ExportedProgram, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a program as a ``.pt2`` file; `torch.export.load` returns the metadata as `extra_files`."""
    buffer = BytesIO()  # torch's own writer hides that a disk is full
    torch.export.save(program, buffer, extra_files=dict(metadata or {}))
    with atomic_write(path) as scratch:
        scratch.write_bytes(buffer.getbuffer())


def largest_error(got: object, want: object) -> float:
    """The largest relative error (Frobenius norm) of nested tensors or arrays; NaN if a value is not finite."""
    pairs = zip(tree_leaves(got), tree_leaves(want), strict=True)
    errors = [(torch.as_tensor(a).double() - b.double()).norm() / b.double().norm() for a, b in pairs]
    return torch.stack(errors).max().item()  # NaN if any is


def compare_maps(got: Mapping, want: Mapping[str, Tensor], bounds: Bounds) -> tuple[bool, str]:
    """Whether the outputs of a program equal the model's within `bounds`, and the error as text."""
    error = largest_error(got, want)
    fits = error <= bounds.error  # NaN is not
    return fits, f"relative error {error:.1e}" + ("" if fits else f" to the model, expected at most {bounds.error:.0e}")


def can_compare(wanted: Sequence[Output], bounds: Bounds) -> bool:
    """Whether a model finds an object, or any pixel class, to compare a program with."""
    return any(want.semantic is not None or counting(want, bounds).any() for want in wanted)
