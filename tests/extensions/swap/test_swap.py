"""`vitdense swap`: the changed parts, the command, what it refuses."""

from pathlib import Path

import pytest
from conftest import needs_research
from mmengine.config import Config

from vitdense.__main__ import main
from vitdense.extensions.swap.changes import channel_changes, model_changes
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError

SWIN_T, DEIT_S = [96, 192, 384, 768], [384] * 4
RETINANET = "mmdet::retinanet/retinanet_r18_fpn_1x_coco.py"
OF_SWIN = "mmdet::swin/retinanet_swin-t-p4-w7_fpn_1x_coco.py"
DINO = "mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py"
UPERNET = "mmseg::upernet/upernet_r18_4xb2-40k_cityscapes-512x1024.py"
HEADS = {"auxiliary_head": {"in_channels": 384}, "pretrained": None}  # changes of mmseg's for Swin-T
PYRAMID = {"type": "vitdense.DeconvPyramid", "in_channels": DEIT_S, "design": "light"}


def shipped(name):
    return Config.fromfile(find_config(name))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (RETINANET, {"neck": {"in_channels": SWIN_T}}),
        (DINO, {"neck": {"in_channels": SWIN_T[1:]}, "out_indices": (1, 2, 3)}),  # ChannelMapper
        # without a neck
        ("mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py", {"panoptic_head": {"in_channels": SWIN_T}}),
        (UPERNET, {"decode_head": {"in_channels": SWIN_T}, **HEADS}),
        (
            "mmseg::knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py",  # a head inside the head
            {"decode_head": {"kernel_generate_head": {"in_channels": SWIN_T}}, **HEADS},
        ),
        (
            "mmdet::yolo/yolov3_d53_8xb8-320-273e_coco.py",  # from the last map; images in 0..1
            {
                "neck": {"in_channels": SWIN_T[:0:-1]},
                "out_indices": (1, 2, 3),
                "data_preprocessor": {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
            },
        ),
    ],
)
def test_changes_for_swin(name, expected):
    changes = model_changes(shipped(name), "swin_tiny")
    backbone = changes.pop("backbone")
    assert backbone["type"] == "vitdense.Swin"
    assert backbone.get("out_indices") == expected.pop("out_indices", None)
    assert changes == expected


def test_changes_for_a_plain_vit():
    """A pyramid before the neck, or in its place; images are padded to whole patches."""
    cfg = shipped(RETINANET)
    cfg.model.data_preprocessor.pad_size_divisor = 1
    changes = model_changes(cfg, "deit_small")
    assert changes["neck"] == [PYRAMID, {**cfg.model.neck, "in_channels": DEIT_S}]
    assert changes["data_preprocessor"] == {"pad_size_divisor": 32}
    changes = model_changes(shipped(UPERNET), "deit_small")
    assert changes["neck"] == PYRAMID
    assert changes["decode_head"] == {"in_channels": DEIT_S}
    assert changes["data_preprocessor"] == {"test_cfg": {"size_divisor": 32}}


def test_lists_of_necks_and_heads_are_complete():
    necks = [{"type": "FPN", "in_channels": [1, 2], "num_outs": 5}, {"type": "DyHead", "in_channels": 256}]
    assert channel_changes({"neck": necks}, [1, 2], [3, 4]) == {"neck": [{**necks[0], "in_channels": [3, 4]}, necks[1]]}
    heads = [{"in_channels": 1, "in_index": 0, "channels": 8}, {"in_channels": [2, 1], "in_index": (1, 0)}]
    expected = [{**heads[0], "in_channels": 3}, {**heads[1], "in_channels": [4, 3]}]
    assert channel_changes({"decode_head": heads}, [1, 2], [3, 4]) == {"decode_head": expected}
    assert channel_changes({"neck": necks}, [1, 2], [1, 2]) == {}


SWIN_B_P6 = {
    "arch": {"embed_dims": 128, "depths": (2, 2, 18, 2, 1), "num_heads": (4, 8, 16, 32, 64)},
    **{"pretrain_img_size": 384, "window_size": 12, "out_indices": (1, 2, 3, 4)},
    **{"drop_path_rate": 0.3, "with_cp": True},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mmdet::dyhead/atss_swin-l-p4-w12_fpn_dyhead_ms-2x_coco.py",
            {"arch": "large", "pretrain_img_size": 384, "window_size": 12, "out_indices": (1, 2, 3)},
        ),
        (
            "mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py",
            {"arch": "tiny", "drop_path_rate": 0.3},
        ),
        ("mmdet::rtmdet/rtmdet_l_swin_b_p6_4xb16-100e_coco.py", SWIN_B_P6),
        (
            "mmseg::knet/knet-s3_swin-t_upernet_8xb2-adamw-80k_ade20k-512x512.py",
            {"arch": "tiny", "drop_path_rate": 0.3},
        ),
    ],
)
def test_their_swin_keeps_sizes_options_and_weights(name, expected):
    """The backbone gets weights from the place of older versions of mmseg; their drop path rate is 0.1, ours 0.2."""
    cfg = shipped(name)
    changes = model_changes(cfg)
    old = cfg.model.get("pretrained")
    weights = {"type": "Pretrained", "checkpoint": old} if old else cfg.model.backbone.init_cfg
    assert changes["backbone"] == {"_delete_": True, "type": "vitdense.Swin", "init_cfg": weights, **expected}
    assert ("pretrained" in changes) == bool(old)
    cfg.model.backbone.pop("drop_path_rate", None)
    assert model_changes(cfg)["backbone"]["drop_path_rate"] == 0.1


@pytest.mark.parametrize(
    ("name", "change", "backbone", "message"),
    [
        ("mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024.py", {}, "swin_tiny", r"\[4, 8, 8, 8\]"),
        (DINO, {}, "deit_tiny", r"\[8, 16, 32\]"),
        (RETINANET, {}, "swin_tyni", "swin_tiny"),
        (RETINANET, {}, "deit3_huge", "14"),
        (RETINANET, {}, None, "ResNet"),
        (RETINANET, {"neck.in_channels": [1, 2]}, "swin_tiny", "model.neck.in_ch"),
        (RETINANET, {"backbone": None}, "swin_tiny", "without `backbone`"),
        (OF_SWIN, {"backbone.qk_scale": 0.5}, None, "qk_scale"),
        (OF_SWIN, {"backbone.strides": (4, 2, 2, 1)}, None, "strides"),
    ],
)
def test_refused(name, change, backbone, message):
    cfg = shipped(name)
    cfg.merge_from_dict({f"model.{key}": value for key, value in change.items()})
    with pytest.raises(ConfigError, match=message):
        model_changes(cfg, backbone)


# The command


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(base, text=""):
        Path("mine.py").write_text(f'_base_ = "{find_config(base)}"\n{text}')
        return "mine.py"

    return write


def run(*args):
    try:
        return main(["swap", *args])
    except SystemExit as end:
        return end.code


@pytest.mark.long
def test_printed_lines(mine, capsys):
    config = mine(RETINANET, 'custom_imports = dict(imports=["mmdet.testing"])')
    assert run(config, "--backbone", "swin_tiny") == 0
    printed = capsys.readouterr().out
    assert "RetinaNet builds" in printed
    assert "SGD with lr=0.01" in printed
    Path("changed.py").write_text(f'_base_ = "{config}"\n{printed}')  # what is not code is a comment
    cfg = load_config("changed.py")
    assert cfg.custom_imports.imports == ["vitdense", "mmdet.testing"]
    assert cfg.model.neck.in_channels == SWIN_T


@pytest.mark.long
def test_a_config_of_mmseg_keeps_its_name(mine):
    assert run(UPERNET, "--backbone", "swin_tiny", "--out", "changed.py") == 0
    assert Path("changed.py").read_text().startswith(f'_base_ = "{UPERNET}"\n')
    assert load_config("changed.py").model.decode_head.in_channels == SWIN_T
    assert Config.fromfile("changed.py").model.backbone.type == "vitdense.Swin"  # mmengine's own


@pytest.mark.long
@pytest.mark.parametrize("backbone", ["mvitv2_tiny", "deit_tiny", pytest.param("resnet50", marks=needs_research)])
def test_written_config(mine, capsys, backbone):
    config = mine("mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py")
    assert run(config, "--backbone", backbone, "--out", "configs/changed.py") == 0
    assert "SGD" not in capsys.readouterr().out
    assert Path("configs/changed.py").read_text().startswith('_base_ = "../mine.py"\n')
    cfg = load_config("configs/changed.py")
    assert cfg.model.backbone.init_cfg.checkpoint == backbone
    assert cfg.model.backbone.drop_path_rate == {"mvitv2_tiny": 0.2, "deit_tiny": 0.1, "resnet50": 0.0}[backbone]
    assert run(config, "--backbone", "swin_tiny", "--out", "configs/changed.py") == 2
    assert "configs/changed.py exists" in capsys.readouterr().err
    assert load_config("configs/changed.py").model == cfg.model


@pytest.mark.long
def test_model_that_does_not_run_is_refused(mine, capsys):
    config = mine("mmdet::ssd/ssd300_coco.py")  # its neck takes the channels of VGG
    assert run(config, "--backbone", "swin_tiny", "--out", "changed.py") == 2
    message = capsys.readouterr().err
    assert "AssertionError" in message
    assert "vitdense.Swin" in message  # the lines to start from
    assert not Path("changed.py").exists()
