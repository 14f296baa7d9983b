"""Post-training quantisation of an ONNX program to int8."""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

LAYERS = ["Conv", "MatMul", "Gemm"]


class _Batches(CalibrationDataReader):
    def __init__(self, images: Iterable[np.ndarray]) -> None:
        self.images = iter(images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else {"image": image}


def quantise(path: str | Path, images: Iterable[np.ndarray]) -> None:
    """Let the convolutions and the products with weights of a program compute in int8 (QDQ form).

    Weights have 7 bits and a scale per channel, because sums of two 8-bit products overflow on CPUs without VNNI. The
    input of a layer has 8 bits and one scale, from its range in these images. Outputs stay in float32: 8 bits there
    change twice as many objects.

    The file is a float32 one of `vitdense.export.onnx.save_onnx`, and is replaced. Images are ``[1, 3, h, w]`` float32,
    normalised, of any sizes.
    """
    model = onnx.load(path)
    axes = {one.name: len(one.dims) for one in model.graph.initializer}
    # Constants with more axes are not weights, and onnxruntime has no scale per channel for them.
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and axes.get(node.input[1], 2) != 2]
    logging.disable(logging.WARNING)  # its advice is what `save_onnx` did
    try:
        quantize_static(
            model,
            path,
            _Batches(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=LAYERS,
            nodes_to_exclude=others,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": LAYERS},
        )
    finally:
        logging.disable(logging.NOTSET)
