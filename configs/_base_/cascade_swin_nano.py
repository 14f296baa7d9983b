"""The Swin authors' Cascade Mask R-CNN, small in every part, to train on two CPU cores in minutes."""

_base_ = ["cascade_mask_rcnn.py", "swin_nano.py"]

width = 32  # channels of FPN and heads
norm = dict(type="SyncBN", requires_grad=True)  # also in FPN and mask heads: from scratch they learn much faster
roi_head = _base_.model.roi_head
model = dict(
    backbone=dict(_delete_=True, **_base_.swin_nano),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=width, num_outs=5, norm_cfg=norm),
    rpn_head=dict(in_channels=width, feat_channels=width, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=width, finest_scale=28, roi_layer=dict(sampling_ratio=1)),
        bbox_head=[
            dict(head, num_shared_convs=1, in_channels=width, conv_out_channels=width, fc_out_channels=256)
            for head in roi_head.bbox_head
        ],
        mask_roi_extractor=dict(out_channels=width, finest_scale=28, roi_layer=dict(sampling_ratio=1)),
        mask_head=dict(num_convs=4, in_channels=width, conv_out_channels=width, norm_cfg=norm),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=200),
        rcnn=[
            dict(stage, sampler=dict(stage.sampler, num=64, pos_fraction=0.5)) for stage in _base_.model.train_cfg.rcnn
        ],
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=200)),
)
del roi_head
