"""Sparse R-CNN, 300 proposals, Swin-T, 3x: published 47.9 box AP on COCO val (counted: 109.7 M, 175.6 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train sparse_rcnn_swin_t_coco --launcher pytorch

In float16 it diverges: train it in float32, or with --amp bfloat16.
"""

_base_ = ["_base_/sparse_rcnn.py", "_base_/coco_boxes.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0),
    # The learned proposals. The decay of the other weights would pull the boxes to zero.
    paramwise_cfg=dict(custom_keys=dict(rpn_head=dict(lr_mult=0.25, decay_mult=0.002))),
)
