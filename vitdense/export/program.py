"""Export of a model for inference: a program of `torch.export`, for images of all sizes or of one.

The model takes images ``[B, 3, H, W]`` and returns tensors: a backbone, one with a neck, a segmentor. Models of mmdet
and mmseg: `vitdense.mm.cli.export`.
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
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vitdense.errors import OptionError
from vitdense.files import atomic_write
from vitdense.layers.deformable import bilinear
from vitdense.layers.layout import copied

# Pixels. Shorter images have maps of one row or column, for which torch would export another program.
MIN_SIDE = 33


class _Exportable(nn.Module):
    """A model whose operators runtimes have, and with `_AnySize` serve all sizes."""

    def __init__(self, model: nn.Module, forms: type["_Gathers"]) -> None:
        super().__init__()
        self.model, self.forms = model, forms

    def forward(self, image: Tensor) -> object:
        with self.forms():
            return self.model(image)


BILINEAR = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}


class _Gathers(TorchFunctionMode):
    """Replaces `grid_sample` by gathers: see `bilinear`. In half precision, linear layers take what mm computes in
    float32: positions.

    Padding by less than nothing becomes a slice, which runtimes have faster.
    """

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if func is F.grid_sample and kwargs == BILINEAR:
            return bilinear(*args)
        if func is F.linear and args[0].dtype != args[1].dtype:
            args = args[0].to(args[1].dtype), *args[1:]
        elif func is F.pad and all(type(n) is int and n <= 0 for n in args[1]):
            return _cropped(*args)
        return func(*args, **kwargs)


class _AnySize(_Gathers):
    """Replaces operators by exact forms that ask for no size: some of torch's are exported for one size, or for no
    batch of one."""

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if func in (torch.conv2d, torch.conv_transpose2d):  # they ask for the memory format, which sizes decide
            args = copied(args[0]), *args[1:]
        elif func is F.adaptive_avg_pool2d:
            return _adaptive_avg_pool(*args, **kwargs)
        elif func is F.max_pool2d and args[1] == 1:  # the last level of FPN
            step = kwargs["stride"]
            return args[0][..., ::step, ::step]
        elif func is torch.meshgrid:  # whose views are asked for sizes when they are flattened
            return tuple(map(copied, func(*args, **kwargs)))
        elif func is F.scaled_dot_product_attention and kwargs.get("attn_mask") is not None:
            bias = kwargs["attn_mask"]
            if type(bias.shape[0]) is int and bias.shape[0] == 1:  # torch 2.14 asks whether there is one image, too
                kwargs = kwargs | {"attn_mask": bias[0]}
        elif func is F.multi_head_attention_forward and kwargs.get("key_padding_mask") is None:
            return _attention(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def _cropped(x: Tensor, padding: Sequence[int]) -> Tensor:
    """What `F.pad` returns of numbers that are not positive."""
    for dim, (before, after) in enumerate(zip(padding[::2], padding[1::2]), 1):
        x = x.narrow(-dim, -before, x.shape[-dim] + before + after)
    return x


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    bias_k: None,
    bias_v: None,
    add_zero_attn: bool,
    dropout: float,
    out_weight: Tensor,
    out_bias: Tensor,
    attn_mask: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """What `nn.MultiheadAttention` computes of queries ``[Q, B, C]`` and keys ``[N, B, C]``, with a mask to add,
    ``[B * heads, Q, N]``: without the mean of the weights."""
    rows = [copied(x.transpose(0, 1)).to(weight.dtype) for x in (query, key, value)]  # [B, Q or N, C]
    parts = zip(rows, weight.chunk(3), bias.chunk(3))
    q, k, v = (F.linear(*part).unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)  # [B, heads, N, d]
    logits = q * q.shape[-1] ** -0.5 @ k.mT  # [B, heads, Q, N]
    if attn_mask is not None:
        logits = logits + attn_mask.unflatten(0, (query.shape[1], heads))
    y = copied((logits.softmax(-1) @ v).transpose(1, 2)).flatten(2)  # [B, Q, C]
    return F.linear(y, out_weight, out_bias).transpose(0, 1), None  # [Q, B, C]


def _adaptive_avg_pool(x: Tensor, output_size: int | tuple[int, int]) -> Tensor:
    """``[B, C, H, W]`` to ``[B, C, h, w]``, as products with a matrix for each axis."""
    h, w = (output_size, output_size) if isinstance(output_size, int) else output_size
    return _shares(x.shape[2], h, x) @ x @ _shares(x.shape[3], w, x).T  # [B, C, h, w]


def _shares(size: int, out: int, x: Tensor) -> Tensor:
    """Share of every input in every mean along an axis, ``[out, size]``: mean i is of ``floor(i n / out)`` to
    ``ceil((i + 1) n / out)``."""
    i = torch.arange(out, device=x.device)[:, None] * size  # [out, 1]
    start, stop = i // out, (i + size + out - 1) // out
    place = torch.arange(size, device=x.device)
    inside = (place >= start) & (place < stop)  # [out, size]
    return inside.to(x.dtype) / (stop - start).to(x.dtype)


@contextmanager
def one_program() -> Iterator[None]:
    """Torch's options for one program of all sizes."""
    # Otherwise size 1 is told from others, and whether something is 1 becomes a condition on the image. Torch 2.6 does
    # not have it, and finds fewer programs of all sizes.
    has_it = hasattr(symbolic_shapes, "backed_size_oblivious")
    oblivious = symbolic_shapes.patch(backed_size_oblivious=True) if has_it else nullcontext()
    # Looking sizes up takes longer than what the cache saves: every size is another expression.
    uncached = dynamo.patch(fake_tensor_cache_enabled=False)
    with oblivious, uncached:
        yield


def export_program(model: nn.Module, image: Tensor, dynamic: bool = True) -> ExportedProgram:
    """A model as a program of `torch.export`, which runs without this package.

    Args:
        model: Takes images ``[B, 3, H, W]``; returns tensors. In eval mode.
        image: An image that the model takes, ``[B, 3, H, W]``, in its dtype.
        dynamic: Export for all batches, heights and widths from `MIN_SIDE` pixels on; otherwise for the shape of
            `image`.

    Returns:
        The program; ``program.module()(image)`` runs it.

    Raises:
        ValueError: The model is in training mode; the image is smaller than `MIN_SIDE`, and `dynamic`; or torch finds
            no program of all sizes.
    """
    if model.training:
        raise OptionError("model: got training mode, expected eval mode; call model.eval() first")
    if not dynamic:
        with torch.no_grad():
            return torch.export.export(_Exportable(model, _Gathers), (image,), strict=False)
    if min(image.shape[2:]) < MIN_SIDE:
        raise OptionError(
            f"image: got {tuple(image.shape)}, expected sides of at least {MIN_SIDE} pixels for a program of all sizes"
        )
    shape = {0: Dim("batch"), 2: Dim("height", min=MIN_SIDE), 3: Dim("width", min=MIN_SIDE)}
    try:
        with torch.no_grad(), one_program():
            return torch.export.export(_Exportable(model, _AnySize), (image,), dynamic_shapes=(shape,), strict=False)
    except torch._dynamo.exc.UserError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise OptionError(f"torch finds no program of all sizes ({reason}); export for one (--static H W)") from error


def save_program(program: ExportedProgram, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a program as a ``.pt2`` file, for `torch.export.load`, whose `extra_files` are the metadata."""
    buffer = BytesIO()  # torch's own writer hides that a disk is full
    torch.export.save(program, buffer, extra_files=dict(metadata or {}))
    with atomic_write(path) as scratch:
        scratch.write_bytes(buffer.getbuffer())


def largest_error(got: object, want: object) -> float:
    """The largest relative error (Frobenius norm) of any output, tensors or arrays in any nesting; NaN where one is not
    finite.
    """
    pairs = zip(tree_leaves(got), tree_leaves(want), strict=True)
    errors = [(torch.as_tensor(a).double() - b.double()).norm() / b.double().norm() for a, b in pairs]
    return torch.stack(errors).max().item()  # of NaN and others, NaN
