"""A Swin small enough to train from scratch on two CPU cores in minutes."""

swin_nano = dict(
    type="vitdense.Swin",
    arch=dict(embed_dims=32, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8)),
    window_size=8,  # divides the maps of a 256-pixel image
    drop_path_rate=0.0,
    init_cfg=dict(type="Xavier", layer="Linear", distribution="uniform"),  # std 0.02 is too small for 32 channels
)
