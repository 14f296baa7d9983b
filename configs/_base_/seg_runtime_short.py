"""Runtime of segmentation configs whose schedules are short."""

_base_ = "seg_runtime.py"

default_hooks = dict(checkpoint=dict(interval=100), logger=dict(interval=20))
log_processor = dict(window_size=20)
