"""EVA-02: Cascade Mask R-CNN with ViTDet's pyramid, EVA-02-B with windows of 16, 60k iterations of 128 images:
published 55.5 box AP, 47.1 mask AP on COCO val.

torchrun --nnodes 16 --nproc-per-node 8 -m vitdense train cascade_eva02_b_coco --launcher pytorch --amp bfloat16

The authors start from a file with patches of 16 pixels (`eva02_B_pt_in21k_p14to16`): give it as init_cfg.checkpoint.
Their trained detector (`eva02_B_coco_bsl`) loads as it is: vitdense test with this config and the file.
"""

_base_ = "cascade_vit_b_coco.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="eva02_base",
        patch_size=16,
        window_size=16,
        global_indices=(2, 5, 8, 11),
        drop_path_rate=0.1,
        out_indices=(11,),
        out_norm="none",
    ),
)
train_cfg = dict(max_epochs=66)  # 60k iterations are 65.5
param_scheduler = [
    dict(_base_.param_scheduler[0], end=1000),
    *(dict(_base_.drop, begin=66 * share) for share in (0.8, 0.9)),
]
# Norms and positions decay too.
optim_wrapper = dict(optimizer=dict(lr=5e-5), paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.7))
auto_scale_lr = dict(base_batch_size=128)
# The authors normalise as for ImageNet, although the weights were pretrained with the statistics of CLIP.
settings = dict(normalisation="own")
