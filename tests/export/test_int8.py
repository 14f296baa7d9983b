"""Programs in int8 by onnxruntime."""

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


class Detector(nn.Module):
    """Boxes of the best places, around which a second head looks again."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)
        self.scores, self.boxes = nn.Linear(4, 1), nn.Linear(4, 4)
        self.head, self.last = nn.Conv2d(4, 4, 3), nn.Linear(4, 2)

    def forward(self, image):
        maps = self.body(self.stem(image).permute(0, 2, 3, 1)).relu()  # [1, h, w, 4]
        places = self.scores(maps).flatten(1).topk(5).indices[0]
        boxes = self.boxes(maps).flatten(1, 2)[0, places].sigmoid() * 8
        rois = torch.cat([boxes.new_zeros(5, 1), boxes], 1)
        crops = torch.ops.torchvision.roi_align(maps.permute(0, 3, 1, 2), rois, 1.0, 3, 3, 1, True)
        return boxes, self.last(self.head(crops).relu().flatten(1))


def test_first_and_last_layers_and_sums_stay_in_float(tmp_path):
    model, image = Detector().eval(), torch.randn(1, 3, 16, 16)
    path = tmp_path / "model.onnx"
    save_onnx(export_program(model, image, dynamic=False), path, ["boxes", "out"])
    layers = [node for node in onnx.load(path).graph.node if node.op_type in LAYERS]
    weights = {node.input[1]: node.name for node in layers}
    quantise(path, [np.asarray(image)])
    nodes = onnx.load(path).graph.node
    made = {name: node for node in nodes for name in node.output}
    ints = [x for x in nodes if x.name in weights.values() and made.get(x.input[1], x).op_type == "DequantizeLinear"]
    assert [len(model.get_parameter(name).shape) for name in ("body.weight", "head.weight")] == [2, 4]
    assert [node.op_type for node in ints] == ["MatMul", "Conv"]
    assert not any(node.op_type == "QuantizeLinear" and node.input[0] in ints[0].output for node in nodes)
