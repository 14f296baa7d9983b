"""Cascade Mask R-CNN with FPN as the Swin authors train it: three stages of 4conv1fc SyncBN box heads with
class-specific GIoU regression on decoded boxes, and a mask head per stage."""

_base_ = "mask_rcnn.py"

model = dict(
    type="CascadeRCNN",
    rpn_head=dict(loss_bbox=dict(type="SmoothL1Loss", beta=1.0 / 9.0)),
    roi_head=dict(
        type="CascadeRoIHead",
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                type="ConvFCBBoxHead",
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                bbox_coder=dict(type="DeltaXYWHBBoxCoder", target_means=[0.0] * 4, target_stds=stds),
                reg_class_agnostic=False,
                reg_decoded_bbox=True,
                norm_cfg=dict(type="SyncBN", requires_grad=True),
                loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
                loss_bbox=dict(type="GIoULoss", loss_weight=10.0),
            )
            for stds in ([0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.033, 0.033, 0.067, 0.067])
        ],
    ),
    train_cfg=dict(
        rpn=dict(allowed_border=0),
        rpn_proposal=dict(max_per_img=2000),
        rcnn=[
            dict(
                assigner=dict(
                    type="MaxIoUAssigner",
                    pos_iou_thr=iou,
                    neg_iou_thr=iou,
                    min_pos_iou=iou,
                    match_low_quality=False,
                    ignore_iof_thr=-1,
                ),
                sampler=dict(type="RandomSampler", num=512, pos_fraction=0.25, neg_pos_ub=-1, add_gt_as_proposals=True),
                mask_size=28,
                pos_weight=-1,
                debug=False,
            )
            for iou in (0.5, 0.6, 0.7)
        ],
    ),
)
