"""The recipes that `vitdense new` starts from, by the options that choose them. Imports neither torch nor mm."""

DETECTORS = {  # (method, boxes only) -> recipe
    ("cascade", False): "cascade_swin_t_coco",
    ("cascade", True): "cascade_rcnn_swin_t_coco",
    ("mask_rcnn", False): "mask_rcnn_swin_t_coco",
    ("mask_rcnn", True): "faster_rcnn_swin_t_coco",
    ("rfdetr", False): "rfdetr_seg_s_coco",
    ("rfdetr", True): "rfdetr_s_coco",
}
SEGMENTORS = {  # head -> recipe
    "upernet": "upernet_swin_t_ade20k",
    "linear": "linear_dinov3_s_ade20k",
    "dpt": "dpt_dinov3_b_ade20k",
    "mask2former": "mask2former_swin_t_ade20k",
}
PANOPTIC = "eomt_dinov2_s_640_coco_panoptic"
FINETUNE = {  # options of the backbone
    "all": {"frozen_stages": -1, "finetune": None},
    "frozen": {"frozen_stages": "all", "finetune": None},
    "attention": {"frozen_stages": -1, "finetune": "attention"},
    "lora": {"frozen_stages": -1, "finetune": "lora"},
}
EPOCHS, ITERS = 12, 20000  # length of recipes for detection and for segmentation
SMALL = {  # task -> recipe of a small model
    "detection": "cascade_swin_nano_coco",
    "segmentation": "upernet_swin_nano_camvid",
    "panoptic": "eomt_nano_shapes",
}
