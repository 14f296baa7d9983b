"""HTC, small in every part, on a nano Swin and the embedded data set.

vitdense train htc_swin_nano_shapes
"""

_base_ = ["_base_/htc.py", "../_base_/swin_nano.py", "../_base_/shapes_instance.py", "../_base_/det_nano.py"]

width = 32  # channels of FPN and heads
num_classes = 8  # heads with this number follow the data
norm = dict(type="SyncBN", requires_grad=True)
roi_head = _base_.model.roi_head
roi_extractor = dict(out_channels=width, finest_scale=28, roi_layer=dict(sampling_ratio=1))
model = dict(
    backbone=dict(_delete_=True, **_base_.swin_nano),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=width, norm_cfg=norm),
    rpn_head=dict(in_channels=width, feat_channels=width, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=roi_extractor,
        bbox_head=[
            dict(
                head,
                num_classes=num_classes,
                num_shared_convs=1,
                in_channels=width,
                conv_out_channels=width,
                fc_out_channels=256,
                reg_class_agnostic=False,  # as in cascade_swin_nano_shapes.py
            )
            for head in roi_head.bbox_head
        ],
        mask_roi_extractor=roi_extractor,
        mask_head=[
            dict(head, num_classes=num_classes, num_convs=4, in_channels=width, conv_out_channels=width, norm_cfg=norm)
            for head in roi_head.mask_head
        ],
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
