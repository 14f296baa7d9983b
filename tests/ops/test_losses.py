"""The focal loss of mmcv on the stand-in, against its formula."""

import pytest
import torch
from torch.autograd import gradcheck

from vitdense.ops import ops_in_use

mm = pytest.importorskip("mmcv.ops")
pytestmark = pytest.mark.skipif(ops_in_use().kind != "stand-in", reason="a compiled mmcv is in use")


@pytest.mark.parametrize("gamma", [0.0, 1.5, 2.0])
@pytest.mark.parametrize("weighted", [True, False])
def test_sigmoid_focal_loss(gamma, weighted):
    x = (3 * torch.randn(6, 4)).double()
    target = torch.tensor([0, 3, 4, 1, 4, 2])  # 4 is background
    weight = torch.rand(4).double() if weighted else None
    p, is_own = 1 / (1 + (-x).exp()), target[:, None] == torch.arange(4)
    want = torch.where(is_own, -0.3 * (1 - p) ** gamma * p.log(), -0.7 * p**gamma * (1 - p).log())
    if weighted:
        want *= torch.cat([weight, torch.ones(1)])[target][:, None]
    args = (target, gamma, 0.3, weight)
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "none"), want)
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "sum"), want.sum())
    torch.testing.assert_close(mm.sigmoid_focal_loss(x, *args, "mean"), want.sum() / 6)
    assert gradcheck(lambda t: mm.sigmoid_focal_loss(t, *args, "none"), x.requires_grad_())


def test_focal_loss_of_extreme_logits_half_types_and_no_anchors():
    loss = mm.sigmoid_focal_loss
    x = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    value = loss(x, torch.tensor([0, 0]), 2.0, 0.25, None, "sum")
    value.backward()
    assert torch.isfinite(x.grad).all()
    assert 10 < value < 1e3
    half = torch.randn(3, 2).bfloat16().requires_grad_()
    want = loss(half.detach().float(), torch.tensor([0, 1, 1]), 2.0, 0.25, None, "sum")
    value = loss(half, torch.tensor([0, 1, 1]), 2.0, 0.25, None, "sum")
    value.backward()
    assert value.dtype == half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.float(), want, rtol=0.05, atol=0)
    assert loss(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 2.0, 0.25, None, "sum") == 0
