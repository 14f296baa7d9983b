"""A short schedule for one small machine, and the runtime of segmentation."""

_base_ = ["schedule_nano.py", "seg_runtime.py"]

default_hooks = dict(checkpoint=dict(interval=100), logger=dict(interval=20))
log_processor = dict(window_size=20)
