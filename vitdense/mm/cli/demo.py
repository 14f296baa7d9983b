"""`vitdense demo`: train a small detector on drawn shapes, predict with it and evaluate it."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

RECIPE = "cascade_swin_nano_shapes"


def main(argv: Sequence[str]) -> int:
    """Run the commands that a user would, each printed before it starts; the exit status of the first that fails.

    Args:
        argv: Options of `vitdense train`.
    """
    parser = argparse.ArgumentParser(
        "vitdense demo",
        usage="%(prog)s [options of vitdense train]",
        description=f"Train {RECIPE} on drawn shapes, predict and evaluate: about ten minutes on two CPU cores.",
    )
    parser.add_argument("--work-dir", default=f"work_dirs/{RECIPE}", help="default: %(default)s")
    args, options = parser.parse_known_args(argv)
    folder = args.work_dir
    commands = [
        ["train", RECIPE, "--work-dir", folder, *options],
        ["predict", folder, "data/shapes/val/00001*.jpg", "--out-dir", f"{folder}/pictures"],
        ["test", folder],
    ]
    for command in commands:
        print(f"$ vitdense {shlex.join(command)}", flush=True)
        if status := subprocess.run([sys.executable, "-m", "vitdense", *command]).returncode:
            return status
    return 0
