"""RepPoints V2, ResNet-50, 3x: what the Swin paper compares reppoints_v2_swin_t_coco.py with. 46.5 box AP, 42 M, 274 G
(counted: 42.1 M, 272.2 G at 800x1280). Its authors released no config of it; here, all but the backbone is the same.

torchrun --nproc-per-node 8 tools/train.py configs/reppoints_v2_r50_coco.py --launcher pytorch
"""

_base_ = "reppoints_v2_swin_t_coco.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="ResNet",
        depth=50,
        out_indices=(1, 2, 3),
        frozen_stages=1,
        norm_eval=True,
        init_cfg=dict(type="Pretrained", checkpoint="torchvision://resnet50"),
    ),
    neck=dict(in_channels=[512, 1024, 2048]),
)
