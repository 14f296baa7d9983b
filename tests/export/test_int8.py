"""Programs in int8 by onnxruntime."""

import pytest

pytest.importorskip("onnxruntime")
import numpy as np
import torch
from torch import nn

from vitdense.export.int8 import quantise
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
