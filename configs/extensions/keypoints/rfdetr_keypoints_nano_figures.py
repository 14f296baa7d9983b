"""RF-DETR with keypoints, small in every part, on the embedded figures at 192 pixels.

vitdense train rfdetr_keypoints_nano_figures
"""

_base_ = ["../../_base_/rfdetr_nano.py", "_base_/figures.py", "../../_base_/det_nano.py"]

settings = dict(image_size=192)
queries = 100  # of 144 positions: with 24 of 256, boxes did not learn
model = dict(
    neck=dict(type="vitdense.KeypointProjector"),
    bbox_head=dict(type="vitdense.RFDETRKeypointHead", num_queries=queries, num_groups=1, num_keypoints=11),
    test_cfg=dict(max_per_img=queries),
)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=1.0))
