"""The Mask2Former authors' 50-epoch schedule for a total batch of 16; their 368750 iterations are 50 epochs."""

_base_ = ["schedule_mvitv2.py", "mask2former_optim.py"]

train_cfg = dict(max_epochs=50)
param_scheduler = [dict(_base_.drop, begin=50 * step / 368750) for step in (327778, 355092)]
optim_wrapper = _base_.mask2former_optim
auto_scale_lr = dict(base_batch_size=16)
