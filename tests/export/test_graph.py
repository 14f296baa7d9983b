"""A form of an ONNX graph that runtimes compute faster gives the same."""

import copy

import pytest
import torch
from torch import nn

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, largest_error
from vitdense.layers.attention import attend
from vitdense.layers.layout import window_layout
from vitdense.runtime import open_onnxruntime

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

HEADS, DIM = 3, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.qkv, self.fc = nn.Conv2d(3, DIM, 4, 4), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight)

    def forward(self, image):
        x = self.stem(image).permute(0, 2, 3, 1)  # [B, h, w, C]
        windows = window_layout(x, (3, 2))
        qkv = self.qkv(windows.partition(self.norm1(x)))  # [B*nW, 6, 3*C]
        q, k, v = (part.transpose(1, 2) for part in qkv.unflatten(-1, (3, HEADS, -1)).unbind(2))
        x = x + windows.unpartition(attend(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.fc(self.norm2(x)).relu()
        return x.permute(0, 3, 1, 2)  # [B, C, h, w]


class Normalised(Block):
    def __init__(self):
        super().__init__()
        self.of_q, self.of_k = nn.LayerNorm(DIM // HEADS), nn.LayerNorm(DIM // HEADS)

    def forward(self, image):
        x = self.stem(image).flatten(2).mT[:, : DIM // HEADS]  # [B, d, C]
        q, k, v = (part.transpose(1, 2) for part in self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2))
        return attend(self.of_q(q), self.of_k(k), v)  # [B, heads, d, d]


def graph_of(model, path, dynamic=True, dtype=torch.float32):
    model, image = model.eval(), torch.randn(2, 3, 48, 40)  # whole windows, which are reshaped at once
    half = copy.deepcopy(model).to(dtype)
    save_onnx(export_program(half, image.to(dtype), dynamic), path)
    image = torch.randn(1, 3, 60, 36) if dynamic else image
    with torch.no_grad():
        error = largest_error(open_onnxruntime(path).run(image.to(dtype).numpy()), model(image))
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
    return onnx.shape_inference.infer_shapes(onnx.load(path)).graph


@pytest.mark.long
@pytest.mark.parametrize(
    ("dynamic", "dtype"), [(True, torch.float32), (False, torch.float16)], ids=["all sizes", "one size, half precision"]
)
def test_norms_and_sums_are_of_tokens(dynamic, dtype, tmp_path):
    graph = graph_of(Block(), tmp_path / "model.onnx", dynamic, dtype)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    assert [ranks[node.input[0]] for node in graph.node if node.op_type == "LayerNormalization"] == [3, 3]
    sums = [node for node in graph.node if node.op_type == "Add" and not node.input[1].endswith("bias")]
    assert dynamic or [ranks[node.output[0]] for node in sums] == [3, 3]


def test_products_of_two_maps_are_not_moved_to_tokens(tmp_path):
    graph_of(Normalised(), tmp_path / "model.onnx", dynamic=False)
