"""EoMT for semantic segmentation: `eomt.py` for mmseg, with 100 queries, on crops of 512 pixels.

In tests a window of 512 pixels moves along the longer side. The authors' windows overlap equally; of ours, as many, the
last one overlaps.
"""

num_blocks = 4  # that queries take part in
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(type="vitdense.JointViT", num_joint_blocks=num_blocks, pretrain_img_size=512),
    decode_head=dict(
        type="vitdense.EoMTSegHead",
        num_classes=150,
        num_queries=100,
        num_blocks=num_blocks,
        train_cfg=dict(num_points=12544),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="slide", crop_size=(512, 512), stride=(512, 512)),
)
