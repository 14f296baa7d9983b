"""Forms of torch's functions in exports, however a call gives arguments; what they do not handle is torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from vitdense.export.onnx import save_onnx
from vitdense.export.program import SIZELESS_FORMS, _Answering, bilinear, export_program
from vitdense.runtime import open_onnxruntime

X, ROWS, GRID = torch.rand(2, 4, 9, 8), torch.rand(2, 6, 4), torch.rand(2, 5, 5, 2) * 2 - 1
WEIGHT, BIAS, KERNEL, MASK = torch.rand(3, 4), torch.rand(3), torch.rand(4, 4, 1, 1), torch.eye(6)[None, None]
CALLS = {
    "linear": lambda: F.linear(ROWS, WEIGHT, BIAS),
    "linear by name": lambda: F.linear(input=ROWS, weight=WEIGHT),
    "linear with a weight by name": lambda: F.linear(ROWS, weight=WEIGHT, bias=BIAS),
    "conv2d of a window": lambda: F.conv2d(X, torch.ones(4, 4, 3, 3), torch.ones(4), padding=1),
    "conv2d by name": lambda: F.conv2d(input=X, weight=KERNEL, stride=2),
    "conv2d of a row": lambda: F.conv2d(X[:, :, :1], torch.ones(2, 4, 3, 3), padding=1),
    "conv_transpose2d": lambda: F.conv_transpose2d(X, KERNEL, None, 2),
    "grid_sample": lambda: F.grid_sample(X, GRID, align_corners=False),
    "grid_sample by name": lambda: F.grid_sample(input=X, grid=GRID, mode="nearest", align_corners=False),
    "grid_sample of corners": lambda: F.grid_sample(X, GRID, "bilinear", "zeros", True),
    "grid_sample of the border": lambda: F.grid_sample(X, grid=GRID, padding_mode="border", align_corners=False),
    "pad": lambda: F.pad(X, (0, -1, -1, 0)),
    "pad by name": lambda: F.pad(input=X, pad=(0, -1)),
    "pad with more": lambda: F.pad(X, (1, 1, 0, 0), mode="reflect"),
    "max_pool2d": lambda: F.max_pool2d(X, 1, stride=2),
    "max_pool2d by name": lambda: F.max_pool2d(input=X, kernel_size=1, stride=2),
    "max_pool2d of pixels": lambda: F.max_pool2d(X, 1),
    "max_pool2d of a window": lambda: F.max_pool2d(X, 3, 2, padding=1),
    "max_pool2d of one column": lambda: F.max_pool2d(X[..., :1], 3, 2, padding=1),
    "max_pool2d with places": lambda: F.max_pool2d(X, 1, 2, return_indices=True),
    "adaptive_avg_pool2d of one pixel": lambda: F.adaptive_avg_pool2d(X, 1),
    "adaptive_avg_pool2d of a row to more rows": lambda: nn.AdaptiveAvgPool2d((2, 5))(X[:, :, :1]),
    "adaptive_avg_pool2d of a column to more columns": lambda: nn.AdaptiveAvgPool2d(3)(X[..., :1]),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(output_size=3, input=X),
    "adaptive_avg_pool2d of sides that overlap": lambda: F.adaptive_avg_pool2d(X, (2, 5)),
    "adaptive_avg_pool2d to more": lambda: F.adaptive_avg_pool2d(X[..., :1, :], (2, 9)),
    "adaptive_avg_pool2d to one": lambda: F.adaptive_avg_pool2d(X, 1),
    "adaptive_avg_pool2d of one axis": lambda: F.adaptive_avg_pool2d(X, (None, 2)),
    "adaptive_avg_pool2d of one image": lambda: F.adaptive_avg_pool2d(X[0], [2, 3]),
    "meshgrid": lambda: torch.meshgrid(torch.arange(3), torch.arange(4), indexing="xy"),
    "attention": lambda: F.scaled_dot_product_attention(X, X, X),
    "attention with a mask": lambda: F.scaled_dot_product_attention(*[ROWS[:, None]] * 3, MASK),
    "attention with a mask by name": lambda: F.scaled_dot_product_attention(
        *[ROWS[:, None]] * 3, attn_mask=MASK.bool()
    ),
    "attention to the left": lambda: F.scaled_dot_product_attention(query=X, key=X, value=X, is_causal=True),
}


def close(got, want):
    got, want = tree_leaves(got), tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_forms_are_equal_to_torchs(call):
    with _Answering(SIZELESS_FORMS):
        got = call()
    close(got, call())


OF_MODULE = {
    "plain": {},
    "bias": dict(bias=False),
    "zeros": dict(add_zero_attn=True),
    "biases of keys": dict(add_bias_kv=True),
    "other keys": dict(kdim=5, vdim=3),
    "rows first": dict(batch_first=True),
}
OF_CALL = {
    "plain": {},
    "a mask to add": dict(attn_mask=torch.randn(6, 7)),
    "a mask of each head": dict(attn_mask=torch.randn(2 * 2, 6, 7)),
    "a mask of pairs": dict(attn_mask=torch.ones(6, 7).triu(1) > 0),
    "padding": dict(key_padding_mask=torch.arange(7).expand(2, 7) > 4),
    "no weights": dict(need_weights=False),
    "weights of heads": dict(average_attn_weights=False),
}


@pytest.mark.parametrize("of_call", OF_CALL)
@pytest.mark.parametrize("of_module", OF_MODULE)
def test_attention_is_torchs_with_any_options(of_module, of_call):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, **OF_MODULE[of_module]).eval()
    widths = (4, attention.kdim, attention.vdim)
    x = [torch.rand(n, 2, width) for n, width in zip((6, 7, 7), widths)]
    x = [one.transpose(0, 1) for one in x] if attention.batch_first else x
    with torch.no_grad():
        want = attention(*x, **OF_CALL[of_call])
        with _Answering(SIZELESS_FORMS):
            close(attention(*x, **OF_CALL[of_call]), want)


class Reads(nn.Module):
    """Attention with what `_onnx_attention` leaves to torch, and a linear layer by names."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))

    def forward(self, image):
        rows = F.linear(input=image.flatten(2).mT, weight=self.weight)  # [B, N, 3]
        return F.scaled_dot_product_attention(rows[:, None], rows[:, None], rows[:, None], is_causal=True)


def test_a_program_keeps_operators_of_torch(tmp_path):
    pytest.importorskip("onnxruntime")
    model, image = Reads().eval(), torch.rand(1, 3, 8, 8)
    save_onnx(export_program(model, image, dynamic=False), tmp_path / "a.onnx")
    (got,) = open_onnxruntime(tmp_path / "a.onnx").run(image.numpy())
    torch.testing.assert_close(torch.tensor(got), model(image).detach())


@pytest.mark.parametrize("size", [(7, 9), (1, 5), (4, 1)])
def test_bilinear_gathers_are_grid_sample(size):
    make = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, *size, generator=make, dtype=torch.float64)
    points = torch.rand(3, 40, 4, 2, generator=make, dtype=torch.float64) * 3 - 1.5  # also outside
    points[0, 0] = torch.tensor([[-1, -1], [1, 1], [0, 0], [1e9, -1e9]])
    torch.testing.assert_close(bilinear(x, points), F.grid_sample(x, points, align_corners=False))
