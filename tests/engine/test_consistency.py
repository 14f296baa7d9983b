import pytest
from mmengine.config import Config

from vitdense.engine.config import load_config
from vitdense.engine.consistency import check_channels, check_evaluator, normalisation_warnings, schedule_warnings
from vitdense.engine.errors import ConfigError

pytest.importorskip("mmdet")
SWIN = {"type": "vitdense.Swin", "arch": {"embed_dims": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}}
VIT = {"type": "vitdense.ViT", "arch": {"embed_dims": 8, "depth": 4, "num_heads": 1}}
CHANNELS = [8, 16, 32, 64]


def config(**model):
    return Config({"model": {"backbone": SWIN} | model})


@pytest.mark.parametrize(
    "model",
    [
        {"neck": {"type": "FPN", "in_channels": CHANNELS}},
        {"neck": {"type": "YOLOV3Neck", "in_channels": CHANNELS[::-1]}},
        {"neck": {"type": "DilatedEncoder", "in_channels": 64}},
        {"decode_head": {"in_channels": CHANNELS, "in_index": [0, 1, 2, 3]}},
        {"decode_head": {"in_channels": CHANNELS}},  # Mask2Former
        {
            "neck": [
                {"type": "vitdense.GlobalBlock", "in_channels": CHANNELS, "num_heads": 2},
                {"in_channels": CHANNELS},
            ]
        },
        {"decode_head": {"in_channels": 64}, "auxiliary_head": [{"in_channels": 32, "in_index": 2}]},
        {
            "backbone": VIT,
            "neck": [
                {"type": "vitdense.DeconvPyramid", "in_channels": [8] * 4},
                {"type": "FPN", "in_channels": [2, 4, 8, 8]},
            ],
        },
        {
            "backbone": VIT,
            "neck": {"type": "vitdense.DeconvPyramid", "in_channels": [8] * 4},
            "decode_head": {"in_channels": 8},
        },
        {"backbone": {"type": "ResNet", "depth": 50}, "neck": {"type": "FPN", "in_channels": [1]}},
    ],
)
def test_channels_that_fit(model):
    check_channels(config(**model))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            {"neck": {"type": "FPN", "in_channels": [96, 192, 384, 768]}},
            r"model\.neck\.in_channels.*out_channels, \[8, 16",
        ),
        ({"neck": [{"type": "FPN", "in_channels": [8, 16, 32]}]}, r"model\.neck\.0\.in_channels"),
        ({"decode_head": {"in_channels": [8, 16, 32, 32]}}, r"model\.decode_head\.in_channels.*\[8, 16, 32, 64\]"),
        ({"decode_head": {"in_channels": [8, 8], "in_index": [0, 1]}}, r"model\.decode_head\.in_channels.*\[8, 16\]"),
        ({"auxiliary_head": {"in_channels": 16, "in_index": 2}}, r"model\.auxiliary_head\.in_channels.* 32"),
        ({"decode_head": {"in_channels": 8, "in_index": 4}}, r"model\.decode_head\.in_index.*4 maps"),
        ({"backbone": {**SWIN, "window": 7}}, r"model\.backbone.*window"),
        ({"backbone": {**SWIN, "arch": "huge"}}, r"model\.backbone.*arch"),
        (
            {
                "backbone": VIT,
                "neck": [{"type": "vitdense.DeconvPyramid", "in_channels": [8] * 4}, {"in_channels": [8]}],
            },
            r"model\.neck\.1\.in_channels.*out_channels of model\.neck\.0",
        ),
    ],
)
def test_channels_that_differ_name_both_sides(model, names):
    with pytest.raises(ConfigError, match=names):
        check_channels(config(**model))


def test_metric_of_another_annotation_file(tmp_path):
    data = [{"data_root": str(tmp_path), "ann_file": "val.json"}]
    other = Config({"val_evaluator": [{"type": "CocoMetric", "ann_file": str(tmp_path / "train.json")}]})
    with pytest.raises(ConfigError, match=r"val_evaluator\.ann_file: got .*train\.json.*val\.json"):
        check_evaluator("val", data, other)
    check_evaluator(
        "val", data, Config({"val_evaluator": {"type": "CocoMetric", "ann_file": f"{tmp_path}/./val.json"}})
    )
    check_evaluator("val", data, Config({"val_evaluator": {"type": "CocoMetric"}}))


def test_normalisation_that_the_weights_do_not_expect():
    imagenet = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "bgr_to_rgb": True}

    def warnings(checkpoint, **changes):
        backbone = SWIN | {"init_cfg": {"type": "Pretrained", "checkpoint": checkpoint}}
        return list(normalisation_warnings(config(backbone=backbone, data_preprocessor=imagenet | changes)))

    assert warnings("swin_tiny") == warnings("of_mine.pth", mean=[0, 0, 0]) == []
    for name in ("vit_base.augreg_in21k", "timm://vit_base_patch16_224.augreg_in21k"):
        mean, std = warnings(name)
        assert "data_preprocessor.mean" in mean
        assert "127.5" in mean
        assert "data_preprocessor.std" in std
    (line,) = warnings("swin_tiny", bgr_to_rgb=False)
    assert "bgr_to_rgb" in line


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
    lines = list(schedule_warnings(Config({"train_cfg": length, "param_scheduler": schedulers}), 0))
    assert len(lines) == len(names)
    for line, name in zip(lines, names):
        assert name in line
        assert f"settings = dict({next(iter(length))}=" in line


@pytest.mark.long
def test_shipped_schedules_fit_their_runs(repo):
    for path in sorted(repo.glob("configs/*.py")):
        assert not list(schedule_warnings(load_config(path), 0)), path


def test_warm_up_longer_than_a_short_run(repo):
    cfg = load_config(repo / "configs/cascade_swin_t_coco.py", {"settings.max_epochs": 12})
    (line,) = schedule_warnings(cfg, 40)  # at two images a step
    assert "500" in line
    assert "240" in line
    assert not list(schedule_warnings(cfg, 4000))
