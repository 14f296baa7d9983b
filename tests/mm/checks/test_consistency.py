import re

import pytest
from conftest import RECIPES
from mmengine.config import Config

from vitdense.mm.checks.config import batch_size
from vitdense.mm.checks.data import evaluators
from vitdense.mm.checks.model import normalisation, padding
from vitdense.mm.checks.schedule import monitors, schedule, warm_up
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.load import load_config


def test_metric_of_another_annotation_file(tmp_path):
    data = {"dataset": {"type": "CocoDataset", "data_root": str(tmp_path), "ann_file": "val.json"}}

    def faults(**metric):
        cfg = Config({"val_dataloader": data, "val_evaluator": [metric]})
        return list(map(str, evaluators(cfg, data_sets(cfg, ("val",)))))

    (line,) = faults(type="CocoMetric", ann_file=str(tmp_path / "train.json"))
    assert re.match(r"val_evaluator\.ann_file: got .*train\.json.*val\.json", line)
    assert not faults(type="CocoMetric", ann_file=f"{tmp_path}/./val.json")
    assert not faults(type="CocoMetric")


IMAGENET = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "bgr_to_rgb": True}


def with_weights(init_cfg, settings=None, **changes):
    if isinstance(init_cfg, str):
        init_cfg = {"type": "Pretrained", "checkpoint": init_cfg}
    backbone = {"type": "vitdense.Swin", "init_cfg": init_cfg}
    model = {"backbone": backbone, "data_preprocessor": IMAGENET | changes}
    return Config({"model": model, "settings": settings or {}})


@pytest.mark.parametrize(
    ("weights", "changes", "expected"),
    [
        ("vit_base.augreg_in21k", {}, "mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]"),
        ("timm://vit_base_patch16_224.augreg_in21k", {}, "mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]"),
        ("dinov3_large.fb_sat493m", {}, "mean=[109.65, 104.805, 75.48], std=[54.315, 39.78, 36.465]"),
        ("eva02_small", {}, "mean=[122.771, 116.746, 104.094], std=[68.501, 66.632, 70.323]"),
        ("swin_tiny", {"mean": None}, "mean=[123.675, 116.28, 103.53]"),
        ("swin_tiny", {"mean": [103.53, 116.28, 123.675]}, "mean=[123.675, 116.28, 103.53]"),
        ("swin_tiny", {"mean": [123.675] * 4}, "mean=[123.675, 116.28, 103.53]"),
        ("swin_tiny", {"bgr_to_rgb": False}, "bgr_to_rgb=True"),
        ([{"type": "Pretrained", "checkpoint": "swin_tiny"}], {"std": [1.0] * 3}, "std=[58.395, 57.12, 57.375]"),
    ],
)
def test_normalisation_that_the_weights_do_not_expect_is_refused(weights, changes, expected):
    (fault,) = normalisation(with_weights(weights, **changes))
    assert f"expect {expected}; set model = dict(data_preprocessor=dict({expected}))" in str(fault)
    assert not list(normalisation(with_weights(weights, settings={"normalisation": "own"}, **changes)))
    line = re.search(r"set model = dict\(data_preprocessor=(dict\(.*?\))\)", fault.fix)[1]
    assert not list(normalisation(with_weights(weights, **changes | eval(line))))


def test_right_or_unknown_normalisation_is_no_fault():
    cfg = with_weights("swin_tiny")
    del cfg.model.data_preprocessor  # the pipeline normalises
    more = {"type": "Pretrained", "checkpoint": "swin_tiny", "channels": "mean"}
    right = [cfg, with_weights("swin_tiny"), with_weights("swin_tiny", mean=(123.7, 116.3, 103.5))]  # rounded
    others = ("of_mine.pth", {"type": "Xavier", "layer": "Linear"}, None, more)
    for cfg in (*right, *(with_weights(other, mean=[0, 0, 0]) for other in others)):
        assert not list(normalisation(cfg))


def test_normalisation_for_the_trunk_of_an_adapter():
    cfg = with_weights("swin_tiny")
    trunk = {"init_cfg": {"type": "Pretrained", "checkpoint": "dinov3_large.fb_sat493m"}}
    cfg.model.backbone = {"type": "vitdense.ViTAdapter", "trunk": trunk}
    assert "the weights dinov3_large.fb_sat493m expect mean" in str(*normalisation(cfg))
    cfg.model.data_preprocessor.pad_size_divisor = 8
    assert "expected a multiple of 16" in str(*padding(cfg))
    cfg.data_preprocessor = cfg.model.pop("data_preprocessor")  # mmengine's runner gives it to the model
    assert "expect mean" in str(*normalisation(cfg))


def test_padding_to_whole_patches():
    def warnings(name, scope, test_cfg=None, patch_size=None, **preprocessor):
        backbone = {"type": "vitdense.ViT", "init_cfg": {"type": "Pretrained", "checkpoint": name}}
        backbone |= {"patch_size": patch_size} if patch_size else {}
        model = {"backbone": backbone, "data_preprocessor": preprocessor, "test_cfg": test_cfg}
        return list(map(str, padding(Config({"model": model, "default_scope": scope}))))

    (line,) = warnings("dinov2_small", "mmdet", pad_size_divisor=32)
    assert "data_preprocessor.pad_size_divisor: got 32, expected a multiple of 14" in line
    assert not warnings("dinov2_small", "mmdet", pad_size_divisor=28)
    assert not warnings("eva02_base", "mmdet", patch_size=16, pad_size_divisor=32)
    assert not warnings("swin_tiny", "mmdet")
    (line,) = warnings("dinov3_small", "mmseg")
    assert "data_preprocessor.test_cfg.size_divisor: got 1, expected a multiple of 16" in line
    (line,) = warnings("dinov2_small", "mmseg", test_cfg={"mode": "slide", "crop_size": (512, 512)})
    assert "test_cfg.crop_size: got 512, 512" in line
    assert not warnings("dinov2_small", "mmseg", test_cfg={"mode": "slide", "crop_size": (518, 518)})


@pytest.mark.parametrize(
    ("length", "schedulers", "names"),
    [
        ({"max_epochs": 12}, [{"type": "MultiStepLR", "end": 36, "milestones": [8, 11]}], ["ends at 36"]),
        ({"max_epochs": 12}, [{"type": "MultiStepLR", "end": 12, "milestones": [8, 27]}], ["changes at 27,"]),
        ({"max_epochs": 12}, {"type": "ConstantLR", "begin": 28.0}, ["changes at 28,"]),
        ({"max_iters": 100}, [{"type": "PolyLR", "by_epoch": False, "begin": 10, "end": 90}], ["ends at 90"]),
        ({"max_iters": 100}, [{"type": "LinearLR", "by_epoch": False, "end": 500}], ["ends at 500"]),
        ({"max_iters": 100}, [{"type": "LinearLR", "by_epoch": False, "end": 50}], []),
        ({"max_epochs": 12}, [{"type": "LinearLR", "by_epoch": False, "end": 500}], []),
        ({"max_epochs": 12}, None, []),
    ],
)
def test_schedule_against_the_length_of_the_run(length, schedulers, names):
    lines = list(map(str, schedule(Config({"train_cfg": length, "param_scheduler": schedulers}))))
    assert len(lines) == len(names)
    for line, name in zip(lines, names):
        assert name in line
        assert f"settings = dict({next(iter(length))}=" in line


@pytest.mark.long
def test_shipped_schedules_fit_their_runs_and_images_fit_the_weights():
    for path in RECIPES:
        cfg = load_config(path)
        assert not [*normalisation(cfg), *schedule(cfg), *padding(cfg)], path


def test_warm_up_longer_than_a_short_run():
    cfg = load_config("cascade_swin_t_coco", {"settings.max_epochs": 12})
    (fault,) = warm_up(cfg, 40)  # at two images a step
    assert re.search("500.*240", str(fault))
    assert not list(warm_up(cfg, 4000))


EARLY = {"type": "EarlyStoppingHook", "min_delta": 0.1}
COCO = {"type": "mmdet.FasterCocoMetric", "metric": ["bbox", "segm"]}


@pytest.mark.parametrize(
    ("evaluator", "name", "hint"),
    [
        (dict(type="IoUMetric"), "mIou", "did you mean mIoU"),
        (COCO, "bbox_mAP", "did you mean coco/bbox_mAP"),
        (dict(type="CocoMetric", metric="bbox"), "coco/segm_mAP", "coco/bbox_mAP"),
        (COCO, "coco/segm_mAP", None),
        (dict(type="IoUMetric"), "auto", None),
        (dict(type="SomebodysMetric"), "mIou", None),
        (COCO | {"classwise": True}, "coco/person_precision", None),
        (dict(type="CocoMetric", metric="proposal"), "coco/AR@100", None),
        ([dict(type="IoUMetric"), dict(type="IoUMetric", iou_metrics=["mDice"], prefix="b")], "b/mDice", None),
    ],
)
def test_a_monitor_has_the_name_of_a_metric(evaluator, name, hint):
    hooks = dict(checkpoint=dict(type="CheckpointHook", save_best=name))
    cfg = Config(dict(val_evaluator=evaluator, default_hooks=hooks))
    found = [str(error) for error in monitors(cfg, ("train", "val"))]
    assert len(found) == (hint is not None)
    assert all(f"got {name!r}" in line and hint in line for line in found)
    assert not list(monitors(cfg, ("test",)))


@pytest.mark.parametrize(("hook", "key"), [({"type": "CheckpointHook"}, "save_best"), (EARLY, "monitor")])
@pytest.mark.parametrize(
    ("evaluator", "name", "is_known"),
    [
        (dict(type="vitdense.PanopticMetric"), "coco_panoptic/PQ", False),
        (dict(type="vitdense.PanopticMetric"), "auto", False),
        (dict(type="IoUMetric", iou_metrics=["mFscore"]), "mFscore", False),
        (dict(type="IoUMetric"), "mIoU", True),
        (dict(type="SomebodysMetric"), "auto", True),
    ],
)
def test_a_monitor_has_a_direction(hook, key, evaluator, name, is_known):
    cfg = Config(dict(val_evaluator=evaluator, default_hooks=dict(hook={**hook, key: name})))
    found = [str(error) for error in monitors(cfg, ("train", "val"))]
    assert [line.split()[0] for line in found] == ([] if is_known else ["rule"])
    cfg.default_hooks.hook.rule = "greater"
    assert not list(monitors(cfg, ("train", "val")))


@pytest.mark.parametrize(
    ("size", "launcher", "device", "head", "norm", "refused"),
    [
        *((1, "none", "cuda", head, "SyncBN", True) for head in ("UPerHead", "mmseg.PSPHead")),
        (2, "none", "cuda", "UPerHead", "SyncBN", False),
        (1, "pytorch", "cuda", "UPerHead", "SyncBN", False),
        (1, "pytorch", "cpu", "UPerHead", "SyncBN", True),  # where there is no SyncBN
        (1, "none", "cuda", "FCNHead", "BN", False),
        (1, "none", "cuda", "UPerHead", "LN2d", False),
    ],
)
def test_heads_that_pool_to_one_value_need_two_images(monkeypatch, size, launcher, device, head, norm, refused):
    monkeypatch.setattr("vitdense.mm.checks.config.get_device", lambda: device)
    model = dict(decode_head=dict(type=head, norm_cfg=dict(type=norm)))
    cfg = Config(dict(model=model, train_dataloader=dict(batch_size=size), launcher=launcher))
    found = [str(error) for error in batch_size(cfg, ("train",))]
    assert len(found) == refused
    assert all("--batch-size 2" in line for line in found)
