"""RF-DETR on COCO: model, boxes in squares of 512 pixels, schedule and runtime."""

_base_ = ["rfdetr.py", "coco_squares_boxes.py", "schedule_rfdetr.py", "det_runtime.py"]
