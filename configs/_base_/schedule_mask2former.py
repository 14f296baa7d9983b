"""The Mask2Former authors' 50-epoch schedule for a total batch of 16; their 368750 iterations are 50 epochs."""

_base_ = "schedule_mvitv2.py"

train_cfg = dict(max_epochs=50)
param_scheduler = [dict(_base_.drop, begin=50 * step / 368750) for step in (327778, 355092)]
no_decay = dict(decay_mult=0.0)
backbone_no_decay = dict(lr_mult=0.1, decay_mult=0.0)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=0.01),
    paramwise_cfg=dict(
        _delete_=True,
        norm_decay_mult=0.0,  # outside the backbone; the longest key that is in a name decides alone
        custom_keys={
            "backbone": dict(lr_mult=0.1),
            "backbone.norm": backbone_no_decay,
            "patch_embed.norm": backbone_no_decay,
            "downsample.norm": backbone_no_decay,
            **{f".blocks.{i}.norm": backbone_no_decay for i in range(18)},
            "absolute_pos_embed": backbone_no_decay,
            "relative_position_bias_table": backbone_no_decay,
            "query_embed": no_decay,
            "query_feat": no_decay,
            "level_embed": no_decay,
        },
    ),
)
# --auto-scale-lr multiplies lr by (actual total batch) / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
