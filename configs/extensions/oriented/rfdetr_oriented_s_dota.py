"""RF-DETR S with oriented boxes, on DOTA's 15 classes at 768 pixels, from the authors' weights for COCO.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_oriented_s_dota --launcher pytorch --amp
"""

_base_ = [
    "../../_base_/rfdetr.py",
    "_base_/dota.py",
    "../../_base_/schedule_rfdetr.py",
    "../../_base_/det_runtime.py",
]

settings = dict(image_size=768)
num_classes = 15
model = dict(
    backbone=dict(init_cfg=None),
    bbox_head=dict(type="vitdense.OrientedRFDETRHead", num_classes=num_classes),
)
visualizer = dict(type="vitdense.OrientedVisualizer")
load_from = "https://storage.googleapis.com/rfdetr/small_coco/checkpoint_best_regular.pth"
fresh = [r"bbox_head\.(selections\.\d+\.)?classes\..+", r"bbox_head\.(shape|first_shapes)\..+"]
default_hooks = dict(exact_load=dict(fresh=fresh))
