"""Sparse R-CNN, small in every part, on a nano Swin and the boxes of the embedded data set.

vitdense train sparse_rcnn_swin_nano_shapes
"""

_base_ = ["../_base_/sparse_rcnn.py", "../_base_/swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

width = 64  # channels of FPN, proposals and heads
num_stages = 4
num_proposals = 40
num_classes = 8  # heads with this number follow the data
model = dict(
    backbone=dict(_delete_=True, **_base_.swin_nano),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=width, norm_cfg=dict(type="SyncBN", requires_grad=True)),
    rpn_head=dict(num_proposals=num_proposals, proposal_feature_channel=width),
    roi_head=dict(
        num_stages=num_stages,
        stage_loss_weights=[1] * num_stages,
        proposal_feature_channel=width,
        bbox_roi_extractor=dict(out_channels=width, finest_scale=28, roi_layer=dict(sampling_ratio=1)),
        bbox_head=[
            dict(
                head,
                num_classes=num_classes,
                in_channels=width,
                num_heads=4,
                num_reg_fcs=1,
                feedforward_channels=4 * width,
                dynamic_conv_cfg=dict(head.dynamic_conv_cfg, in_channels=width, feat_channels=16, out_channels=width),
            )
            for head in _base_.model.roi_head.bbox_head[:num_stages]
        ],
    ),
    train_cfg=dict(rcnn=_base_.model.train_cfg.rcnn[:num_stages]),
    test_cfg=dict(rcnn=dict(max_per_img=100)),
)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4),
    paramwise_cfg=dict(custom_keys=dict(rpn_head=dict(decay_mult=0.0))),  # the learned proposals
)
train_cfg = dict(max_iters=1400, val_interval=1400)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=1400)]
