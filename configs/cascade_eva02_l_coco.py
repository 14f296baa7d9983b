"""EVA-02: Cascade Mask R-CNN with ViTDet's pyramid, EVA-02-L with windows of 16, 60k iterations of 144 images:
published 59.2 box AP, 50.8 mask AP on COCO val.

torchrun --nnodes 18 --nproc-per-node 8 -m vitdense train cascade_eva02_l_coco --launcher pytorch --amp bfloat16

The authors start from a file with patches of 16 pixels (`eva02_L_pt_m38m_p14to16`): give it as init_cfg.checkpoint.
Their trained detector (`eva02_L_coco_bsl`) loads as it is: vitdense test with this config and the file.
"""

_base_ = "cascade_eva02_b_coco.py"

model = dict(
    backbone=dict(arch="eva02_large", global_indices=(5, 11, 17, 23), drop_path_rate=0.4, out_indices=(23,)),
    neck=dict(in_channels=1024),
)
train_cfg = dict(max_epochs=74)  # 60k iterations are 73.7
param_scheduler = [
    _base_.param_scheduler[0],
    *(dict(drop, begin=74 * share) for drop, share in zip(_base_.param_scheduler[1:], (0.8, 0.9))),
]
optim_wrapper = dict(optimizer=dict(lr=6e-5), paramwise_cfg=dict(layer_decay_rate=0.8))
auto_scale_lr = dict(base_batch_size=144)
