"""Export of a model for inference: a `torch.export` program, or ONNX, for images of all sizes or of one.

The model takes images ``[B, 3, H, W]`` and returns tensors: a backbone, one with a neck, a segmentor. Models of mmdet
and mmseg: `vitdense.mm.cli.export`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

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

OPSET = 20  # the first with GELU
# Pixels. Shorter images have maps of one row or column, for which torch would export another program.
MIN_SIDE = 33
# Elements of a constant of an ONNX file for images of one size: the attention mask of 800x1344 pixels has 3.3 million.
MAX_CONSTANT = 2**23


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
def _one_program() -> Iterator[None]:
    """Torch's options for one program of all sizes."""
    # Otherwise size 1 is told from others, and whether something is 1 becomes a condition on the image.
    oblivious = symbolic_shapes.patch(backed_size_oblivious=True)
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
        with torch.no_grad(), _one_program():
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


def save_onnx(
    program: ExportedProgram,
    path: str | Path,
    output_names: Sequence[str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a program as an ONNX file with the input ``image`` (``pip install 'vitdense[export]'``).

    Args:
        program: From `export_program`.
        path: The file. It has the weights, up to the 2 GB that ONNX allows a file.
        output_names: Names of the outputs; torch's own when None.
        metadata: The file's `metadata_props`.
    """
    from onnxscript import optimizer

    with torch.no_grad(), _one_program():
        onnx = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["image"],
            output_names=output_names,
            dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _onnx_attention},
        )
    # Masks and positions of images of one size are constants, but larger than those that the exporter folds.
    optimizer.fold_constants(onnx.model, input_size_limit=MAX_CONSTANT, output_size_limit=MAX_CONSTANT)
    optimizer.optimize(onnx.model)
    _normalise_tokens(onnx.model.graph)
    onnx.model.metadata_props.update(metadata or {})
    with atomic_write(path) as scratch:
        onnx.save(scratch)


def _onnx_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention in ONNX, without the scaling of keys and the reshaping of torch's: in OpenVINO and bfloat16, Swin-T
    800x1344 takes 0.94 of the time."""
    from onnxscript import opset20 as op

    assert (dropout_p, is_causal, enable_gqa) == (0, False, False)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query = query if scale == 1 else op.Mul(query, op.CastLike(scale, query))
    logits = op.MatMul(query, op.Transpose(key, perm=[0, 1, 3, 2]))  # [B, heads, Nq, Nk]
    if attn_mask is not None and attn_mask.dtype.name == "BOOL":
        logits = op.Where(attn_mask, logits, op.CastLike(-math.inf, logits))
    elif attn_mask is not None:
        logits = op.Add(logits, attn_mask)
    return op.MatMul(op.Softmax(logits), value)  # [B, heads, Nq, dv]


def _normalise_tokens(graph: Any) -> None:
    """Let every LayerNorm of a map ``[B, H, W, C]`` be one of tokens: OpenVINO takes that of a map apart, with which
    Swin-T 800x1344 in bfloat16 takes 1.15 times the time. After the optimiser, which loses constants of two reshapes.
    """
    from onnx_ir import node as make
    from onnx_ir.convenience import replace_all_uses_with

    for norm in list(graph):
        image, out = norm.inputs[0] if norm.inputs else None, norm.outputs[0]
        if norm.op_type != "LayerNormalization" or len(image.shape or ()) != 4 or out.is_graph_output():
            continue
        dims = list(image.shape)
        is_static = all(isinstance(n, int) for n in dims)
        of_tokens = make("Constant", [], {"value_ints": [0, -1, dims[-1]]})
        of_map = make("Constant", [], {"value_ints": dims}) if is_static else make("Shape", [image])
        tokens = make("Reshape", [image, of_tokens.outputs[0]])  # [B, N, C]
        back = make("Reshape", [out, of_map.outputs[0]])  # [B, H, W, C]
        back.outputs[0].shape, back.outputs[0].type, out.shape = out.shape, out.type, None
        replace_all_uses_with(out, back.outputs[0])
        back.replace_input_with(0, out)
        norm.replace_input_with(0, tokens.outputs[0])
        graph.insert_before(norm, [of_tokens, of_map, tokens])
        graph.insert_after(norm, back)


def run_onnx(path: str | Path, image: Tensor) -> list:
    """The outputs of a file of `save_onnx` for an image ``[B, 3, H, W]``, as arrays: onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": image.numpy()})


def largest_error(got: object, want: object) -> float:
    """The largest relative error (Frobenius norm) of any output; NaN where one is not finite.

    Args:
        got: Tensors or arrays, in any nesting.
        want: As many tensors.
    """
    pairs = zip(tree_leaves(got), tree_leaves(want), strict=True)
    errors = [(torch.as_tensor(a).double() - b.double()).norm() / b.double().norm() for a, b in pairs]
    return torch.stack(errors).max().item()  # of NaN and others, NaN
