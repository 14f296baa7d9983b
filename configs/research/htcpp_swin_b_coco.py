"""HTC++, Swin-B, 6x: published 56.4 box AP, 49.1 mask AP on COCO val (counted: 159.5 M, 1042.3 G at 800x1280).

torchrun --nnodes 2 --nproc-per-node 8 -m vitdense train htcpp_swin_b_coco --launcher pytorch --amp
vitdense test htcpp_swin_b_coco work_dirs/htcpp_swin_b_coco --tta

A reconstruction that fits the published totals: neither the code nor the recipe was released. It lacks InstaBoost. The
label maps of COCO-Stuff are data/coco/stuffthingmaps/{train2017,val2017}/*.png; without them, train
htcpp_without_semantic_swin_b_coco.py.
"""

_base_ = "htcpp_without_semantic_swin_b_coco.py"
from vitdense.mm.config.load import shipped

htc = shipped("mmdet::htc/htc_r50_fpn_1x_coco.py").model.roi_head
model = dict(
    data_preprocessor=dict(pad_seg=True),
    roi_head=dict(semantic_roi_extractor=htc.semantic_roi_extractor, semantic_head=htc.semantic_head),
)
del htc
train_pipeline = [
    dict(step, with_seg=True) if step.type == "LoadAnnotations" else step for step in _base_.train_pipeline
]
train_dataloader = dict(
    dataset=dict(data_prefix=dict(seg="stuffthingmaps/train2017/"), pipeline=train_pipeline),
)
