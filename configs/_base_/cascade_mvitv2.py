"""Cascade Mask R-CNN with FPN as the MViTv2 authors train it in detectron2: two RPN convolutions, three stages of
4conv1fc SyncBN box heads with class-agnostic L1 regression, and one mask head with SyncBN."""

_base_ = "cascade_mask_rcnn.py"

roi_head, rcnn = _base_.model.roi_head, _base_.model.train_cfg.rcnn
model = dict(
    backbone=dict(_delete_=True, type="vitdense.MViT", arch="v2_tiny", drop_path_rate=0.2),
    # L1 is detectron2's smooth L1 with beta 0.
    rpn_head=dict(num_convs=2, loss_bbox=dict(_delete_=True, type="L1Loss", loss_weight=1.0)),
    roi_head=dict(
        type="vitdense.Detectron2CascadeRoIHead",
        stage_loss_weights=[1.0, 1.0, 1.0],
        bbox_head=[
            dict(
                head,
                bbox_coder=dict(head.bbox_coder, target_stds=[1 / xy, 1 / xy, 1 / wh, 1 / wh]),
                reg_class_agnostic=True,
                reg_decoded_bbox=False,
                loss_bbox=dict(type="L1Loss", loss_weight=1.0),
            )
            for head, (xy, wh) in zip(roi_head.bbox_head, ((10, 5), (20, 10), (30, 15)))
        ],
        mask_head=dict(norm_cfg=dict(type="SyncBN", requires_grad=True)),
    ),
    train_cfg=dict(
        rpn=dict(allowed_border=-1),
        rpn_proposal=dict(max_per_img=1000),
        # RoIs are sampled once; later stages keep all of them, refined.
        rcnn=[rcnn[0], *(dict(stage, sampler=dict(type="PseudoSampler")) for stage in rcnn[1:])],
    ),
)
del roi_head, rcnn
