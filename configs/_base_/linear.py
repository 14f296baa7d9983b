"""A linear head on the last map of a frozen trunk, trained for 40000 iterations on ADE20K: how DINOv2 and DINOv3 are
compared. A test goes over the image in windows of 512 pixels."""

_base_ = ["upernet.py", "ade20k.py", "schedule_160k.py", "seg_runtime.py"]

linear_head = dict(
    _delete_=True,
    type="vitdense.LinearHead",
    num_classes=_base_.num_classes,
    dropout_ratio=0.1,
    align_corners=False,
    loss_decode=_base_.loss,
)
model = dict(auxiliary_head=None, test_cfg=dict(mode="slide", crop_size=(512, 512), stride=(341, 341)))
train_cfg = dict(max_iters=40000, val_interval=8000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=40000)]
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-3))
