"""PMT on COCO: six blocks of its own on four taps of a frozen DINOv3; otherwise as `eomt_coco.py`."""

_base_ = ["eomt.py", "coco_panoptic.py", "pmt_schedule.py", "det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.TokenViT",
        out_norm="shared",
        frozen_stages="all",
    ),
    panoptic_head=dict(_delete_=True, type="vitdense.PMTHead"),
)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=_base_.epoch))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
custom_hooks = [
    dict(
        type="vitdense.MaskAnnealingHook",
        starts=(0, 23651, 32520, 41389, 50258, 59128),
        ends=(3000, 38433, 47302, 56171, 65040, 73910),
    )
]
