"""htcpp_swin_b_coco.py without its semantic branch, for data without label maps of stuff (counted: 156.7 M, 997.5 G at
800x1280)."""

_base_ = ["_base_/htc.py", "_base_/coco_htcpp.py", "../_base_/schedule_3x.py", "../_base_/det_runtime.py"]

channels = [128, 256, 512, 1024]
model = dict(
    backbone=dict(
        arch="base",
        with_cp=True,  # images of 1600x1400
        init_cfg=dict(type="Pretrained", checkpoint="swin_base.ms_in22k"),
    ),
    neck=[
        dict(type="vitdense.GlobalBlock", in_channels=channels, num_heads=32, drop_path_rate=0.2),
        dict(_base_.model.neck, in_channels=channels),
    ],
    test_cfg=dict(rcnn=dict(nms=dict(_delete_=True, type="soft_nms", iou_threshold=0.5, min_score=0.001))),
)
train_cfg = dict(max_epochs=72)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=72, milestones=[63, 69])]
