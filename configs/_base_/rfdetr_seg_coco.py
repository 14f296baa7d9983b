"""RF-DETR with masks on COCO: patches of 12 pixels, model, instances in squares, schedule and runtime."""

_base_ = ["rfdetr.py", "coco_squares.py", "schedule_rfdetr.py", "det_runtime.py"]

queries = 100
model = dict(
    data_preprocessor=dict(pad_size_divisor=24, batch_augments=[dict(type="vitdense.BatchResize", step=24)]),
    backbone=dict(patch_size=12),
    bbox_head=dict(with_masks=True, stride=12, num_layers=4, num_queries=queries),
    test_cfg=dict(max_per_img=queries),
)
