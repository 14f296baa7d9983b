"""RF-DETR Seg N, COCO instances at 312 pixels, 100 epochs: published 40.3 mask AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_seg_n_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_seg_coco.py"

settings = dict(image_size=312)
model = dict(
    data_preprocessor=dict(pad_size_divisor=12, batch_augments=[dict(type="vitdense.BatchResize", step=12)]),
    backbone=dict(num_windows=1, pretrain_img_size=312),
)
