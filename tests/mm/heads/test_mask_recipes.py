"""The recipes of EoMT and PMT: the authors' settings."""

import pytest
from conftest import REPO

from vitdense.mm.config.load import load_config

NAMES = sorted(path.stem for path in REPO.glob("configs/*.py") if path.stem.startswith(("eomt_", "pmt_")))
EPOCHS = {"coco": 7391, "ade20k": 1263}


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_the_authors(name):
    cfg = load_config(name)
    is_eomt, on_coco, is_dinov3 = name.startswith("eomt"), "coco" in name, "dinov3" in name
    short = 12 if on_coco else 16 if is_dinov3 or not is_eomt else 31
    epochs = 24 if "dinov2_s" in name or "dinov2_b" in name else short
    assert cfg.train_cfg.max_iters == epochs * EPOCHS["coco" if on_coco else "ade20k"]
    assert cfg.train_dataloader.batch_size * 4 == cfg.auto_scale_lr.base_batch_size == 16
    assert cfg.optim_wrapper.optimizer.lr == (1e-4 if is_eomt and not is_dinov3 else 2e-4)
    assert cfg.optim_wrapper.optimizer.weight_decay == 0.05
    assert cfg.optim_wrapper.clip_grad == {"max_norm": 0.01}
    schedules = [step.type for step in cfg.param_scheduler]
    assert schedules == (["vitdense.TwoWarmupsLR"] if is_eomt else ["LinearLR", "CosineAnnealingLR"])
    assert cfg.param_scheduler[-1].end == cfg.train_cfg.max_iters
    if is_eomt:
        assert cfg.param_scheduler[0].warmups == ((2000, 3000) if is_dinov3 else (500, 1000))
        decay = {"layer_decay_rate": 1.0 if is_dinov3 and not on_coco else 0.8}
        decay |= {"num_full_blocks": 4} if is_dinov3 and on_coco else {}
        assert cfg.optim_wrapper.paramwise_cfg == decay
    else:
        assert not cfg.optim_wrapper.get("paramwise_cfg")
    (hook,) = cfg.custom_hooks
    head = cfg.model.panoptic_head if on_coco else cfg.model.decode_head
    assert len(hook.starts) == len(hook.ends) == head.get("num_blocks", 6)
    assert hook.ends[-1] < cfg.train_cfg.max_iters  # a trained model needs no masks
    assert head.get("num_queries", 200) == (200 if on_coco else 100)
    if is_eomt:
        assert cfg.model.backbone.num_joint_blocks == head.num_blocks == (4 if "_l_" in name else 3)
        assert cfg.model.backbone.init_cfg.get("resize") == (None if is_dinov3 else "timm")


def test_instances_have_no_stuff():
    cfg = load_config("eomt_dinov3_l_640_coco")
    for part in (cfg.model.panoptic_head, cfg.model.panoptic_fusion_head):
        assert (part.num_things_classes, part.num_stuff_classes) == (80, 0)
    assert cfg.val_evaluator.metric == "segm"
    assert not any("Panoptic" in step.type for step in cfg.train_dataloader.dataset.pipeline)


def test_recipe_of_eva02_l():
    cfg = load_config("cascade_eva02_l_coco")
    assert cfg.train_cfg.max_epochs == 74
    assert [round(step.begin, 1) for step in cfg.param_scheduler[1:]] == [59.2, 66.6]
    assert cfg.optim_wrapper.optimizer.lr == 6e-5
    assert cfg.optim_wrapper.paramwise_cfg == {"layer_decay_rate": 0.8}
    assert cfg.auto_scale_lr.base_batch_size == 144
    assert pytest.approx(60000, rel=0.02) == 74 * 118287 / 144
