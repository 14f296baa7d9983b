"""EoMT for panoptic segmentation: a plain ViT whose last blocks have queries among the tokens.

The numbers of classes follow the data set. For instances alone: `test_cfg`.
"""

num_blocks = 4  # that queries take part in
model = dict(
    type="Mask2Former",
    data_preprocessor=dict(
        type="DetDataPreprocessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=16,
        pad_mask=True,
        mask_pad_value=0,
        pad_seg=True,
        seg_pad_value=255,
    ),
    backbone=dict(type="vitdense.JointViT", num_joint_blocks=num_blocks, pretrain_img_size=640),
    panoptic_head=dict(type="vitdense.EoMTHead", num_blocks=num_blocks),
    panoptic_fusion_head=dict(type="MaskFormerFusionHead"),
    train_cfg=dict(num_points=12544),
    test_cfg=dict(panoptic_on=True, instance_on=False, object_mask_thr=0.8, iou_thr=0.8, max_per_image=100),
)
