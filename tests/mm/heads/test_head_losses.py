import torch
from mmdet.models.losses import FocalLoss

from vitdense.mm.heads.detection import ClampedFocalLoss


def test_clamped_focal_loss_divides_by_at_least_one():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 3, 4, 4, 1, 4])  # 4 is background
    options = {"use_sigmoid": True, "gamma": 2.0, "alpha": 0.25, "loss_weight": 2.0}
    ours, theirs = ClampedFocalLoss(**options), FocalLoss(**options)
    for count in (3.0, 1.0):
        assert torch.equal(
            ours(logits, labels, avg_factor=torch.tensor(count)), theirs(logits, labels, avg_factor=count)
        )
    background = torch.full_like(labels, 4)
    p = logits.double().sigmoid()
    want = 2 * (0.75 * p**2 * -(1 - p).log()).sum()
    for none in (0.0, torch.tensor(0.0)):
        torch.testing.assert_close(ours(logits, background, avg_factor=none), want.float())
    assert theirs(logits, background, avg_factor=0.0) > 1e6 * want
