"""The Mask2Former authors' optimiser for a total batch of 16: a tenth of the learning rate in the backbone, and no
weight decay of norms, tables and embeddings."""

no_decay = dict(decay_mult=0.0)
backbone_no_decay = dict(lr_mult=0.1, decay_mult=0.0)
mask2former_optim = dict(
    _delete_=True,
    type="OptimWrapper",
    constructor="vitdense.LayerDecayOptimWrapperConstructor",  # its log is one table, not a line per parameter
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,  # outside the backbone: of the keys in a name, the longest decides alone
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
