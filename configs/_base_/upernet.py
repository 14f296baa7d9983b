"""UPerNet for a Swin of 96 channels with an auxiliary head on the map of stride 16, as the Swin authors train it on
512-pixel crops of ADE20K."""

num_classes = 150  # heads with this number follow the data
norm = dict(type="SyncBN", requires_grad=True)
loss = dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0)
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),  # of a training crop; images to test keep theirs
    ),
    backbone=dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.3),
    decode_head=dict(
        type="UPerHead",
        num_classes=num_classes,
        in_channels=[96, 192, 384, 768],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        norm_cfg=norm,
        align_corners=False,
        loss_decode=loss,
    ),
    auxiliary_head=dict(
        type="FCNHead",
        num_classes=num_classes,
        in_channels=384,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        norm_cfg=norm,
        align_corners=False,
        loss_decode=dict(loss, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
