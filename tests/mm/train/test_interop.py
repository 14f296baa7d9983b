"""Predictions and checkpoints in the hands of other projects: supervision, the inferencers and tools of mm."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS
from PIL import Image
from pycocotools import mask as rle

import vitdense
from vitdense.mm.cli.predict import predict
from vitdense.mm.config.base import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.precision import Inference

pytestmark = pytest.mark.long

SHRINK = """
_base_ = {base!r}
data_root = {root!r}
data = dict(data_root=data_root, draw=dict(num_train=1, num_val=3, image_size=(96, 128)))
train_dataloader = dict(dataset=data)
val_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False, dataset=data)
test_dataloader = val_dataloader
"""
OF_DETECTORS = """
val_evaluator = dict(ann_file=data_root + "annotations/instances_val.json")
test_evaluator = val_evaluator
model = dict(test_cfg=dict(rcnn=dict(score_thr=0.0, max_per_img=20)))
"""


def model_of(base, more, folder):
    (folder / "short.py").write_text(SHRINK.format(base=str(find_config(base)), root=f"{folder}/shapes/") + more)
    cfg = load_config(folder / "short.py", work_dir=str(folder / "work"))
    cfg.dump(folder / "complete.py")
    torch.manual_seed(0)
    model = build_model(cfg)
    model.init_weights()
    for name, parameter in model.named_parameters():  # initial weights give one class, or no mask, everywhere
        if name.endswith(("conv_seg.weight", "conv_logits.weight")):
            torch.nn.init.normal_(parameter)
    meta = DATASETS.build(cfg.test_dataloader.dataset).metainfo  # draws the images
    torch.save({"meta": {"dataset_meta": meta}, "state_dict": model.state_dict()}, folder / "model.pth")
    return folder


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return model_of("cascade_swin_nano_shapes", OF_DETECTORS, tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def segmentor(tmp_path_factory):
    return model_of("upernet_swin_nano_shapes", "", tmp_path_factory.mktemp("segmentor"))


def images(folder):
    return sorted((folder / "shapes/val").glob("*.jpg"))


def predicted(folder, out, *options):
    return predict(load_config(folder / "complete.py"), str(folder / "model.pth"), images(folder), out, *options)


def test_detections_of_supervision(detector):
    sv = pytest.importorskip("supervision")
    (image, *_) = images(detector)
    result = vitdense.load(detector / "complete.py", detector / "model.pth", score_thr=0.0)(image)
    found = result.to_supervision()
    assert len(found) == len(result) == 20
    assert found.mask.dtype == bool
    assert 0.1 < found.mask.sum() / found.box_area.sum() < 0.9
    drawn = sv.MaskAnnotator().annotate(np.zeros_like(result.image), found)
    np.testing.assert_array_equal(drawn.any(axis=2), found.mask.any(axis=0))


def test_inferencer_of_mmdet_predicts_as_our_tool(detector, tmp_path, monkeypatch):
    from mmdet.apis import DetInferencer

    monkeypatch.chdir(tmp_path)
    results = json.loads(predicted(detector, tmp_path / "out", Inference(score_thr=0.0)).read_text())
    inferencer = DetInferencer(str(detector / "complete.py"), str(detector / "model.pth"), "cpu", show_progress=False)
    samples = inferencer([str(path) for path in images(detector)], return_datasamples=True)["predictions"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it writes nothing
    found = [(i, j) for i, sample in enumerate(samples) for j in range(len(sample.pred_instances))]
    assert len(found) == len(results) > 9
    truth = json.loads((detector / "shapes/annotations/instances_val.json").read_text())
    ids = {image["file_name"]: image["id"] for image in truth["images"]}
    kinds = [category["id"] for category in truth["categories"]]
    for (i, j), result in zip(found, results):
        got = samples[i].pred_instances[j]
        x, y, w, h = result["bbox"]
        assert ids[images(detector)[i].name] == result["image_id"]
        assert kinds[got.labels[0]] == result["category_id"]
        assert got.scores[0].item() == pytest.approx(result["score"], rel=1e-5)  # rounding: we run in oneDNN
        assert got.bboxes[0].tolist() == pytest.approx([x, y, x + w, y + h], abs=1e-4)
        np.testing.assert_array_equal(got.masks[0], rle.decode(result["segmentation"]))


def test_inferencer_of_mmseg_predicts_as_our_tool(segmentor, tmp_path, monkeypatch):
    from mmseg.apis import MMSegInferencer

    monkeypatch.chdir(tmp_path)
    out = predicted(segmentor, tmp_path / "out")
    shipped = str(find_config("upernet_swin_nano_shapes"))  # as its file has it
    inferencer = MMSegInferencer(shipped, str(segmentor / "model.pth"), device="cpu")
    for path in images(segmentor):
        labels = np.array(Image.open(out / "labels" / f"{path.stem}.png"))
        assert len(np.unique(labels)) > 1
        np.testing.assert_array_equal(inferencer(str(path))["predictions"], labels)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it writes nothing


TOOLS = """
import json, runpy, sys
import vitdense
for words in json.loads(sys.argv[1]):
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""


def run_tools(package, folder, *commands):
    """mm's own tools with a recipe, in a process that imports vitdense and nothing else of ours."""
    tools = Path(import_module(package).__file__).parent / ".mim/tools"
    lines = [[str(tools / name), str(folder / "short.py"), *map(str, words)] for name, *words in commands]
    done = subprocess.run(
        [sys.executable, "-c", TOOLS, json.dumps(lines)], capture_output=True, text=True, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_tools_of_mmdet_test_and_analyse(detector, tmp_path):
    found, shown = tmp_path / "found.pkl", tmp_path / "shown"
    test = ["test.py", detector / "model.pth", "--work-dir", tmp_path, "--out", found, "--show-dir", "pictures"]
    analyse = ["analysis_tools/analyze_results.py", found, shown, "--topk", 1]
    assert "coco/segm_mAP" in run_tools("mmdet", detector, test, analyse)
    assert len(list(tmp_path.glob("*/pictures/*"))) == len(images(detector))
    assert all(len(list((shown / part).iterdir())) == 1 for part in ("good", "bad"))


def test_tools_of_mmseg_test_and_draw(segmentor, tmp_path):
    out = ["--out", tmp_path / "maps", "--show-dir", tmp_path / "pictures"]
    assert "mIoU" in run_tools("mmseg", segmentor, ["test.py", segmentor / "model.pth", "--work-dir", tmp_path, *out])
    for pictures in (tmp_path / "pictures/vis_data/vis_image", tmp_path / "maps"):
        assert len(list(pictures.iterdir())) == len(images(segmentor))
