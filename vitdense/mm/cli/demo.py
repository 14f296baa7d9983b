"""`vitdense demo`: train a small detector on drawn shapes, predict with it and evaluate it."""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

RECIPE = "cascade_swin_nano_shapes"


def main(argv: Sequence[str]) -> int:
    """Print and run the commands that a user would; returns the exit status of the first that fails."""
    description = f"Train {RECIPE} on drawn shapes, predict and evaluate: about ten minutes on two CPU cores."
    parser = argparse.ArgumentParser("vitdense demo", description=description)
    parser.add_argument("--work-dir", default=f"work_dirs/{RECIPE}", help="default: %(default)s")
    parser.add_argument("--iters", type=int, help="length of the training")
    parser.add_argument("--resume", action="store_true", help="continue a training that was stopped")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a work folder that has checkpoints")
    args = parser.parse_args(argv)
    folder = args.work_dir
    train = ["train", RECIPE, "--work-dir", folder]
    train += ["--iters", str(args.iters)] if args.iters is not None else []
    train += [f"--{name}" for name in ("resume", "overwrite") if getattr(args, name)]
    predict = ["predict", folder, "data/shapes/val/00001*.jpg", "--out-dir", f"{folder}/pictures"]
    for command in (train, predict, ["test", folder]):
        print(f"$ vitdense {shlex.join(command)}", flush=True)
        # In a session of its own: a signal reaches it from here, once, and it ends as the command does.
        process = subprocess.Popen([sys.executable, "-m", "vitdense", *command], start_new_session=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame, process=process: process.send_signal(number))
        if status := process.wait():
            return status if status > 0 else 128 - status
    return 0
