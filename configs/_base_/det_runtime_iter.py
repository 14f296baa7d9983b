"""Runtime of detection configs whose schedules count iterations."""

_base_ = "det_runtime.py"

default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100), logger=dict(interval=20))
log_processor = dict(by_epoch=False, window_size=20)
randomness = dict(seed=0)
