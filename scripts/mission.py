"""Run what users do, on nano recipes, and print the share of the package's functions that it enters.

Trainings with a validation of each detector and segmentor, test, predict, new, check, swap, an ONNX export, `load` and
`create`, each in a process of its own. ``--never`` lists the functions of the core that none of them enters.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vitdense.files import read_text

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "vitdense"
GUESTS = ("research", "extensions")
TRAINED = [f"{name}_shapes" for name in ("cascade_swin_nano", "upernet_swin_nano", "atss_swin_nano")]
TRAINED += [f"{name}_shapes" for name in ("sparse_rcnn_swin_nano", "reppoints_v2_swin_nano", "rfdetr_nano")]
SMALL = [f"{split}_dataloader.dataset.draw=dict(num_train=8,num_val=4)" for split in ("train", "val")]
SMALL = ["--cfg-options", "train_cfg.val_interval=2", *SMALL]
HERE = [f"{split}_dataloader.num_workers=0" for split in ("train", "val")]  # not in workers, which are not watched
SMALL += HERE
DETECTION = "--train data/shapes/annotations/instances_train.json --val data/shapes/annotations/instances_val.json"
MAPS = " ".join(
    f"--{prefix}{part} data/shapes/{folder}{split}"
    for prefix, split in (("", "train"), ("val-", "val"))
    for part, folder in (("images", ""), ("labels", "semantic/"))
)
CLASSES = "background,disc,ring,square,triangle,star,cross,bar,crescent"
COMMANDS = [
    *(f"train {name} --iters 2 {' '.join(SMALL)}" for name in TRAINED),
    *(f"test work_dirs/{name}" for name in TRAINED[:2]),
    *(f"predict work_dirs/{name} data/shapes/val" for name in TRAINED[:2]),
    f"new detection {DETECTION} --images data/shapes/train --val-images data/shapes/val large.py --epochs 1",
    f"new detection {DETECTION} --images data/shapes/train --val-images data/shapes/val own.py "
    "--base cascade_swin_nano_coco --iters 2",
    "check own.py",
    f"train own.py --cfg-options {' '.join(HERE)}",
    f"new segmentation {MAPS} --classes {CLASSES} maps.py",
    "swap mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py --backbone swin_tiny",
    *(f"export work_dirs/{name} --to onnx" for name in TRAINED[:2]),
]
PYTHON = [
    "vitdense.load('work_dirs/cascade_swin_nano_shapes')('data/shapes/val/000001.jpg').save('drawn.jpg')",
    "maps = vitdense.create('swin_tiny')(torch.rand(1, 3, 65, 50))",
    "vitdense.list_models('swin*')",
    "maps = vitdense.create('mvitv2_tiny')(torch.rand(1, 3, 65, 50))",
]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and first line (of decorators, as code objects have it) of every function of a file."""
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)])


def record(out: Path) -> None:
    """Note, until this process ends, which functions of the package are entered, and write them to a file."""
    import atexit
    import cProfile

    seen: set[tuple[str, int]] = set()
    root = str(PACKAGE)
    profiler = cProfile.Profile()  # of this thread, at a tenth of the cost of a tracer in Python

    def entered(frame, event, _):
        if frame.f_code.co_filename.startswith(root):
            seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def write() -> None:
        profiler.disable()
        codes = [row.code for row in profiler.getstats() if not isinstance(row.code, str)]
        seen.update((code.co_filename, code.co_firstlineno) for code in codes if code.co_filename.startswith(root))
        out.write_text(json.dumps(sorted(seen)), encoding="utf-8")

    atexit.register(write)
    threading.settrace(entered)
    profiler.enable()


def run_step(step: str, out: Path) -> None:
    """Run one step of the mission in this process."""
    record(out)
    import vitdense

    if step.startswith("python "):
        import torch

        exec(step.removeprefix("python "), {"vitdense": vitdense, "torch": torch})
        return
    from vitdense.__main__ import main

    sys.exit(main(step.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--never", action="store_true", help="list the functions of the core that are not entered")
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        run_step(args.step[0], Path(args.step[1]))
        return
    seen: set[tuple[str, int]] = set()
    with tempfile.TemporaryDirectory() as folder:
        draw = "from vitdense.mm.data.shapes import draw_dataset; draw_dataset('data/shapes', num_train=8, num_val=4)"
        steps = [f"python {draw}", *COMMANDS, *(f"python {code}" for code in PYTHON)]
        environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        for i, step in enumerate(steps):
            out = Path(folder, f"{i}.json")
            command = [sys.executable, __file__, "--step", step, str(out)]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            print(f"{done.returncode} {step[:110]}", flush=True)
            if done.returncode:
                print(done.stdout[-600:], done.stderr[-1500:])
            seen |= {tuple(one) for one in json.loads(read_text(out))}
    report(seen, args.never)


def report(seen: set[tuple[str, int]], lists: bool) -> None:
    """Print, by floor, how many functions there are and which share was entered."""
    total, entered, never = Counter(), Counter(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        floor = path.relative_to(PACKAGE).parts[0]
        for name, line in functions(path):
            is_seen = (str(path), line) in seen
            for one in {floor, "guests" if floor in GUESTS else "core"}:
                total[one] += 1
                entered[one] += is_seen
            if not is_seen and floor not in GUESTS:
                never.append(f"{path.relative_to(REPO)}:{line} {name}")
    for floor, count in sorted(total.items()):
        print(f"{floor:16} {entered[floor]:5} of {count:5} functions {entered[floor] / count:6.1%}")
    if lists:
        print(*never, sep="\n")


if __name__ == "__main__":
    main()
