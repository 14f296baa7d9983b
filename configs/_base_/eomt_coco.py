"""EoMT on COCO: model, panoptic data, schedule and runtime."""

_base_ = ["eomt.py", "coco_panoptic.py", "schedule_eomt.py", "det_runtime.py"]

default_hooks = dict(checkpoint=dict(by_epoch=False, interval=_base_.epoch))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
# Of 24 blocks, the last four.
custom_hooks = [
    dict(type="vitdense.MaskAnnealingHook", starts=(14782, 29564, 44346, 59128), ends=(29564, 44346, 59128, 73910))
]
