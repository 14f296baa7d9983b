"""Make the model of the wheel, `shapes_nano`: train it on drawn shapes and keep its weights in half precision."""

import argparse
import subprocess
import sys
from pathlib import Path

from safetensors.torch import save_file

from vitdense.files import atomic_write
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.config.files import CONFIGS
from vitdense.mm.work_folder import find_checkpoint

NAME = "shapes_nano"
MOST = 3e6  # bytes


def pack(work_dir: Path, out: Path) -> None:
    """Write the weights of a work folder's last checkpoint in float16, without the states of the optimizer."""
    state = read_checkpoint(find_checkpoint(str(work_dir)))["state_dict"]
    halves = {name: x.half() if x.is_floating_point() else x for name, x in state.items()}
    with atomic_write(out) as scratch:
        save_file(halves, scratch)
        if scratch.stat().st_size > MOST:
            raise ValueError(f"{out}: got {scratch.stat().st_size} bytes, expected {MOST:.0f} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs") / NAME)
    parser.add_argument("--packed", action="store_true", help="pack the work folder as it is, without a training")
    args = parser.parse_args()
    if not args.packed:
        subprocess.run([sys.executable, "-m", "vitdense", "train", NAME, "--work-dir", args.work_dir], check=True)
    out = CONFIGS / "demo" / f"{NAME}.safetensors"
    pack(args.work_dir, out)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
