"""HTC++, Swin-B, 6x: published 56.4 box AP, 49.1 mask AP on COCO val (159.5 M, 1042.7 G at 800x1280).

torchrun --nnodes 2 --nproc-per-node 8 tools/train.py configs/htcpp_swin_b_coco.py --launcher pytorch --amp
python tools/test.py configs/htcpp_swin_b_coco.py work_dirs/htcpp_swin_b_coco --tta

A reconstruction that fits the published totals: neither the code nor the recipe was released. It lacks InstaBoost. The
label maps of COCO-Stuff are data/coco/stuffthingmaps/{train2017,val2017}/*.png; without them, train
htcpp_without_semantic_swin_b_coco.py.
"""

_base_ = "htcpp_without_semantic_swin_b_coco.py"

model = dict(
    data_preprocessor=dict(pad_seg=True),
    roi_head=dict(
        semantic_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=14, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[8],
        ),
        semantic_head=dict(
            type="FusedSemanticHead",
            num_ins=5,
            fusion_level=1,
            seg_scale_factor=1 / 8,
            num_convs=4,
            in_channels=256,
            conv_out_channels=256,
            num_classes=183,
            loss_seg=dict(type="CrossEntropyLoss", ignore_index=255, loss_weight=0.2),
        ),
    ),
)
train_pipeline = [
    dict(step, with_seg=True) if step.type == "LoadAnnotations" else step for step in _base_.train_pipeline
]
train_dataloader = dict(
    dataset=dict(data_prefix=dict(seg="stuffthingmaps/train2017/"), pipeline=train_pipeline),
)
