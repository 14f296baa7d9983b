"""Forms of an ONNX graph: what runtimes compute faster gives the same, and what is of another form stays."""

import copy
from collections import Counter

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


class Updated(nn.Linear):
    """A linear layer with a low-rank update."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down, self.up = nn.Linear(sizes[0], 2, bias=False), nn.Linear(2, sizes[1], bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class Block(nn.Module):
    """A stem, then norm, attention in windows, sum, norm, layer and sum."""

    def __init__(self, qkv):
        super().__init__()
        self.stem, self.qkv, self.fc = nn.Conv2d(3, DIM, 4, 4), qkv, nn.Linear(DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight)

    def split(self, qkv):
        return qkv.unbind(2)

    def forward(self, image):
        x = self.stem(image).permute(0, 2, 3, 1)  # [B, h, w, C]
        windows = window_layout(x, (3, 2))
        qkv = self.qkv(windows.partition(self.norm1(x)))  # [B*nW, 6, 3*C]
        q, k, v = (part.transpose(1, 2) for part in self.split(qkv.unflatten(-1, (3, HEADS, -1))))
        x = x + windows.unpartition(attend(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.fc(self.norm2(x)).relu()
        return x.permute(0, 3, 1, 2)  # [B, C, h, w]


class Gated(Block):
    """Its keys are also the gate of its queries."""

    def split(self, qkv):
        q, k, v = super().split(qkv)
        return q * q.sigmoid(), k, v


class Normalised(Block):
    """Queries and keys are normalised, as many tokens as channels of a head."""

    def __init__(self, qkv):
        super().__init__(qkv)
        self.of_q, self.of_k = nn.LayerNorm(DIM // HEADS), nn.LayerNorm(DIM // HEADS)

    def forward(self, image):
        x = self.stem(image).flatten(2).mT[:, : DIM // HEADS]  # [B, d, C]
        q, k, v = (part.transpose(1, 2) for part in self.split(self.qkv(x).unflatten(-1, (3, HEADS, -1))))
        return attend(self.of_q(q), self.of_k(k), v)  # [B, heads, d, d]


class InPairs(Block):
    """Keys and values are taken together."""

    def split(self, qkv):
        return qkv[:, :, 0], *qkv[:, :, 1:].unbind(2)


def graph_of(model, path, dynamic=True, dtype=torch.float32):
    """The graph of the file of a model in a dtype, which computes what the model does in float32."""
    model, image = model.eval(), torch.randn(2, 3, 40, 44)
    half = copy.deepcopy(model).to(dtype)
    save_onnx(export_program(half, image.to(dtype), dynamic), path)
    image = torch.randn(1, 3, 60, 36) if dynamic else image
    with torch.no_grad():
        error = largest_error(open_onnxruntime(path).run(image.to(dtype).numpy()), model(image))
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
    return onnx.shape_inference.infer_shapes(onnx.load(path)).graph


def operators(graph):
    return Counter(node.op_type for node in graph.node)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dynamic", "dtype"), [(True, torch.float32), (False, torch.float16)], ids=["all sizes", "one size, half precision"]
)
def test_queries_keys_and_values_are_products_of_their_own_and_norms_are_of_tokens(bias, dynamic, dtype, tmp_path):
    graph = graph_of(Block(nn.Linear(DIM, 3 * DIM, bias)), tmp_path / "model.onnx", dynamic, dtype)
    found = operators(graph)
    assert found["MatMul"] == 3 + 2 + 1
    assert found["Split"] + found["Squeeze"] <= 2 * dynamic  # of the sizes of an image
    assert dynamic or found["Mul"] == 0  # the scale is in the weights
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    assert [ranks[node.input[0]] for node in graph.node if node.op_type == "LayerNormalization"] == [3, 3]
    sums = [node for node in graph.node if node.op_type == "Add" and not node.input[1].endswith("bias")]
    assert dynamic or [ranks[node.output[0]] for node in sums] == [3, 3]


@pytest.mark.parametrize("model", [Block(Updated(DIM, 3 * DIM)), InPairs(nn.Linear(DIM, 3 * DIM))])
def test_another_form_of_queries_keys_and_values_stays(model, tmp_path):
    found = operators(graph_of(model, tmp_path / "model.onnx", dynamic=False))
    assert found["MatMul"] == 1 + 2 + 1 + 2 * isinstance(model.qkv, Updated)
    assert found["Mul"] == 1


def test_products_of_two_maps_are_none_of_tokens(tmp_path):
    graph_of(Normalised(nn.Linear(DIM, 3 * DIM)), tmp_path / "model.onnx", dynamic=False)


def test_two_uses_of_one_product_have_weights_of_their_own(tmp_path):
    class Twice(Block):
        def forward(self, image):
            x = self.qkv(self.stem(image).flatten(2).mT)  # [B, N, 3*C]
            parts = [x.unflatten(-1, (3, heads, -1)).unbind(2) for heads in (HEADS, 2 * HEADS)]
            return torch.cat([sum(part).flatten(2) for part in parts], dim=-1)  # [B, N, 2*C]

    graph_of(Twice(nn.Linear(DIM, 3 * DIM)), tmp_path / "model.onnx", dynamic=False)


def test_queries_that_have_two_uses_keep_their_scale(tmp_path):
    found = operators(graph_of(Gated(nn.Linear(DIM, 3 * DIM)), tmp_path / "model.onnx", dynamic=False))
    assert found["MatMul"] == 3 + 2 + 1
    assert found["Mul"] == 2
