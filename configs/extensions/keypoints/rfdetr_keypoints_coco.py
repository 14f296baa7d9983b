"""RF-DETR with keypoints (preview), COCO's people at 576 pixels, 100 epochs: published 71.8 keypoint AP.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_keypoints_coco --launcher pytorch --amp
"""

_base_ = [
    "../../_base_/rfdetr.py",
    "_base_/coco_keypoints.py",
    "../../_base_/schedule_rfdetr.py",
    "../../_base_/det_runtime.py",
]

settings = dict(image_size=576)
queries = 100
model = dict(
    data_preprocessor=dict(pad_size_divisor=24, batch_augments=[dict(type="vitdense.BatchResize", step=24)]),
    backbone=dict(patch_size=12, pretrain_img_size=576),
    neck=dict(type="vitdense.KeypointProjector"),
    bbox_head=dict(type="vitdense.RFDETRKeypointHead", stride=12, num_layers=4, num_queries=queries, num_keypoints=17),
    test_cfg=dict(max_per_img=queries),
)
