"""Resize and normalisation inside an ONNX file, which then takes photos."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, compose, inliner, numpy_helper
from onnxscript import FLOAT, FLOAT16, INT64, UINT8, OnnxFunction, script
from onnxscript import opset20 as op
from onnxscript.onnx_types import TensorType

SIZE = INT64[2]
# Divisors for the bits that OpenCV drops.
SIXTEENTH, DROPPED, TWO, FOUR = (numpy_helper.from_array(np.int32(n)) for n in (16, 1 << 16, 2, 4))


@script(default_opset=op)
def same(size, target):
    """`size`, for images that are not resized."""
    return op.Identity(size)


@script(default_opset=op)
def as_it_is(planes, size):
    """`planes`, for images that are not resized."""
    return op.Identity(planes)


@script(default_opset=op)
def fixed(size, target):
    """One size (h, w) for all images."""
    return op.Identity(target)


@script(default_opset=op)
def fitted(size, target):
    """The largest size within a scale (long, short), as `vitdense.runtime.fitted`."""
    sides = op.Concat(op.ReduceMax(size), op.ReduceMin(size), axis=0)
    by_side = (2 * op.Unsqueeze(size, [1]) * target + sides) / (2 * sides)  # [2, 2]: (h, w) by (long, short)
    return op.ReduceMin(by_side, [1], keepdims=0)  # [2]


@script(default_opset=op)
def resized(maps, size):
    """``[B, C, h, w]`` to ``[B, C, *size]``, bilinear with half-pixel centres."""
    sides = op.Concat(op.Shape(maps, start=0, end=2), size, axis=0)
    return op.Resize(maps, None, None, sides, mode="linear", coordinate_transformation_mode="half_pixel")


@script(default_opset=op)
def taps(old, new):
    """The first of the two old pixels around each new one, and the weight of the second; see `runtime.nearest`.

    Computed in whole numbers as far as possible, because OpenVINO has no float64.
    """
    ends = (2 * op.Range(0, new, 1) + 1) * old + new  # [new]; 0 or more
    whole = ends / (2 * new)
    rest = op.Cast(ends - whole * (2 * new), to=TensorProto.DOUBLE) / op.Cast(2 * new, to=TensorProto.DOUBLE)
    place = op.Cast(op.Cast(whole - 1, to=TensorProto.DOUBLE) + rest, to=TensorProto.FLOAT)
    first = op.Floor(place)
    return op.Cast(first, to=TensorProto.INT64), place - first


@script(default_opset=op)
def weights(shares):
    """Weights of the first and the second pixel in 2048ths, from the share [n] of the second."""
    first = op.Cast(op.Round(2048.0 * (1.0 - shares)), to=TensorProto.INT32)
    second = op.Cast(op.Round(2048.0 * shares), to=TensorProto.INT32)
    return first, second


@script(default_opset=op)
def along_rows(planes, x, last, left, right):
    """Resize the rows of planes ``[B, 3, h, w]`` to ``[B, 3, h, W]``; `last` is w - 1."""
    here = op.Cast(op.Gather(planes, op.Min(op.Max(x, 0), last), axis=3), to=TensorProto.INT32)
    after = op.Cast(op.Gather(planes, op.Min(op.Max(x + 1, 0), last), axis=3), to=TensorProto.INT32)
    return (here * left + after * right) / op.Constant(value=SIXTEENTH)


@script(default_opset=op)
def resized_photo(planes, size):
    """Planes ``[B, 3, h, w]`` uint8 to ``[B, 3, *size]``, as `vitdense.runtime.resize_photo`."""
    y, of_y = taps(op.Squeeze(op.Shape(planes, start=2, end=3)), op.Gather(size, 0))
    x, of_x = taps(op.Squeeze(op.Shape(planes, start=3, end=4)), op.Gather(size, 1))
    last_y = op.Squeeze(op.Shape(planes, start=2, end=3)) - 1
    last_x = op.Squeeze(op.Shape(planes, start=3, end=4)) - 1
    of_x = op.Where(op.Or(x < 0, x >= last_x), 0.0, of_x)
    left, right = weights(of_x)
    upper, lower = weights(of_y)
    above = along_rows(op.Gather(planes, op.Min(op.Max(y, 0), last_y), axis=2), x, last_x, left, right)
    below = along_rows(op.Gather(planes, op.Min(op.Max(y + 1, 0), last_y), axis=2), x, last_x, left, right)
    drop = op.Constant(value=DROPPED)
    parts = above * op.Unsqueeze(upper, [1]) / drop + below * op.Unsqueeze(lower, [1]) / drop
    return (parts + op.Constant(value=TWO)) / op.Constant(value=FOUR)


@script(default_opset=op)
def in_photo(found: FLOAT["B", "N", 4], photo_size: SIZE, seen: SIZE):  # noqa: F821
    """Boxes in pixels of the resized image to pixels of the photo."""
    scale = op.Cast(seen, to=TensorProto.FLOAT) / op.Cast(photo_size, to=TensorProto.FLOAT)  # [2]: (y, x)
    boxes = op.Cast(found, to=TensorProto.FLOAT) / op.Gather(scale, [1, 0, 1, 0])
    return boxes


@script(default_opset=op)
def best_class(found: FLOAT["B", "C", "h", "w"], photo_size: SIZE):  # noqa: F821
    """Logits of the resized image to class indices in the photo, ``[B, H, W]``."""
    semantic = op.ArgMax(resized(op.Cast(found, to=TensorProto.FLOAT), photo_size), axis=1, keepdims=0)
    return semantic


def one_class(threshold: float) -> OnnxFunction:
    """As `best_class`, for the logits of a single class."""
    bound = log(threshold / (1 - threshold))

    @script(default_opset=op)
    def above(found: FLOAT["B", 1, "h", "w"], photo_size: SIZE):  # noqa: F821
        logits = resized(op.Cast(found, to=TensorProto.FLOAT), photo_size)
        semantic = op.Cast(op.Squeeze(logits, [1]) > bound, to=TensorProto.INT64)
        return semantic

    return above


def of_photos(program: ModelProto, about: Mapping[str, Any]) -> ModelProto:
    """Turn a program of normalised images into one that takes photos.

    Args:
        program: Its input is ``image``, ``[B, 3, h, w]``, normalised. It is changed.
        about: The program's `metadata_props`, decoded.

    Returns:
        A program with the input ``photo``, ``[B, H, W, 3]`` uint8 RGB, or ``[B, H, W, C]`` float32 bands. ``boxes`` are
        in pixels of the photo. The output ``semantic``, ``[B, H, W]`` int64 class indices, replaces ``logits``. Other
        outputs stay.
    """
    names, domains = [out.name for out in program.graph.output], [*program.opset_import]
    dtype = program.graph.input[0].type.tensor_type.elem_type
    pixels = {TensorProto.FLOAT: FLOAT, TensorProto.FLOAT16: FLOAT16}[dtype]
    kind, count = (UINT8, 3) if isinstance(about["channels"], str) else (FLOAT, about["channels"][0])
    types = pixels["B", count, "h", "w"], SIZE, SIZE
    before = _part(_preprocess(about, dtype, count), "before/", *types, inputs=[kind["B", "H", "W", count]])
    if replaced := next((name for name in names if name in ("boxes", "logits")), None):
        _rename(program.graph, replaced, "found")
        after = _postprocess(program, about)
        names[names.index(replaced)] = after.graph.output[0].name
        joints = [(given.name, given.name) for given in after.graph.input]
        whole = compose.merge_models(before, program, [("pixels", "image")])
        whole = compose.merge_models(whole, after, joints, outputs=names)
    else:
        whole = compose.merge_models(before, program, [("pixels", "image")], outputs=names)
    whole.graph.output.sort(key=lambda out: names.index(out.name))
    del whole.opset_import[:]  # merging has repeated each
    whole.opset_import.extend(domains)
    return whole


def _preprocess(about: Mapping[str, Any], dtype: int, count: int) -> OnnxFunction:
    """Resize and normalise photos as `vitdense.runtime` does; returns the images and the sizes of both."""
    rule = about["resize"]
    if rule is None:
        seen_of, target = same, [0, 0]
    elif rule["keep_ratio"]:
        seen_of, target = fitted, [max(rule["scale"]), min(rule["scale"])]
    else:
        seen_of, target = fixed, rule["scale"][::-1]
    resize_of = as_it_is if rule is None else resized_photo if isinstance(about["channels"], str) else resized
    order = [2, 1, 0] if about["channels"] == "BGR" else [*range(count)]
    mean = numpy_helper.from_array(np.float32(about["mean"] or [0]).reshape(-1, 1, 1))
    std = numpy_helper.from_array(np.float32(about["std"] or [1]).reshape(-1, 1, 1))

    @script(default_opset=op)
    def before(photo):
        photo_size = op.Shape(photo, start=1, end=3)
        seen = seen_of(photo_size, op.Constant(value_ints=target))
        planes = op.Gather(op.Transpose(photo, perm=[0, 3, 1, 2]), op.Constant(value_ints=order), axis=1)
        colours = op.Cast(resize_of(planes, seen), to=TensorProto.FLOAT)  # [B, C, h, w]
        pixels = op.Cast((colours - op.Constant(value=mean)) / op.Constant(value=std), to=dtype)
        return pixels, photo_size, seen

    return before


def _postprocess(program: ModelProto, about: Mapping[str, Any]) -> ModelProto:
    (dims,) = (out.type.tensor_type.shape.dim for out in program.graph.output if out.name == "found")
    if len(dims) == 3:
        return _part(in_photo, "after/", FLOAT["B", "N", 4])
    classes = one_class(about["threshold"]) if dims[1].dim_value == 1 else best_class
    return _part(classes, "after/", INT64["B", "H", "W"])


def _part(
    function: OnnxFunction, prefix: str, *outputs: TensorType, inputs: Sequence[TensorType] | None = None
) -> ModelProto:
    model = inliner.inline_local_functions(function.to_model_proto(input_types=inputs, output_types=outputs))
    del model.opset_import[1:]  # the domain of functions
    del model.graph.value_info[:]  # has no types
    return compose.add_prefix(model, prefix, rename_inputs=False, rename_outputs=False)


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new if value.name == old else value.name
