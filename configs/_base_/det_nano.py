"""A short schedule for one small machine, and the runtime of detection."""

_base_ = ["schedule_nano.py", "det_runtime.py"]

default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100), logger=dict(interval=20))
log_processor = dict(by_epoch=False, window_size=20)
randomness = dict(seed=0)
