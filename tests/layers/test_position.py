import copy

import pytest
import torch

from vitdense.layers.position import AbsolutePosition, ExtraTokens


@pytest.mark.parametrize(
    "layer",
    [
        AbsolutePosition((4, 6), 8),
        AbsolutePosition((3, 3), 8, "dinov2"),
        ExtraTokens(8, distilled=False, position=False, registers=1),
    ],
    ids=["1d", "dinov2", "tokens"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_of_the_residual_stream(layer, dtype):
    """A model in one dtype stays in it; under autocast, which makes the map in half precision, it is in float32."""
    x = torch.randn(2, 4, 6, 8)
    x = x.flatten(1, 2) if isinstance(layer, ExtraTokens) else x
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.float32
    assert copy.deepcopy(layer).to(dtype)(x.to(dtype)).dtype == dtype
