"""ResNet-50 as mmdet trains it: what the Swin paper's Table 2 compares with."""

resnet50 = dict(
    _delete_=True,
    type="ResNet",
    depth=50,
    num_stages=4,
    out_indices=(0, 1, 2, 3),
    frozen_stages=1,
    norm_cfg=dict(type="BN", requires_grad=True),
    norm_eval=True,
    style="pytorch",
    init_cfg=dict(type="Pretrained", checkpoint="resnet50.tv_in1k"),
)
