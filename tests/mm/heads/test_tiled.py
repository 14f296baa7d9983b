"""Detectors in tiles: as the detector itself where there is one tile; what borders cut comes out once."""

import json
import operator

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from pycocotools import mask as rle
from torch import nn

from vitdense.mm.config.base import Asked, build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.passes import built
from vitdense.mm.config.query import split_pipeline
from vitdense.mm.errors import ConfigError
from vitdense.mm.heads.tiled import TiledDetector
from vitdense.mm.precision import Inference
from vitdense.mm.train import launch

SQUARE = split_pipeline(load_config("cascade_swin_nano_shapes").test_dataloader.dataset.pipeline)[1]
WIDE = [{**step, "scale": (256, 128), "keep_ratio": False} if "scale" in step else step for step in SQUARE]


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope("mmdet")


class Blobs(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.masks, self.sizes = masks, []

    def test_step(self, data):
        for pixels, sample in zip(data["inputs"], data["data_samples"]):
            self.sizes.append(tuple(pixels.shape[1:]))
            height, width = sample.ori_shape
            image = cv2.resize(pixels[0].numpy(), (width, height), interpolation=cv2.INTER_NEAREST)
            number, labels, stats, _ = cv2.connectedComponentsWithStats((image > 127).astype(np.uint8))
            x, y, w, h, _ = torch.from_numpy(stats[1:]).T.float()
            found = InstanceData(bboxes=torch.stack([x, y, x + w, y + h], 1), scores=torch.full((number - 1,), 0.9))
            found.labels = torch.zeros(number - 1, dtype=torch.long)
            if self.masks:
                found.masks = torch.from_numpy(labels == np.arange(1, number)[:, None, None])
            sample.pred_instances = found
        return data["data_samples"]


def run(model, image):
    pixels = torch.from_numpy(image).expand(3, -1, -1)
    sample = DetDataSample(metainfo={"ori_shape": image.shape, "img_id": 3})
    (result,) = model.test_step({"inputs": [pixels], "data_samples": [sample]})
    assert result.img_id == 3
    return result.pred_instances


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize(("steps", "size"), [(SQUARE, (256, 256)), (WIDE, (128, 256))], ids=["square", "rectangle"])
def test_blobs_across_borders(masks, steps, size):
    """Each tile is resized as the config says, here to twice its size; it has the ratio of what all images become."""
    image = np.zeros((200, 330), np.uint8)
    blobs = [(10, 20, 300, 50), (100, 60, 130, 190), (5, 80, 40, 110), (290, 150, 330, 200)]  # x1, y1, x2, y2
    for x1, y1, x2, y2 in blobs:
        image[y1:y2, x1:x2] = 255
    module = Blobs(masks=masks)
    found = run(TiledDetector(module, 128, 0.2, steps), image)
    assert set(module.sizes) == {size}
    assert sorted(map(tuple, found.bboxes.int().tolist())) == sorted(blobs)
    assert ("masks" in found) == masks
    if masks:
        np.testing.assert_array_equal(sum(rle.decode(mask) for mask in found.masks), image // 255)


@pytest.mark.parametrize("masks", [True, False])
def test_an_empty_image(masks):
    assert len(run(TiledDetector(Blobs(masks=masks), 64, 0.2, SQUARE), np.zeros((90, 80), np.uint8))) == 0


@pytest.mark.long
def test_the_test_of_a_config_has_tiles(tmp_path):
    """`vitdense test --tiles`: a tile as large as the images changes nothing, smaller ones do."""

    def make():
        cfg = load_config("cascade_swin_nano_shapes", {"data_root": f"{tmp_path}/shapes/"}, str(tmp_path / "work"))
        cfg.test_dataloader.update(num_workers=0, persistent_workers=False, batch_size=1)
        cfg.test_dataloader.dataset.draw = dict(num_train=1, num_val=2, image_size=(96, 96))
        cfg.test_dataloader.dataset.pipeline[1].scale = (96, 96)
        cfg.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=50)
        return cfg

    torch.manual_seed(0)
    model = build_model(make())
    model.init_weights()
    torch.save({"meta": {}, "state_dict": model.state_dict()}, tmp_path / "random.pth")
    boxes = []
    for tiles in (None, 96, 64):
        cfg = make()
        cfg.test_evaluator.outfile_prefix = str(tmp_path / f"{tiles}")
        launch.test(cfg, str(tmp_path / "random.pth"), Inference(tiles=tiles))
        boxes.append(json.loads((tmp_path / f"{tiles}.bbox.json").read_text()))
    key = operator.itemgetter("image_id", "score", "bbox")
    assert sorted(boxes[1], key=key) == sorted(boxes[0], key=key)
    assert boxes[2] != boxes[0]


def test_what_cannot_be_tiled():
    with pytest.raises(ConfigError, match="tiles: got a segmentor"):
        built(load_config("upernet_swin_nano_shapes"), Asked(inference=Inference(tiles=64)))
