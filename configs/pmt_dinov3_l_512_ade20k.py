"""PMT on a frozen DINOv3 ViT-L, ADE20K at 512 pixels, 16 epochs: published 58.5 mIoU.

torchrun --nproc-per-node 4 -m vitdense train pmt_dinov3_l_512_ade20k --launcher pytorch --amp
"""

_base_ = ["_base_/eomt_seg.py", "_base_/ade20k.py", "_base_/pmt_schedule.py", "_base_/seg_runtime.py"]

epoch = 1263
max_iters = 16 * epoch
model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.TokenViT",
        arch="dinov3_large",
        out_indices=(5, 11, 17, 23),
        out_norm="shared",
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_large.fb_lvd1689m"),
    ),
    decode_head=dict(
        _delete_=True,
        type="vitdense.PMTSegHead",
        in_channels=[1024] * 4,
        num_heads=16,
        num_classes=150,
        num_queries=100,
        train_cfg=dict(num_points=12544),
    ),
)
train_cfg = dict(max_iters=max_iters, val_interval=4 * epoch)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=max_iters)]
default_hooks = dict(checkpoint=dict(interval=epoch))
train_dataloader = dict(batch_size=4, num_workers=4)
custom_hooks = [
    dict(
        type="vitdense.MaskAnnealingHook",
        starts=(0, 5384, 7403, 9422, 11442, 13461),
        ends=(3000, 8749, 10769, 12788, 14807, 16826),
    )
]
