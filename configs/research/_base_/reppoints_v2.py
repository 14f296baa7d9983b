"""RepPoints V2 with BiFPN for a Swin of 96 channels, as in the Swin authors' detection code."""

num_classes = 80  # heads with this number follow the data
model = dict(
    type="RepPointsDetector",
    data_preprocessor=dict(
        type="DetDataPreprocessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2, out_indices=(1, 2, 3)),
    neck=dict(type="vitdense.BiFPN", in_channels=[192, 384, 768], out_channels=256, num_outs=5),
    bbox_head=dict(type="vitdense.RepPointsV2Head", num_classes=num_classes, in_channels=256),
    train_cfg=dict(topk=9, gaussian_iou=0.7),
    test_cfg=dict(nms_pre=1000, score_thr=0.05, nms=dict(type="nms", iou_threshold=0.6), max_per_img=100),
)
