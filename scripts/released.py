"""Write what a release leaves behind: work folders, checkpoints, programs with proofs. Run it when a release is closed.

python scripts/released.py tests/data/released/0.4.0.tar.xz

Four models of a few thousand parameters are trained for two of three iterations on the drawn data; with them stand
their metrics, the next loss, what they find in a photo, and exported programs. `tests/test_released.py` has each later
version read them.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

import vitdense
from vitdense.files import atomic_write, read_text
from vitdense.mm.work_folder import CURVES, LAST, LOCK

DRAWN = "dict(num_train=4,num_val=2,image_size=(64,64))"
COMMON = {
    # Without a state, which would be large.
    "optim_wrapper.optimizer": "dict(_delete_=True,type='SGD',lr=0.001,weight_decay=0.0)",
    **{f"{split}_dataloader.dataset.draw": DRAWN for split in ("train", "val")},
    "train_dataloader.num_workers": 0,
    "val_dataloader.num_workers": 0,
    "train_dataloader.batch_size": 2,
    "default_hooks.checkpoint.interval": 1,
    "default_hooks.logger.interval": 1,
}
SWIN = "dict(embed_dims=4,depths=(1,1,1,1),num_heads=(1,1,2,2))"
MODELS = {
    "cascade_swin_nano_shapes": {
        "settings.image_size": 64,
        "model.backbone.arch": SWIN,
        "model.neck": "dict(in_channels=[4,8,16,32],out_channels=8)",
        "model.rpn_head": "dict(in_channels=8,feat_channels=8)",
        "model.roi_head.bbox_roi_extractor.out_channels": 8,
        "model.roi_head.mask_roi_extractor.out_channels": 8,
        **{
            f"model.roi_head.bbox_head.{i}.{key}": 8
            for i in range(3)
            for key in ("in_channels", "conv_out_channels", "fc_out_channels")
        },
        "model.roi_head.mask_head": "dict(in_channels=8,conv_out_channels=8)",
    },
    "upernet_swin_nano_shapes": {
        "model.backbone.arch": SWIN,
        "model.decode_head": "dict(in_channels=[4,8,16,32],channels=8)",
        "model.auxiliary_head": "dict(in_channels=16,channels=8)",
    },
    "rfdetr_nano_shapes": {
        "settings.image_size": 64,
        "model.backbone.arch": "dict(embed_dims=16,depth=3,num_heads=2)",
        "model.backbone.out_indices": "(0,1,2)",
        "model.neck": "dict(in_channels=[16,16,16],out_channels=16,num_blocks=1)",
        "model.bbox_head": "dict(in_channels=16,num_queries=8,ffn_dims=16,num_heads=(2,2))",
        "model.test_cfg.max_per_img": 8,
    },
    "eomt_nano_shapes": {
        "model.backbone.arch": "dict(embed_dims=16,depth=3,num_heads=2,patch_size=8)",
        "model.panoptic_head": "dict(in_channels=[16],num_queries=8)",
    },
}


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    with (
        tempfile.TemporaryDirectory() as folder,
        atomic_write(out) as scratch,
        tarfile.open(scratch, "w:xz") as archive,
    ):
        os.chdir(folder)
        for name, options in MODELS.items():
            archive.add(write(name, {**COMMON, **options}))
        archive.add("data/shapes/val/000001.jpg", "photo.jpg")


def write(name: str, options: dict) -> Path:
    work = Path(name)
    given = [f"{key}={value}" for key, value in options.items()]
    run("train", name, "--work-dir", name, "--iters", "3", "--cfg-options", *given)
    (rows,) = work.glob("*/vis_data/scalars.json")
    last = [row for row in map(json.loads, read_text(rows).splitlines()) if "loss" in row][-1]
    next_loss = json.dumps({"iter": last["step"], "loss": last["loss"]})
    (work / "next.json").write_text(next_loss, encoding="utf-8")
    for path in (work / "iter_1.pth", work / "iter_3.pth", *work.glob("best_*")):  # as if it was stopped
        path.unlink(missing_ok=True)
    (work / LAST).write_text("iter_2.pth", encoding="utf-8")
    run("test", name, "--out", f"{name}/metrics.json")
    run("export", name, "--to", "onnx", "--out", f"{name}/program.onnx", "--unchecked")
    found = vitdense.load(name, score_thr=0.0)("data/shapes/val/000001.jpg")
    fields = ("boxes", "scores", "labels", "semantic", "panoptic")
    predicted = {key: value for key in fields if (value := getattr(found, key)) is not None}
    np.savez_compressed(work / "found.npz", **predicted)
    for path in work.iterdir():  # logs have paths of this machine
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name in (LOCK, CURVES):
            path.unlink()
    return work


def run(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "vitdense", *command], check=True)


if __name__ == "__main__":
    main()
