"""RF-DETR: a DINOv2 of 2 x 2 windows, one map, 300 queries in 13 groups while training. Without NMS."""

model = dict(
    type="SingleStageDetector",
    data_preprocessor=dict(
        type="DetDataPreprocessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        batch_augments=[dict(type="vitdense.BatchResize", step=32)],
    ),
    backbone=dict(
        type="vitdense.WindowedViT",
        arch="rfdetr_small",
        patch_size=16,
        pretrain_img_size=512,
        # Published for patches of 14 pixels: weights and positions are resized by timm's rules.
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_small.fb_lvd142m", resize="timm"),
    ),
    neck=dict(type="vitdense.C2fProjector", in_channels=[384] * 4),
    bbox_head=dict(type="vitdense.RFDETRHead", num_layers=3, num_queries=300),
    test_cfg=dict(max_per_img=300),
)
