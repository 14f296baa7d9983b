import pytest

pytest.importorskip("onnxruntime")
import numpy as np
import onnx
import torch
from torch import nn

from vitdense.export.int8 import LAYERS, quantise
from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program
from vitdense.runtime import open_onnxruntime


class WithConstant(nn.Module):
    """A product with a constant of four axes, as of the keys of queries that no image changes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.constant = nn.Parameter(torch.randn(1, 4, 64, 8))

    def forward(self, image):
        return self.conv(image) @ self.constant  # [1, 4, 64, 8]


def test_constants_of_more_axes_stay_as_they_are(tmp_path):
    model, image = WithConstant().eval(), torch.randn(1, 3, 64, 64)
    path = tmp_path / "model.onnx"
    save_onnx(export_program(model, image, dynamic=False), path, ["out"])
    quantise(path, [np.asarray(image)])
    got = torch.as_tensor(np.asarray(open_onnxruntime(path).run(image.numpy())[0]))
    with torch.no_grad():
        assert (got - model(image)).norm() < 0.05 * model(image).norm()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.product, self.full = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, image):
        maps = self.product(self.conv(image).permute(0, 2, 3, 1)).relu()  # [1, h, w, 4]
        return self.full(maps.mean((1, 2)))


def test_what_leaves_layers_stays_in_float(tmp_path):
    model, image = Layers().eval(), torch.randn(1, 3, 16, 16)
    path = tmp_path / "model.onnx"
    save_onnx(export_program(model, image, dynamic=False), path, ["out"])
    quantise(path, [np.asarray(image)])
    nodes = onnx.load(path).graph.node
    made = {name: node for node in nodes for name in node.output}
    layers = [node for node in nodes if node.op_type in LAYERS]
    assert [node.op_type for node in layers] == ["Conv", "MatMul", "Gemm"]
    assert all(made[name].op_type == "DequantizeLinear" for node in layers for name in node.input[:2])
    of_layers = {name for node in layers for name in node.output}
    assert not any(of_layers & {*node.input} for node in nodes if node.op_type == "QuantizeLinear")
