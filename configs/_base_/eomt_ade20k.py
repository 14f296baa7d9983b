"""EoMT on ADE20K: model, data, schedule of 31 epochs of 1263 iterations, and runtime."""

_base_ = ["eomt_seg.py", "ade20k.py", "schedule_eomt.py", "seg_runtime.py"]

epoch = 1263
max_iters = 31 * epoch
train_cfg = dict(max_iters=max_iters, val_interval=5 * epoch)
param_scheduler = [dict(type="vitdense.TwoWarmupsLR", warmups=(500, 1000), by_epoch=False, end=max_iters)]
default_hooks = dict(checkpoint=dict(interval=epoch))
train_dataloader = dict(batch_size=4, num_workers=4)
custom_hooks = [
    dict(type="vitdense.MaskAnnealingHook", starts=(6520, 13040, 19560, 26080), ends=(13040, 19560, 26080, 32600))
]
