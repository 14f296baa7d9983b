"""The dry step finds what parts of a config make of each other, names the part, and leaves nothing behind."""

import random
import re

import numpy as np
import pytest
import torch

from vitdense.mm.checks import dry_step, findings
from vitdense.mm.checks.model import frozen
from vitdense.mm.checks.report import look
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.base import build_evaluator, build_loader, build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError
from vitdense.mm.train import launch

BOXES, MASKS, MAPS = "cascade_rcnn_swin_nano_shapes", "cascade_swin_nano_shapes", "upernet_swin_nano_shapes"


def config(name, folder, **options):
    draw = {"num_train": 2, "num_val": 1, "image_size": (64, 96), "workers": 1}
    options |= {f"{split}_dataloader.dataset.draw": draw for split in ("train", "val")}
    if name == MAPS:
        options = {"model.data_preprocessor.size": draw["image_size"], **options}
    return load_config(name, {"data_root": f"{folder}/shapes/", **options})


def mosaic(cfg):
    inner = cfg.train_dataloader.dataset
    inner.pipeline, last = inner.pipeline[:-1], inner.pipeline[-1]
    steps = [{"type": "Mosaic", "img_scale": (64, 96)}, last]
    cfg.train_dataloader.dataset = {"type": "MultiImageMixDataset", "dataset": inner, "pipeline": steps}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        (MAPS, {"model.decode_head.loss_decode.class_weight": [1.0] * 10}, "model.decode_head.loss_decode"),
        (BOXES, {"model.roi_head.bbox_head.1.loss_cls.class_weight": [1.0] * 8}, "model.roi_head.bbox_head.1.loss_"),
        (BOXES, {"model.neck.out_channels": 16}, "model.rpn_head"),
        (BOXES, {"model.neck.in_channels": [16, 24, 96, 128]}, "model.neck"),
        (MAPS, {"model.decode_head.in_channels": [8, 8, 8, 8]}, "model.decode_head"),
        (BOXES, {"val_evaluator.metric": ["bbox", "segm"]}, "val_evaluator"),
        (BOXES, {"train_dataloader.dataset.pipeline.3.scale": "large"}, "train_dataloader"),
        (BOXES, {"train_dataloader.sampler.type": "Samplerr"}, "train_dataloader.sampler: no class"),
        (BOXES, {"train_dataloader.dataset.pipeline.3.type": "Resizze"}, "train_dataloader.dataset.pipeline.3: no"),
        (MASKS, mosaic, ""),
    ],
)
def test_the_part_that_fails_is_named(name, options, part, tmp_path):
    cfg = config(name, tmp_path, **({} if callable(options) else options))
    if callable(options):
        options(cfg)
    (error,) = dry_step.find(cfg, ("train", "val"))
    assert re.match(f"(dry step: .*|metric of .*|){re.escape(part)}", str(error))


def states():
    of_numpy = np.random.get_state()[1].tolist()  # noqa: NPY002 -- mm's transforms draw from it
    return random.getstate(), of_numpy, torch.get_rng_state().tolist()


@pytest.mark.long
@pytest.mark.parametrize("name", [MASKS, MAPS])
def test_dry_step_changes_nothing(name, tmp_path):
    cfg = config(name, tmp_path)
    assert list(dry_step.find(cfg, ("train", "val"))) == []
    assert not (tmp_path / "shapes").exists()  # drawn elsewhere
    train, val = (build_loader(cfg, split) for split in ("train", "val"))
    model = build_model(cfg).train()
    model.init_weights()
    evaluator = build_evaluator(cfg, val)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seeds = states()
    dry_step.train(model, train, None)
    dry_step.validate(model, val, evaluator, half=False)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert states() == seeds
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert evaluator.metrics[0].results == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_a_device_without_room_is_a_warning_that_names_the_batch_size(error, tmp_path, monkeypatch):
    def build(cfg):
        raise error

    monkeypatch.setattr(dry_step, "build_model", build)
    (fault,) = dry_step.find(config(BOXES, tmp_path), ("train",))
    assert not fault.grave
    assert "--batch-size" in str(fault)


@pytest.mark.long
def test_a_training_is_refused_before_its_first_iteration(tmp_path):
    cfg = config(BOXES, tmp_path, **{"model.neck.out_channels": 16})
    cfg.work_dir = str(tmp_path / "work")
    with pytest.raises(ConfigError, match=r"dry step: model\.rpn_head"):
        launch.train(cfg)
    assert not list((tmp_path / "work").glob("*.pth"))


def test_what_cannot_be_built_is_found_before_a_training(tmp_path):
    cfg = config(BOXES, tmp_path, **{"optim_wrapper.optimizer": {"_delete_": True, "type": "SGD", "lr": 0.1}})
    found = [str(one) for one in findings(cfg, ("train",), data_sets(cfg, ("train",)))]
    assert any(line.startswith("optim_wrapper") and "weight_decay" in line for line in found)


@pytest.mark.parametrize(("total", "named"), [(2, "train_dataloader.batch_size: got 1"), (3, "got 3, expected a mult")])
def test_the_batch_is_the_share_of_the_total(total, named, tmp_path):
    options = {"settings.total_batch_size": total, "optim_wrapper.accumulative_counts": 2}
    (fault,) = look(config(MAPS, tmp_path, **options), trains=False)[0]
    assert named in str(fault)


@pytest.mark.parametrize(
    ("backbone", "warns"),
    [
        ({}, False),
        ({"frozen_stages": "all"}, True),
        ({"finetune": "lora"}, True),
        ({"frozen_stages": 2, "init_cfg": {"type": "Pretrained", "checkpoint": "a.pth"}}, False),
    ],
)
def test_frozen_random_weights_are_a_warning(backbone, warns, tmp_path):
    cfg = config(BOXES, tmp_path)
    cfg.model.backbone.update(backbone)
    assert any("never learn" in str(one) for one in frozen(cfg, ("train",))) == warns
