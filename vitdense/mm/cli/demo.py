"""`vitdense demo`: train a small detector on drawn shapes, evaluate it and predict with it."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from vitdense.files import read_text
from vitdense.mm.config.arguments import Parser
from vitdense.mm.config.asked import whole_number
from vitdense.seams import run

RECIPE = "shapes_nano_192"
PICTURES = "data/demo/val/00001*.jpg"
EXPECTED = 0.25  # least box AP; tests/mm/train/test_bands.py


def main(argv: Sequence[str]) -> int:
    """Print and run the commands that a user would, then say what came of them."""
    parser = Parser("vitdense demo", description=f"Train {RECIPE} on drawn shapes, evaluate it, and predict with it.")
    parser.add_argument("--work-dir", default=f"work_dirs/{RECIPE}", help="default: %(default)s")
    parser.add_argument("--iters", type=whole_number, metavar="N", help="length of the training")
    parser.add_argument("--device", help="such as cpu or cuda:1; default: a GPU where there is one")
    parser.add_argument("--resume", action="store_true", help="go on with a training that was stopped")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a work folder that has checkpoints")
    parser.apart("--resume", "--overwrite")
    args = parser.parse_args(argv)
    if args.device:
        use(args.device)
    folder, metrics = args.work_dir, Path(args.work_dir, "metrics.json")
    train = ["train", RECIPE, "--work-dir", folder]
    train += ["--iters", str(args.iters)] if args.iters else []
    train += [f"--{name}" for name in ("resume", "overwrite") if getattr(args, name)]
    test = ["test", folder, "--out", str(metrics)]
    predict = ["predict", folder, PICTURES, "--out-dir", f"{folder}/pictures"]
    for command in (train, test, predict):
        print(f"$ vitdense {shlex.join(command)}", flush=True)
        if status := run(command[0], command[1:]):
            return status
    ap, name = json.loads(read_text(metrics))["coco/bbox_mAP"], shlex.quote(folder)
    print(
        f"\npictures, with boxes, masks and scores: {folder}/pictures\n"
        f"box AP {ap:.2f}, expected above {EXPECTED} after all iterations of the recipe\n"
        f"to go on:\n    vitdense predict {name} IMAGES\n    vitdense export {name} --to onnx\n"
        "    vitdense new detection --help      # your own data"
    )
    return 0


def use(device: str) -> None:
    """Compute on this device; exits where torch does not find it."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before mmengine, which trains on a GPU where it finds one
    import torch

    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.precision import check_device

    with exit_on_user_error():
        check_device("--device", device)
    if (number := torch.device(device).index) is not None:
        torch.accelerator.set_device_index(number)
