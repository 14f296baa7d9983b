"""Cascade Mask R-CNN, DeiT-S with four maps by deconvolution, 3x (79.8 M, 888.3 G at 800x1280). Swin's Table 2 has 48.0
box AP, 41.4 mask AP, 80 M and 889 G for such a model, whose deconvolution was never released: the neck is a
reconstruction, see `vitdense.DeconvPyramid`.

torchrun --nproc-per-node 8 -m vitdense train cascade_deit_s_coco --launcher pytorch
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="deit_small",
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="deit_small.fb_in1k"),
    ),
    neck=[
        dict(type="vitdense.DeconvPyramid", in_channels=[384] * 4, design="light"),
        dict(type="FPN", in_channels=[384] * 4, out_channels=256, num_outs=5),
    ],
)
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0))  # the neck's are not called so
