"""UPerNet, DeiT-S with four maps by deconvolution, 160k iterations (51.8 M, 1097.8 G at 512x2048). Swin's Table 3 has
44.0 mIoU (six scales, flips), 52 M and 1099 G for such a model, whose deconvolution was never released: the neck is a
reconstruction, see `vitdense.DeconvPyramid`.

torchrun --nproc-per-node 8 -m vitdense train upernet_deit_s_ade20k --launcher pytorch
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=32)),  # whole patches; mmseg cuts the padding off again
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="deit_small",
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="deit_small.fb_in1k"),
    ),
    neck=dict(type="vitdense.DeconvPyramid", in_channels=[384] * 4, design="light"),
    decode_head=dict(in_channels=[384] * 4),
)
