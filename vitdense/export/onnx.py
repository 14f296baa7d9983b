"""A program of `export_program` as an ONNX file (``pip install 'vitdense[export]'``)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitdense.export.program import one_program
from vitdense.files import atomic_write

OPSET = 20  # the first with GELU
# Most elements of a folded constant, in a file for one image size: the attention mask of 800x1344 has 3.3 million.
MAX_CONSTANT = 2**23


def save_onnx(
    program: ExportedProgram,
    path: str | Path,
    output_names: Sequence[str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a program as an ONNX file with the input ``image``.

    Args:
        program: From `export_program`.
        path: The file, weights included. ONNX allows 2 GB.
        output_names: Names of the outputs; torch's own when None.
        metadata: The file's `metadata_props`.
    """
    from onnxscript import optimizer

    from vitdense.export.graph import compute_on_tokens

    with torch.no_grad(), one_program():
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
    # With one image size, masks and positions are constants, but larger than the exporter folds by default.
    optimizer.fold_constants(onnx.model, input_size_limit=MAX_CONSTANT, output_size_limit=MAX_CONSTANT)
    optimizer.optimize(onnx.model)
    compute_on_tokens(onnx.model)
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
    """Attention without the scaling of keys and the reshapes of torch's exporter.

    Swin-T 800x1344 in OpenVINO and bfloat16 takes 0.94 of the time.
    """
    from onnxscript import opset20 as op
    from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention

    if dropout_p or is_causal or enable_gqa or len(query.shape) != 4:
        options = (dropout_p, is_causal, scale, enable_gqa)
        return aten_scaled_dot_product_attention(query, key, value, attn_mask, *options)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query = query if scale == 1 else op.Mul(query, op.CastLike(scale, query))
    logits = op.MatMul(query, op.Transpose(key, perm=[0, 1, 3, 2]))  # [B, heads, Nq, Nk]
    if attn_mask is not None and attn_mask.dtype.name == "BOOL":
        logits = op.Where(attn_mask, logits, op.CastLike(-math.inf, logits))
    elif attn_mask is not None:
        logits = op.Add(logits, attn_mask)
    return op.MatMul(op.Softmax(logits), value)  # [B, heads, Nq, dv]
