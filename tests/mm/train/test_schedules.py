"""When masked attention ends, the two warm-ups and the layer-wise decay of EoMT's authors, as numbers."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from vitdense.layers.mask_attention import mask_probability, pairs_that_attend
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.hooks import MaskAnnealingHook
from vitdense.mm.train.optim import TwoWarmupsLR, two_warmups
from vitdense.models.vit.tokens import JointViT


def test_probability_of_masked_attention():
    curve = [mask_probability(step, 100, 300) for step in (0, 100, 150, 200, 250, 299, 300, 10**6)]
    assert curve == pytest.approx([1, 1, 0.75**0.9, 0.5**0.9, 0.25**0.9, 0.005**0.9, 0, 0])


def test_hook_sets_every_head_by_the_step():
    model = nn.Sequential(nn.Module(), nn.Module())
    for head in model:
        head.register_buffer("mask_probabilities", torch.ones(2))
    hook, runner = MaskAnnealingHook((0, 10), (10, 20)), SimpleNamespace(model=model, iter=5)
    hook.before_train(runner)
    for step, want in ((5, (0.5**0.9, 1)), (15, (0, 0.5**0.9)), (20, (0, 0)), (0, (1, 1))):
        runner.iter = step
        hook.before_train_iter(runner, 0)
        for head in model:
            assert head.mask_probabilities.tolist() == pytest.approx(want)
    with pytest.raises(ConfigError, match="starts"):
        MaskAnnealingHook((0,), (10,)).before_train(runner)
    with pytest.raises(ConfigError, match="starts"):
        MaskAnnealingHook((10,), (10,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_of_attention_are_never_empty(sign):
    masks = sign * torch.ones(2, 3, 8, 8)
    for probability, seen in ((1.0, sign > 0), (0.0, True)):
        pairs = pairs_that_attend(masks, (2, 2), 3 + 5 + 4, torch.tensor(probability))[:, 0]
        assert pairs.shape == (2, 12, 12)
        assert pairs.any(-1).all()
        assert pairs[:, :3, 8:].eq(seen).all()  # queries, patches
        pairs[:, :3, 8:] = True
        assert pairs.all()


def test_masks_are_lifted_by_image_and_query():
    masks = -torch.ones(50, 40, 4, 4)
    pairs = pairs_that_attend(masks, (2, 2), 45, torch.tensor(0.3))[:, 0, :40, -4:]
    assert (pairs.any(-1) == pairs.all(-1)).all()
    assert pairs[..., 0].float().mean() == pytest.approx(0.7, abs=0.04)  # 2000 draws: deviation 0.01
    assert pairs[..., 0].float().mean(1).unique().numel() > 5


def test_two_warmups():
    new = [two_warmups(step, False, (4, 6), 20) for step in (0, 2, 4, 12, 20)]
    assert new == pytest.approx([0, 0.5, 1, 0.5**0.9, 0])
    trunk = [two_warmups(step, True, (4, 6), 20) for step in (0, 4, 7, 10, 15, 20)]
    assert trunk == pytest.approx([0, 0, 0.5, 1, 0.5**0.9, 0])


@pytest.mark.parametrize("full", [0, 2])
def test_learning_rates_of_the_authors(full):
    trunk = JointViT(arch={"embed_dims": 8, "depth": 4, "num_heads": 2}, num_joint_blocks=2)
    model = nn.ModuleDict({"backbone": trunk, "head": nn.Linear(2, 2)})
    cfg = {"type": "OptimWrapper", "constructor": "vitdense.EoMTOptimWrapperConstructor"}
    cfg["optimizer"] = {"type": "AdamW", "lr": 1.0, "weight_decay": 0.05}
    cfg["paramwise_cfg"] = {"layer_decay_rate": 0.5, "num_full_blocks": full}
    optimizer = build_optim_wrapper(model, cfg).optimizer
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    rates = {name: rates[id(p)] for name, p in model.named_parameters()}
    want = {"patch_embed": 0.125, "absolute_pos_embed": 0.125, "tokens": 0.125, "norm": 1.0}
    want |= {f"blocks.{i}.": 1.0 if full and i > 1 else 0.5 ** (3 - i) for i in range(4)}
    for name, rate in rates.items():
        expected = next((value for part, value in want.items() if name.startswith(f"backbone.{part}")), 1.0)
        assert rate == pytest.approx(expected), name
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.05}
    scheduler = TwoWarmupsLR(optimizer, (4, 6), 20)
    for _ in range(7):
        optimizer.step()
        scheduler.step()
    for group, base in zip(optimizer.param_groups, scheduler.base_values):
        factor = 0.5 if group["part"].startswith("backbone") else (13 / 16) ** 0.9
        assert group["lr"] == pytest.approx(base * factor)


def test_a_shorter_run_keeps_the_shares_of_the_schedule():
    cfg = load_config("eomt_dinov2_s_640_coco_panoptic", {"settings.max_iters": 7391})
    (schedule,), (hook,) = cfg.param_scheduler, cfg.custom_hooks
    assert (schedule.end, *schedule.warmups) == (7391, 500 // 24, 1000 // 24)
    assert (hook.starts[0], hook.ends[-1]) == (29564 // 24, 147820 // 24)


def test_another_constructor_does_not_tell_the_trunk():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(ConfigError, match="constructor"):
        TwoWarmupsLR(optimizer, (4, 6), 20)
    with pytest.raises(ConfigError, match="by_epoch"):
        TwoWarmupsLR(optimizer, (4, 6), 20, by_epoch=True)
