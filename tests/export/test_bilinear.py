import pytest
import torch
import torch.nn.functional as F

from vitdense.export.program import bilinear


@pytest.mark.parametrize("size", [(7, 9), (1, 5), (4, 1)])
def test_bilinear_gathers_are_grid_sample(size):
    make = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, *size, generator=make, dtype=torch.float64)
    points = torch.rand(3, 40, 4, 2, generator=make, dtype=torch.float64) * 3 - 1.5  # also outside
    points[0, 0] = torch.tensor([[-1, -1], [1, 1], [0, 0], [1e9, -1e9]])
    torch.testing.assert_close(bilinear(x, points), F.grid_sample(x, points, align_corners=False))
