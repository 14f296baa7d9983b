"""Evaluation of many masks: what is found is what mmdet finds, and memory does not grow with the number of masks."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.structures import InstanceData

from vitdense.mm.config import model
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES
from vitdense.mm.heads import rle_masks
from vitdense.mm.precision import Inference
from vitdense.mm.train import launch

pytestmark = pytest.mark.long

DETECTORS = ("cascade_swin_nano_shapes", "mask2former_swin_nano_shapes")


@HOOKS.register_module(force=True)
class LooksAtPredictions(Hook):
    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        outputs[0].pred_instances.masks.cpu()


def dense(name, folder, side, number):
    columns = int(np.ceil(number**0.5))
    step, w, annotations = side / columns, side / columns / 2, []
    for i in range(2 * number):
        x, y = step * (i % number % columns), step * (i % number // columns)
        one = {"id": i + 1, "image_id": i // number, "category_id": i % number % 8 + 1, "iscrowd": 0, "area": w * w}
        outline = [x, y, x + w, y, x + w, y + w, x, y + w]
        annotations.append({**one, "bbox": [x, y, w, w], "segmentation": [outline]})
    images = [{"id": image, "file_name": f"{image}.png", "width": side, "height": side} for image in range(2)]
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "dense.json").write_text(json.dumps(content))
    for image in range(2):
        pixels = np.random.default_rng(image).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
        cv2.imwrite(str(folder / f"{image}.png"), cv2.resize(pixels, (side, side)))

    cfg = load_config(name, work_dir=str(folder / "work"))
    cfg.test_dataloader.update(batch_size=1, num_workers=0, persistent_workers=False)
    pipeline, ann_file = cfg.test_dataloader.dataset.pipeline, str(folder / "dense.json")
    data = {"ann_file": ann_file, "data_prefix": {"img": str(folder)}, "metainfo": {"classes": CLASSES}}
    cfg.test_dataloader.dataset = dict(type="CocoDataset", pipeline=pipeline, test_mode=True, **data)
    cfg.test_evaluator.update(ann_file=ann_file, outfile_prefix=str(folder / "found"))
    test_cfg = cfg.model.test_cfg
    if "rcnn" in test_cfg:
        test_cfg.rcnn.update(score_thr=0.0, max_per_img=number, nms={"type": "nms", "iou_threshold": 1.0})
        test_cfg.rpn.update(nms_pre=2 * number, max_per_img=2 * number, nms={"type": "nms", "iou_threshold": 0.99})
    else:
        # Masks of random weights are noise with large codes; codes of a coarse map are smaller.
        pipeline[1].scale = (64, 64)
        cfg.model.panoptic_head.num_queries = max(number // 8, 10)  # a query counts once for every class
        test_cfg.max_per_image = number
    torch.manual_seed(0)
    model = build_model(cfg)
    model.init_weights()
    for part, weight in model.named_parameters():
        if "conv_logits" in part or "fc_cls" in part or "cls_embed" in part:
            torch.nn.init.normal_(weight, std=0.3)
    torch.save({"meta": {}, "state_dict": model.state_dict()}, folder / "random.pth")
    return cfg, str(folder / "random.pth")


def results(folder):
    return [json.loads((folder / f"found.{kind}.json").read_text()) for kind in ("bbox", "segm")]


@pytest.mark.parametrize("name", DETECTORS)
def test_results_equal_mmdet(name, tmp_path, monkeypatch):
    cfg, checkpoint = dense(name, tmp_path, side=96, number=12)
    got, found = launch.test(cfg, checkpoint), results(tmp_path)
    assert {len([one for one in found[1] if one["image_id"] == image]) for image in range(2)} == {12}
    assert len({one["segmentation"]["counts"] for one in found[1]}) > 6
    monkeypatch.setattr(model, "takes_rle", lambda cfg: False)
    cfg, checkpoint = dense(name, tmp_path, side=96, number=12)
    assert launch.test(cfg, checkpoint) == got
    assert results(tmp_path) == found


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ({}, True),
        ({"default_hooks.visualization.draw": True}, False),
        ({"custom_hooks": [{"type": "LooksAtPredictions"}]}, False),
        ({"custom_hooks": [{"type": "EMAHook"}, {"type": "vitdense.ReproducibleHook"}]}, True),
        ({"test_evaluator.ann_file": None}, False),
        ({"val_evaluator": [{"type": "CocoMetric", "ann_file": "a.json"}, {"type": "DumpDetResults"}]}, False),
        ({"val_evaluator": None, "test_evaluator": None}, False),
    ],
)
def test_masks_are_codes_if_all_parts_support_them(change, takes):
    cfg = load_config(DETECTORS[0])
    cfg.merge_from_dict(change)
    assert model.takes_rle(cfg) is takes


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("hook", ["DetVisualizationHook", "tiles"])
def test_pictures_show_the_masks(name, hook, tmp_path):
    cfg, checkpoint = dense(name, tmp_path, side=96, number=12)
    cfg.visualizer.name = str(tmp_path)  # mmengine keeps one of each name
    cfg.default_hooks.visualization.update(draw=True, interval=1, score_thr=0.0)
    launch.test(cfg, checkpoint, Inference(tiles=64 if hook == "tiles" else None))
    (picture, *_) = sorted(tmp_path.rglob("vis_image/*.png"))
    assert cv2.imread(str(picture)).shape == (96, 192, 3)  # ground truth to the left


def test_codes_become_arrays():
    masks = np.zeros((3, 4, 5), bool)
    masks[0, 1:3, 2:] = masks[2, 0] = True
    codes = rle_masks.Codes([rle_masks._encode(torch.from_numpy(mask)) for mask in masks], (4, 5))
    found = InstanceData(masks=codes, scores=torch.tensor([0.1, 0.2, 0.9]))
    assert np.array_equal(found.masks.astype(bool), masks)
    assert np.array_equal(np.asarray(found[found.scores > 0.15].masks), masks[1:])
    assert found[found.scores > 1].masks.astype(bool).shape == (0, 4, 5)
    assert np.array_equal(pickle.loads(pickle.dumps(codes)).astype(int), masks)


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_a_thousand_masks_of_a_large_image_fit(name, tmp_path):
    """Below 2 GiB at peak: mmdet's would take 16 GB as bytes."""
    run = subprocess.run(
        [sys.executable, __file__, name, str(tmp_path), "4000", "1000"], capture_output=True, text=True, check=True
    )
    assert float(run.stdout.split()[-1]) < 2 * 2**30
    assert len(results(tmp_path)[1]) == 2000


if __name__ == "__main__":
    import resource

    name, folder, side, number = sys.argv[1:]
    launch.test(*dense(name, Path(folder), int(side), int(number)))
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
