"""Rectangles against squares of as many pixels: RF-DETR nano on drawn images of 2:1, box AP by seed.

``nice python scripts/rectangles.py work_dirs/rectangles --seeds 0 1 2``
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from vitdense.files import read_text

SIZES = {"rectangle": (112, 224), "square": (160, 160)}  # 98 and 100 patches of 16 pixels
CONFIG = """
_base_ = "vitdense::configs/demo/rfdetr_nano_shapes.py"

resize = dict(type="Resize", scale=(256, 256), keep_ratio=False)
flip = dict(type="RandomFlip", prob=0.5)
data = dict(data_root="{root}", draw=dict(image_size=(112, 224), num_train=800, num_val=200))
train_pipeline = [dict(Resize=resize, RandomFlip=flip).get(step.type, step) for step in _base_.train_pipeline]
test_pipeline = [resize if step.type == "Resize" else step for step in _base_.test_pipeline]
train_dataloader = dict(batch_size=4, dataset=dict(data, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(data, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file="{root}/annotations/instances_val.json")
test_evaluator = val_evaluator
del resize, flip, data
model = dict(
    data_preprocessor=dict(pad_size_divisor=16),
    backbone=dict(num_windows=1, arch=dict(embed_dims=96, depth=3, num_heads=3), out_indices=(0, 1, 2)),
    neck=dict(in_channels=[96] * 3, out_channels=96, num_blocks=1),
    bbox_head=dict(in_channels=96, num_queries=60, num_heads=(4, 4), ffn_dims=192),
    test_cfg=dict(max_per_img=60),
)
"""


def arguments(description: str | None) -> argparse.Namespace:
    """Folder, seeds and length of trainings, from the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iters", type=int, default=1000)
    return parser.parse_args()


def main() -> None:
    args = arguments(__doc__)
    args.folder.mkdir(parents=True, exist_ok=True)
    config = args.folder / "nano.py"
    config.write_text(CONFIG.format(root=(args.folder / "shapes").resolve()), encoding="utf-8")
    print("| seed |", " | ".join(f"{h}x{w}, box AP" for h, w in SIZES.values()), "|", flush=True)
    for seed in args.seeds:
        row = [box_ap(config, args.folder / f"{name}_{seed}", size, seed, args.iters) for name, size in SIZES.items()]
        print(f"| {seed} |", " | ".join(f"{100 * ap:.1f}" for ap in row), "|", flush=True)


def box_ap(config: Path, work: Path, size: tuple[int, int], seed: int, iters: int) -> float:
    command = [sys.executable, "-m", "vitdense", "train", config, "--work-dir", work, "--iters", iters]
    command += ["--image-size", *size, "--cfg-options", f"randomness.seed={seed}"]
    with open(f"{work}.log", "w", encoding="utf-8") as log:
        subprocess.run([str(word) for word in command], check=True, stdout=log, stderr=log)
    lines = read_text(next(work.glob("*/vis_data/scalars.json"))).splitlines()
    return next(found for line in reversed(lines) if (found := json.loads(line).get("coco/bbox_mAP")) is not None)


if __name__ == "__main__":
    main()
