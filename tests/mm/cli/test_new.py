"""`python -m vitdense new`: what it writes and refuses. tests/test_pages.py walks the whole way."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.__main__ import main
from vitdense.hub import list_models
from vitdense.mm.checks import dry_step
from vitdense.mm.checks.model import normalisation, padding
from vitdense.mm.cli import new
from vitdense.mm.config import own_data
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import class_heads, image_size

DETECTION = ["new", "detection", "--train", "train.json", "--val", "val.json", "--images", "pictures"]
SEGMENTATION = ["new", "segmentation", "--images", "images/train", "--labels", "labels/train"]
SEGMENTATION += ["--val-images", "images/val", "--val-labels", "labels/val"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if "base" not in request.fixturenames:  # whose models are small
        monkeypatch.setattr(dry_step, "find", lambda *_: ())
    monkeypatch.setattr(new, "_gpu_memory", lambda: 24e9)


@pytest.fixture
def boxes():
    def write(size=(96, 64), names=("red fox", "owl"), masks=True):
        for split in ("train", "val"):
            Path("pictures", split).mkdir(parents=True, exist_ok=True)
            images = [{"id": i, "file_name": f"{split}/{i}.jpg", "width": size[0], "height": size[1]} for i in (3, 7)]
            for image in images:
                Image.new("RGB", size).save(Path("pictures", image["file_name"]))
            categories = [{"id": 5 * i + 2, "name": name} for i, name in enumerate(names)]
            annotations = [
                {"id": i, "image_id": 3, "category_id": category["id"], "bbox": [1, 2, 30, 30], "area": 900}
                | ({"segmentation": [[1, 2, 31, 2, 31, 32]]} if masks else {})
                for i, category in enumerate(categories)
            ]
            content = {"images": images, "annotations": annotations, "categories": categories}
            Path(f"{split}.json").write_text(json.dumps(content))

    return write


@pytest.fixture
def maps():
    def write(image="{}.jpg", labels=("{}.png",), splits=("train", "val"), size=(96, 64)):
        for split in splits:
            for i in (1, 10):
                for folder, names in (("images", (image,)), ("labels", labels)):
                    for name in names:
                        path = Path(folder, split, name.format(i))
                        path.parent.mkdir(parents=True, exist_ok=True)
                        pixels = np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[::-1]) % 3
                        Image.fromarray(pixels).save(path)

    return write


def run(*args):
    if "--backbone" in args:
        pytest.importorskip("vitdense.extensions.swap")
    try:
        return main([str(arg) for arg in args])
    except SystemExit as end:
        return end.code


def made(*args):
    assert run(*args, "mine.py") == 0
    return load_config("mine.py")


def test_detection(boxes, capsys):
    boxes()
    assert run(*DETECTION, "mine.py") == 0
    printed = capsys.readouterr().out
    assert "errors: 0" in printed
    assert "dry step" not in printed
    assert printed.count("vitdense train mine.py") == 2  # in the file, and last
    text = Path("mine.py").read_text()
    assert text in printed
    assert "2 classes (red fox, owl)" in text
    assert "num_classes" not in text
    cfg = load_config("mine.py")
    assert cfg.model.roi_head.bbox_head[2].num_classes == 2
    assert cfg.train_dataloader.dataset.metainfo.classes == ("red fox", "owl")
    assert cfg.val_evaluator.ann_file.endswith("val.json")
    assert cfg.train_cfg.max_epochs == cfg.param_scheduler[1].end == 12
    assert cfg.val_dataloader.dataset.pipeline[1].scale == (160, 96)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((96, 64), "image_size=96"), ((64, 34), "image_size=64"), ((500, 400), "image_size=640"), ((640, 480), None)],
)
def test_image_size_of_smaller_data(boxes, size, expected):
    """Sizes for COCO's photos are the recipe's."""
    boxes(size)
    assert run(*DETECTION, "mine.py") == 0
    assert (expected or "data_root") in Path("mine.py").read_text()
    assert ("image_size" in Path("mine.py").read_text()) == (expected is not None)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((1920, 1080), (384, 672)), ((1080, 1920), (672, 384)), ((1280, 1024), (448, 576)), ((900, 900), (512, 512))],
)
def test_rectangles_have_the_ratio_of_the_data(boxes, size, wanted, capsys):
    """In the area of the recipe's square."""
    boxes(size)
    assert run(*DETECTION, "mine.py", "--method", "rfdetr") == 0
    assert image_size(load_config("mine.py")) == wanted
    assert ("at the cost of" in capsys.readouterr().out) == (wanted[0] != wanted[1])


def test_images_of_several_ratios_become_squares():
    assert own_data._sides([(1920, 1080)] * 8 + [(1080, 1920)] * 2) == (1080, 1.0)


@pytest.mark.parametrize(
    ("memory", "options", "recipe"),
    [
        (0, [], "rfdetr_s_coco"),
        (6e9, ["--masks"], "rfdetr_seg_s_coco"),
        (8.4e9, [], "cascade_swin_t_coco"),
        (0, ["--method", "cascade"], "cascade_swin_t_coco"),
        (0, ["--backbone", "swin_small.ms_in1k"], "cascade_swin_t_coco"),
        (0, ["--base", "cascade_swin_nano_coco"], "cascade_swin_nano_coco"),
        (24e9, ["--method", "rfdetr"], "rfdetr_s_coco"),
    ],
)
def test_without_a_gpu_of_8_gb_the_default_is_rfdetr(boxes, memory, options, recipe, monkeypatch, capsys):
    boxes()
    monkeypatch.setattr(new, "_gpu_memory", lambda: memory)
    assert run(*DETECTION, *options, "mine.py") == 0
    printed = capsys.readouterr().out
    assert Path(runpy.run_path("mine.py")["_base_"].rpartition("/")[2]).stem == recipe
    is_chosen = memory < 8e9 and not {"--method", "--backbone", "--base"} & {*options}
    assert ("--method cascade is" in printed.splitlines()[0]) == is_chosen


@pytest.mark.parametrize("method", ["cascade", "mask_rcnn"])
def test_boxes_without_masks(boxes, method, capsys):
    boxes(masks=False)
    assert run(*DETECTION, "--method", method, "mine.py") == 2
    error = capsys.readouterr().err
    assert "--boxes" in error
    assert "ids 0, 1" in error
    assert not Path("mine.py").exists()
    cfg = made(*DETECTION, "--method", method, "--boxes")
    assert not cfg.model.roi_head.get("mask_head")
    assert cfg.val_evaluator.metric == "bbox"


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["swin_base", "swinv2_tiny_w8.tv_in1k", "mvitv1_base", "deit_tiny", "vit_tiny.augreg_in21k"]
)
@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_other_backbones(boxes, maps, task, name):
    """The parts of the model fit a frozen backbone, and plain ViTs get a pyramid."""
    boxes()
    maps()
    line = DETECTION if task == "detection" else [*SEGMENTATION, "--classes", "a,b,c"]
    cfg = made(*line, "--backbone", name, "--finetune", "frozen")
    assert [*normalisation(cfg), *padding(cfg)] == []
    assert cfg.model.backbone.get("init_cfg", {}).get("checkpoint") == (name if name != "mvitv1_base" else None)
    assert ("127.5" in Path("mine.py").read_text()) == (name == "vit_tiny.augreg_in21k")
    necks = cfg.model.get("neck") or []
    kinds = [neck.type for neck in (necks if isinstance(necks, list) else [necks])]
    assert ("vitdense.DeconvPyramid" in kinds) == name.startswith(("deit", "vit"))
    assert cfg.model.backbone.frozen_stages == "all"


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_model_of_the_table(boxes, name, capsys):
    boxes()
    status = run(*DETECTION, "--backbone", name, "mine.py")
    assert status == 0 or re.search(r"patches of \d+ pixels, expected 16", capsys.readouterr().err)


def test_written_file_is_formatted_and_names_the_recipe_of_the_package(boxes):
    ruff = Path(sys.executable).with_name("ruff")
    boxes(names=[f"a long name of class {i}" for i in range(9)])
    assert run(*DETECTION, "--backbone", "vit_tiny.augreg_in21k", "mine.py") == 0
    text = Path("mine.py").read_text()
    assert '_base_ = "vitdense::configs/cascade_swin_t_coco.py"' in text
    assert 'data_root = "./"' in text
    subprocess.run([ruff, "format", "--check", "--line-length", "120", "mine.py"], check=True)
    subprocess.run([ruff, "check", "--isolated", "--line-length", "120", "--select", "E,W", "mine.py"], check=True)


NAMES = ("a\\x", r"C:\Users\N{", 'the "red" fox', '"""', "it's", "two\nlines", "狐 \u2028 é", "tab\t\0")
NAMES += ("{{ fileBasename }}", "{{_base_.settings}}", "{{$HOME:nowhere}}", "{{{{", "{%", "x" * 115 + "\\u" * 9)


@pytest.mark.parametrize("names", [*((name, "owl") for name in NAMES), NAMES])
def test_class_names_of_any_text(names):
    """In the docstring and in the code, as mmengine reads them: it replaces {{ ... }} in the text of a config."""
    args = new._parser().parse_args([*DETECTION[1:], "--method", "cascade", "mine.py"])
    described = own_data.describe("Detection", names, "a", "b")
    data = own_data.Data(described, "./", 64, 1.0, {"metainfo": {"classes": names}}, {}, {})
    Path("mine.py").write_text(own_data.config_text(args, data), encoding="utf-8")
    assert Config.fromfile("mine.py").train_dataloader.dataset.metainfo.classes == names


def test_existing_file_is_kept_without_force(boxes, capsys):
    boxes()
    Path("mine.py").write_text("precious")
    assert run(*DETECTION, "mine.py") == 2
    assert "--force" in capsys.readouterr().err
    assert Path("mine.py").read_text() == "precious"
    assert run(*DETECTION, "mine.py", "--force") == 0
    assert Path("mine.py").read_text() != "precious"


def test_a_split_never_replaces_its_source(boxes, capsys):
    boxes()
    source = Path("train.json").rename("mine_val.json")
    content = source.read_text()
    assert run(*DETECTION, "--train", source, "--val", "0.5", "mine.py", "--force") == 2
    assert "mine_val.json" in capsys.readouterr().err
    assert source.read_text() == content


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--masks"], "--method rfdetr"),
        (["--weights", "file.pth"], "--method rfdetr"),
        (["--backbone", "swin_tinny"], "swin_tiny"),
        (["--backbone", "vit_huge.mae"], "14 pixels"),
        (["--train", "nothing.json"], "--train: nothing.json"),
        *((["--val", share], f"--val: got {share}") for share in ("0", "1", "-1", "20", "nan")),
        (["--val", "abc"], "--val: abc"),
        (["--val", "0.5", "--val-images", "pictures"], "--val 0.5"),
        (["--iters", "5"], "--epochs"),
        (["--base", "nothing.py"], "nothing.py"),
        (["--base", "cascade_swin_nano_coco", "--backbone", "swin_tiny"], "--base"),
        (["--base", "cascade_swin_nano_coco", "--epochs", "5"], "--iters"),
        (["--base", "cascade_swin_nano_coco", "--boxes"], "mask head"),
        (["--base", "upernet_swin_nano_camvid"], "mmseg"),
    ],
)
def test_options_that_do_not_fit_are_named(boxes, capsys, args, names):
    boxes()
    assert run(*DETECTION, *args, "mine.py") == 2
    assert names in capsys.readouterr().err
    assert not Path("mine.py").exists()
    assert run(*DETECTION, "mine") == 2
    assert ".py" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "number"), [("--images", 2), ("--val-images", 1)])
def test_check_of_the_written_config_finds_missing_images(boxes, capsys, option, number):
    boxes()
    assert run(*DETECTION, option, "nowhere", "mine.py") == 2
    printed = capsys.readouterr().out
    errors = [line for line in printed.splitlines() if line.startswith("error:")]
    assert sum("nowhere" in line for line in errors) == number  # not again for the test set
    assert printed.count("vitdense train") == 1  # in the file only
    assert printed.splitlines()[-1].endswith("check mine.py")


@pytest.mark.parametrize(
    ("base", "names"), [("cascade_swin_nano_coco", ("red fox", "owl")), ("cascade_swin_nano_shapes", ("red fox",))]
)
def test_base_config_for_detection(boxes, base, names):
    boxes(names=names)
    cfg, original = made(*DETECTION, "--base", base, "--iters", "5"), load_config(base)
    assert cfg.model.backbone == original.model.backbone
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 5
    for split in ("train", "val", "test"):
        dataset, of_base = cfg[f"{split}_dataloader"].dataset, original[f"{split}_dataloader"].dataset
        assert dataset.type == "vitdense.CocoDataset"  # by name
        assert dataset.pipeline == of_base.pipeline
        assert dataset.get("test_mode") == of_base.get("test_mode")
        assert dataset.metainfo.classes == names


@pytest.mark.parametrize("base", ["retinanet/retinanet_r50_fpn_1x_coco", "cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco"])
def test_base_config_of_mmdet_that_states_its_data(boxes, base, monkeypatch):
    boxes()
    monkeypatch.setattr("vitdense.mm.checks.report.report", lambda cfg, trains: 0)  # of a ResNet-50 at 800 pixels
    cfg = made(*DETECTION, "--boxes", "--base", f"mmdet::{base}.py")
    assert {head.num_classes for _, head in class_heads(cfg.model)} == {2}
    assert {Path(cfg[f"{split}_evaluator"].ann_file) for split in ("val", "test")} == {Path("val.json")}


def test_base_config_of_a_user_with_other_classes(boxes):
    boxes()
    assert run(*DETECTION, "first.py") == 0
    text = Path("first.py").read_text()
    assert 'classes=("red fox", "owl")' in text
    Path("first.py").write_text(text.replace('classes=("red fox", "owl")', 'classes=("cat",)'))
    assert made(*DETECTION, "--base", "first.py").train_dataloader.dataset.metainfo.classes == ("red fox", "owl")


def test_segmentation(maps):
    maps()
    Path("names.txt").write_text("sky\nroad\n\nred car\n")
    classes = made(*SEGMENTATION, "--classes", "names.txt").train_dataloader.dataset.metainfo.classes
    assert run(*SEGMENTATION, "--classes", "sky,road, red car", "--force", "mine.py") == 0
    text = Path("mine.py").read_text()
    assert "num_classes" not in text
    assert text.count("red car") == 2  # in the first line, and as metainfo
    cfg = load_config("mine.py")
    assert cfg.model.decode_head.num_classes == cfg.model.auxiliary_head.num_classes == 3
    assert cfg.train_dataloader.dataset.metainfo.classes == classes == ("sky", "road", "red car")
    assert cfg.train_cfg.max_iters == own_data.ITERS
    assert cfg.model.data_preprocessor.size == (64, 64)
    assert not cfg.val_dataloader.dataset.reduce_zero_label


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--head linear", {"arch": "dinov3_small", "frozen_stages": "all"}),
        ("--head linear --backbone dinov2_small.fb_lvd142m", {"out_indices": (11,), "frozen_stages": "all"}),
        ("--head linear --backbone swin_tiny --finetune attention", {"out_indices": (2,), "finetune": "attention"}),
        ("--head dpt --backbone deit_tiny --finetune lora", {"output_cls_token": True, "finetune": "lora"}),
        ("--head upernet --backbone dinov2_small.fb_lvd142m --finetune frozen", {"frozen_stages": "all"}),
        ("--head mask2former --finetune all", {"frozen_stages": -1}),
    ],
)
def test_heads_and_what_trains(maps, options, expected):
    maps()
    cfg = made(*SEGMENTATION, "--classes", "a,b,c", *options.split())
    assert {key: cfg.model.backbone[key] for key in expected} == expected
    assert cfg.model.decode_head.num_classes == 3
    if "dinov2" in options:
        assert cfg.model.data_preprocessor.size == (70, 70)  # whole patches of 14 pixels
    if "mask2former" in options:
        assert cfg.model.decode_head.loss_cls.class_weight == [1.0, 1.0, 1.0, 0.1]
    assert list(padding(cfg)) == []
    models = pytest.importorskip("vitdense.extensions.swap.models")
    assert models.try_model(Path("mine.py"), "mine.py") == "EncoderDecoder"


@pytest.mark.parametrize("base", ["upernet_swin_nano_camvid", "upernet_swin_nano_shapes"])
def test_base_config_for_segmentation(maps, base):
    maps()
    line = [*SEGMENTATION, "--classes", "a,b,c", "--base", base, "--reduce-zero-label"]
    assert run(*line, "mine.py") == 2  # 0 is a class: the check finds it
    dataset = made(*line[:-1], "--force").val_dataloader.dataset
    assert dataset.type == "BaseSegDataset"
    assert dataset.metainfo.classes == ("a", "b", "c")
    assert len(dataset.metainfo.palette) == 3
    assert dataset.test_mode
    assert dataset.pipeline


@pytest.mark.parametrize(
    ("image", "labels", "options", "expected"),
    [
        ("{}.jpg", ["{}.png"], "", ".jpg .png"),
        ("x/{}.png", ["x/{}_labels.png"], "--label-suffix _labels.png", ".png _labels.png"),
        ("{}_l.png", ["{}_c.png", "{}_ids.png"], "--image-suffix _l.png --label-suffix _ids.png", "_l.png _ids.png"),
    ],
)
def test_layouts_of_label_maps(maps, image, labels, options, expected):
    maps(image, labels)
    dataset = made(*SEGMENTATION, "--classes", "a,b,c", *options.split()).train_dataloader.dataset
    assert f"{dataset.img_suffix} {dataset.seg_map_suffix}" == expected


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ({}, ["--classes", "a,a"], "--classes"),
        ({}, ["--classes", "a,b,c", "--head", "dpt", "--backbone", "swin_tiny"], "swin_tiny"),
        ({"splits": ("train", "valid")}, ["--classes", "a,b,c"], "images/val"),
        ({"labels": ("{}.png", "{}.jpg")}, ["--classes", "a,b,c"], "--label-suffix"),
        ({"image": "{}.png"}, ["--classes", "a,b,c", "--image-suffix", ".gif"], "--images"),
    ],
)
def test_segmentation_options_that_do_not_fit_are_named(maps, capsys, names, options, message):
    maps(**names)
    assert run(*SEGMENTATION, *options, "mine.py") == 2
    assert message in capsys.readouterr().err


def test_files_of_a_detector_are_needed(capsys):
    assert run("new", "detection", "--train", "train.json", "mine.py") == 2
    assert "--val" in capsys.readouterr().err


def test_a_dense_image_raises_the_limits(boxes, capsys):
    boxes()
    content = json.loads(Path("train.json").read_text())
    content["annotations"] = [{**content["annotations"][0], "id": i} for i in range(1100)]
    Path("train.json").write_text(json.dumps(content))
    cfg = made(*DETECTION)
    printed = capsys.readouterr().out
    assert "an image has 1100 objects" in printed
    assert "up to 1100 objects in an image" in printed
    assert "can find" not in printed  # the check's warning
    assert cfg.model.test_cfg.rcnn.max_per_img == 2200
    assert cfg.test_evaluator.proposal_nums == [100, 300, 2200]
    assert cfg.test_evaluator.type == "vitdense.FasterCocoMetric"
    assert run("check", "mine.py", "--cfg-options", "model.test_cfg.rcnn.max_per_img=100") == 0
    assert "--cfg-options model.test_cfg.rcnn.max_per_img=2200\n" in capsys.readouterr().out
