"""Pipelines move corners with the pixels: each step is judged by what the image shows."""

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmdet.structures import DetDataSample
from mmengine.registry import DATASETS, TRANSFORMS, init_default_scope
from mmengine.structures import InstanceData

from vitdense.extensions.oriented.drawn import draw_turned
from vitdense.extensions.oriented.steps import Corners
from vitdense.mm.heads.rfdetr.head import BatchResize

LOAD = dict(type="LoadAnnotations", with_bbox=True, box_type="corners")
SIZE = 160, 240
BOXES = [
    [30, 40, 90, 60, 84, 78, 24, 58],
    [150, 30, 170, 30, 170, 120, 150, 120],
    [60, 100, 100, 120, 90, 140, 50, 120],
]


def painted(boxes=BOXES):
    """An image whose objects are white, and mmdet's annotations of it."""
    image = np.zeros((*SIZE, 3), np.uint8)
    for box in boxes:
        cv2.fillPoly(image, [np.int32(np.reshape(box, (4, 2)))], (255, 255, 255))
    instances = [{"bbox": box, "bbox_label": i, "ignore_flag": 0} for i, box in enumerate(boxes)]
    shape = {"img_shape": SIZE, "ori_shape": SIZE, "height": SIZE[0], "width": SIZE[1]}
    return {"img": image, "instances": instances, "img_path": "", "img_id": 0, **shape}


def shown(results):
    """The share of white pixels in the corners, and of the corners' pixels among the white ones."""
    corners = results["gt_bboxes"].points.numpy()  # [N, 4, 2]
    found = np.zeros(results["img"].shape[:2], np.uint8)
    for one in corners:
        cv2.fillPoly(found, [np.int32(one.round())], 1)
    white = results["img"][..., 0] > 200  # mmdet fills with 128
    return (found[white] > 0).mean(), white[found > 0].mean()


@pytest.mark.parametrize(
    "step",
    [
        *(dict(type="RandomFlip", prob=1.0, direction=way) for way in ("horizontal", "vertical", "diagonal")),
        dict(type="Resize", scale=(300, 300), keep_ratio=False),
        dict(type="Resize", scale=(480, 320), keep_ratio=True),
        dict(type="Rotate", prob=1.0, min_mag=30.0, max_mag=30.0),
        dict(type="TranslateX", prob=1.0),
        dict(type="ShearX", prob=1.0),
        dict(type="RandomAffine", max_rotate_degree=80, max_translate_ratio=0.0, scaling_ratio_range=(0.6, 0.7)),
        dict(type="Expand", prob=1.0, ratio_range=(1.5, 1.6), mean=(0, 0, 0)),
        dict(type="Pad", size=(320, 320)),
    ],
    ids=lambda step: "-".join([step["type"], *[str(v) for k, v in step.items() if k in ("direction", "keep_ratio")]]),
)
def test_corners_move_with_the_pixels(step):
    init_default_scope("mmdet")
    results = Compose([LOAD, step])(painted())
    assert len(results["gt_bboxes"]) == len(BOXES)
    covered, right = shown(results)
    assert min(covered, right) > 0.9, (covered, right)  # rounded to pixels


def test_a_crop_keeps_objects_whose_centre_is_inside():
    init_default_scope("mmdet")
    np.random.seed(1)  # noqa: NPY002
    results = Compose([LOAD, dict(type="RandomCrop", crop_size=(110, 150))])(painted())
    assert 0 < len(results["gt_bboxes"]) < len(BOXES)
    height, width = results["img"].shape[:2]
    centres = results["gt_bboxes"].centers
    assert ((centres >= 0) & (centres < torch.tensor([width, height]))).all()
    areas = Corners(torch.tensor(BOXES, dtype=torch.float32)).areas
    assert torch.isin(results["gt_bboxes"].areas.round(), areas.round()).all()  # whole


def test_a_mosaic():
    init_default_scope("mmdet")
    parts = [Compose([LOAD])(painted([box])) for box in (*BOXES, BOXES[0])]
    mosaic = dict(type="vitdense.Mosaic", img_scale=SIZE[::-1], center_ratio_range=(1.0, 1.0), pad_val=0)
    results = TRANSFORMS.build(mosaic).transform({**parts[0], "mix_results": parts[1:]})
    assert len(results["gt_bboxes"]) == 4
    covered, right = shown(results)
    assert min(covered, right) > 0.93, (covered, right)


def test_a_batch_is_resized():
    corners = torch.tensor(BOXES, dtype=torch.float32)
    sample = DetDataSample(metainfo={"img_shape": SIZE}, gt_instances=InstanceData(bboxes=corners))
    torch.manual_seed(1)
    images, _ = BatchResize(16)(torch.zeros(1, 3, *SIZE), [sample])
    ratio = torch.tensor([images.shape[3] / SIZE[1], images.shape[2] / SIZE[0]])
    assert (ratio != 1).any()
    torch.testing.assert_close(sample.gt_instances.bboxes, corners * ratio.repeat(4))


def test_the_data_set(tmp_path):
    init_default_scope("mmdet")
    draw_turned(tmp_path / "own", num_train=2, num_val=1, workers=1)
    files = dict(ann_file="annotations/oriented_train.json", data_prefix=dict(img="train/"))
    pipeline = [dict(type="LoadImageFromFile"), LOAD]
    data = dict(type="vitdense.TurnedShapesDataset", data_root=str(tmp_path / "own"), **files, pipeline=pipeline)
    data["draw"] = dict(num_train=2, num_val=1)
    dataset = DATASETS.build(data)
    assert sum(len(dataset[i]["gt_bboxes"]) for i in range(2)) > 0
    one = dataset[0]
    assert isinstance(one["gt_bboxes"], Corners)
    assert one["gt_bboxes"].areas.min() > 50
    tiles = DATASETS.build(dict(type="vitdense.TiledDataset", side=128, keep_empty=0.0, dataset=data))
    found = tiles[0]["gt_bboxes"]
    assert len(found)
    assert found.is_inside((128 + 90, 128 + 90), allowed_border=90).all()
