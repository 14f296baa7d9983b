"""EoMT, small in every part, on the embedded data set as panoptic segments.

vitdense train eomt_nano_shapes
"""

_base_ = ["../_base_/eomt.py", "../_base_/shapes_panoptic.py", "../_base_/det_nano.py"]

num_blocks = 2
model = dict(
    data_preprocessor=dict(pad_size_divisor=8),
    backbone=dict(
        arch=dict(embed_dims=128, depth=6, num_heads=4, patch_size=8),
        num_joint_blocks=num_blocks,
        pretrain_img_size=128,
    ),
    panoptic_head=dict(in_channels=[128], num_queries=20, num_blocks=num_blocks, patch_size=8),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(object_mask_thr=0.5, iou_thr=0.5),
)
# Half as large: shapes of 10 to 75 pixels.
train_pipeline, test_pipeline = (
    [dict(step, scale=(128, 128)) if step.type == "Resize" else step for step in pipeline]
    for pipeline in (_base_.train_pipeline, _base_.test_pipeline)
)
train_dataloader = dict(batch_size=8, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-3))
custom_hooks = [dict(type="vitdense.MaskAnnealingHook", starts=(200, 500), ends=(700, 1000))]
