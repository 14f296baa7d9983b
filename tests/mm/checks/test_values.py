"""Values of the optimizer and of the run, parts of a config that belong together, and what is never reached."""

import re

import pytest

from vitdense.mm.checks import findings
from vitdense.mm.checks.config import mixing, types
from vitdense.mm.checks.model import build
from vitdense.mm.checks.schedule import monitors, schedule, warm_up
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.load import load_config

NO_VALIDATION = {"val_cfg": None, "val_dataloader": None, "val_evaluator": None}


def errors(options, name="rfdetr_nano_shapes", splits=("train", "val")):
    cfg = load_config(name, options)
    return [str(found) for found in findings(cfg, splits, data_sets(cfg, splits)) if found.grave]


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim_wrapper.clip_grad.max_norm", 0),
        ("optim_wrapper.clip_grad.max_norm", float("nan")),
        ("model.neck.type", "FPM"),
        ("optim_wrapper.optimizer.lr", float("inf")),
        ("optim_wrapper.optimizer.lr", "fast"),
        ("optim_wrapper.optimizer.lr", (1e-4,)),
        ("optim_wrapper.clip_grad.max_norm", [0.1]),
        ("optim_wrapper.optimizer.betas", (0.9, 1.5)),
        ("optim_wrapper.accumulative_counts", 0),
        ("optim_wrapper.accumulative_counts", True),
        ("optim_wrapper.paramwise_cfg.custom_keys.neck.decay_mult", "none"),
        ("randomness.seed", -1),
        ("train_dataloader.num_workers", -1),
        ("val_dataloader.num_workers", 10**6),
        ("train_dataloader.dataset.indices", 0),
        ("train_cfg.val_interval", 0),
        ("train_cfg.val_begin", 10**6),
        ("train_cfg.dynamic_intervals", [(10**6, 1)]),
        ("train_cfg.dynamic_intervals", [(1, 0)]),
        ("param_scheduler.0.end", "ten"),
        ("default_hooks.checkpoint.interval", "often"),
        ("train_dataloader.batch_size", 0),
        ("default_hooks.checkpoint.by_epoch", True),
        ("default_hooks.checkpoint.type", "CheckpointHookk"),
        ("default_hooks.timer.type", "Timer"),
        ("optim_wrapper.optimizer.type", "AdamWW"),
        ("val_evaluator.type", "CocoMetrik"),
        ("val_dataloader.dataset.pipeline.1.type", "Resiz"),
        ("val_evaluator.ann_file", ""),
        ("val_dataloader.dataset.ann_file", ""),
        ("val_cfg", None),
        ("test_evaluator", None),
    ],
)
def test_a_wrong_value_is_one_error_that_names_it(key, value):
    found = errors({key: value})
    assert any(key.removesuffix(".type") in line for line in found), found


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model.roi_head.num_stages", "three", "model: "),
        ("model.backbone.no_such_option", 1, r"model\.backbone: .*no_such_option"),
        ("param_scheduler.0.gamma2", 1, r"param_scheduler\.0: "),
    ],
)
def test_what_cannot_be_built_is_an_error(key, value, named):
    cfg = load_config("cascade_swin_nano_shapes")
    cfg.merge_from_dict({key: value})
    (error,) = [*types(cfg, ("train",)), *build(cfg, ("train",))]
    assert re.match(named, str(error))


def test_a_comma_too_much_in_a_weight_of_a_loss_is_named():
    key = "model.bbox_head.loss_bbox.loss_weight"
    assert any(key in line for line in errors({key: (2,)}, "atss_swin_nano_shapes"))


@pytest.mark.parametrize(
    ("kind", "name", "fix"),
    [
        ("Mosaic", "cascade_swin_nano_shapes", "vitdense.Mosaic"),
        ("MixUp", "cascade_swin_nano_shapes", "vitdense.Mosaic"),
        ("CopyPaste", "cascade_swin_nano_shapes", None),
        ("vitdense.Mosaic", "cascade_swin_nano_shapes", None),
        ("Mosaic", "cascade_rcnn_swin_nano_shapes", None),
        ("vitdense.Mosaic", "eomt_nano_shapes", "leave it out"),
    ],
)
def test_steps_that_mix_boxes_alone_are_named(kind, name, fix):
    cfg = load_config(name)
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type="MultiImageMixDataset", dataset=inner, pipeline=[dict(type=kind)])
    found = [str(fault) for fault in mixing(cfg, ("train",))]
    assert len(found) == (fix is not None)
    assert all(kind in line and fix in line for line in found)


@pytest.mark.parametrize(
    "loop",
    [
        {"max_iters": None},
        {"max_iters": None, "by_epoch": True},
        {"type": "IterBasedTrainLoop", "max_iters": None},
        {"_delete_": True, "type": "EpochBasedTrainLoop"},
    ],
)
def test_a_loop_of_mmengine_without_a_length_is_refused(loop):
    cfg = load_config("rfdetr_nano_shapes")
    cfg.merge_from_dict({"train_cfg": loop})
    (fault,) = schedule(cfg)
    assert "max_epochs" in str(fault)
    cfg.train_cfg = {"type": "LoopOfMyOwn"}
    assert list(schedule(cfg)) == []
    assert list(warm_up(cfg, 100)) == []


def test_values_in_their_range_pass():
    right = {"optim_wrapper.optimizer.lr": 0, "optim_wrapper.clip_grad": None, "randomness.seed": None}
    assert errors({**right, "optim_wrapper.accumulative_counts": 4}) == []


@pytest.mark.parametrize(
    "options",
    [
        {"default_hooks.checkpoint.save_best": "auto"},
        {"default_hooks.early_stopping": {"type": "EarlyStoppingHook", "monitor": "coco/bbox_mAP"}},
        {"param_scheduler": [{"type": "ReduceOnPlateauLR", "monitor": "loss", "by_epoch": False}]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_needs_a_validation_is_refused_without_one(options):
    key = next(iter(options)).removesuffix(".type")
    assert errors(NO_VALIDATION, splits=("train",)) == []
    cfg = load_config("rfdetr_nano_shapes", {**NO_VALIDATION, **options})
    found = [str(found) for found in monitors(cfg, ("train",)) if "there is no validation" in str(found)]
    assert len(found) == 1
    assert key in found[0]


def test_leaving_out_the_validation_keeps_the_test():
    cfg = load_config("rfdetr_nano_shapes", NO_VALIDATION)
    assert cfg.test_dataloader.dataset.type == load_config("rfdetr_nano_shapes").test_dataloader.dataset.type
    assert cfg.test_cfg is not None
    none = {key.replace("val_", "test_"): None for key in NO_VALIDATION}
    assert errors({**NO_VALIDATION, **none}, splits=("train",)) == []


@pytest.mark.long
def test_a_model_that_reads_values_in_its_constructor_is_built():
    assert list(build(load_config("mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py"), ("train",))) == []


def test_a_time_of_the_file_that_is_not_reached_is_a_warning():
    cfg = load_config("mmdet::masktrack_rcnn/masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2021.py")
    assert ["val_begin" in str(found) for found in schedule(cfg) if not found.grave] == [True]
