"""Post-training quantisation of an ONNX program to int8."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

LAYERS = ("Conv", "MatMul", "Gemm")
# What follows these is no map of the image any more; and the inputs of others through which one goes on.
CHOICES = ("TopK", "NonMaxSuppression", "ArgMax", "Shape", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
DATA = {"RoiAlign": slice(1), "Where": slice(1, 3)}


class _Batches(CalibrationDataReader):
    """Images for onnxruntime's calibration."""

    def __init__(self, images: Iterable[np.ndarray]) -> None:
        self.images = iter(images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else {"image": image}


def quantise(path: str | Path, images: Iterable[np.ndarray]) -> None:
    """Let the convolutions and the products with weights of a program compute in int8 (QDQ form).

    Weights have 7 bits and a scale for every channel: sums of two products of 8 bits overflow on CPUs without VNNI.
    What enters a layer has 8 bits and one scale, from the least to the largest value in these images; what leaves a
    product stays in float32, for residual sums and norms. So do the `ends` of the model: few operations, and the places
    and scores themselves.

    The file, of `vitdense.export.onnx.save_onnx` and in float32, is replaced. Images are ``[1, 3, h, w]`` float32,
    normalised, of any sizes.
    """
    model = onnx.load(path)
    axes = {one.name: len(one.dims) for one in model.graph.initializer}
    layers = [x for x in model.graph.node if x.op_type in LAYERS and x.input[1] in axes]
    # Constants of more axes are no weights, and onnxruntime has no scale for each of their channels.
    others = [node.name for node in layers if node.op_type == "MatMul" and axes[node.input[1]] != 2]
    floats = {*others, *(node.name for node in ends(model.graph, layers))}
    logging.disable(logging.WARNING)  # it advises what `save_onnx` did
    try:
        quantize_static(
            model,
            path,
            _Batches(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*LAYERS],
            nodes_to_exclude=[*floats],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
        )
    finally:
        logging.disable(logging.NOTSET)


def ends(graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The layers that read the image, and those after which comes none but through a choice of objects."""
    users, names = defaultdict(list), {node.name for node in layers}
    for node in graph.node:
        to = next((x.i for x in node.attribute if node.op_type == "Cast" and x.name == "to"), onnx.TensorProto.FLOAT)
        if node.op_type not in CHOICES and to == onnx.TensorProto.FLOAT:
            for name in node.input[DATA.get(node.op_type, slice(None))]:
                users[name].append(node)

    def following(tensors: Sequence[str]) -> list[onnx.NodeProto]:
        found, seen, left = [], set(), [*tensors]
        while left:
            seen.add(name := left.pop())
            found += [node for node in users[name] if node.name in names]
            left += [x for node in users[name] if node.name not in names for x in node.output if x not in seen]
        return found

    return [*following([graph.input[0].name]), *(node for node in layers if not following(node.output))]
