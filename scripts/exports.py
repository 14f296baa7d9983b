"""Write the table of docs/parity.md: every kind of model that is exported whole, against the model itself.

    python scripts/exports.py FOLDER

Each is trained on the embedded data set for some minutes, so that its scores are spread, and exported as by the tool.
It takes an hour. What is trained in FOLDER already is not trained again. OpenVINO must be installed.
"""

import argparse
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import onnx

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.files import atomic_write, read_text
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import nodes
from vitdense.mm.work_folder import WorkFolder, find_checkpoint
from zoo import REPO, filled, table

PAGE = REPO / "docs/parity.md"
HEADING = "Exported programs"
HEAD = "| model | trained as | onnxruntime | OpenVINO | command | nodes |"
ITERATIONS = 100


class Row(NamedTuple):
    """A row of the table."""

    name: str  # of the kind of model
    config: str  # of `configs/demo`; or a config of mmdet, whose ResNet-50 becomes a nano Swin
    static: tuple[int, int] | None = None  # size (h, w) of the images of the program, if it is for one


ROWS = (
    Row("RetinaNet", "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py"),
    Row("ATSS", "atss_swin_nano_shapes"),
    Row("FCOS", "mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py"),
    Row("Faster R-CNN", "mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py"),
    Row("Mask R-CNN", "mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py"),
    Row("Cascade R-CNN", "cascade_rcnn_swin_nano_shapes"),
    Row("Cascade Mask R-CNN", "cascade_swin_nano_shapes"),
    Row("HTC", "htc_swin_nano_shapes"),
    Row("Sparse R-CNN, `--static`", "sparse_rcnn_swin_nano_shapes", static=(256, 320)),
    Row("DINO", "dino_swin_nano_shapes"),
    Row("RF-DETR", "rfdetr_nano_shapes"),
    Row("RF-DETR, masks", "rfdetr_seg_nano_shapes"),
    Row("Mask2Former, queries", "mask2former_swin_nano_shapes"),
    Row("EoMT, queries", "eomt_nano_shapes"),
    Row("UPerNet", "upernet_swin_nano_shapes"),
)


def recipe(row: Row, folder: Path) -> Path:
    """The config of a row, written into its folder."""
    cfg = load_config(row.config)
    if "::" in row.config:
        data = "cascade_swin" if "mask" in row.config else "cascade_rcnn_swin"
        nano, model = load_config(REPO / f"configs/demo/{data}_nano_shapes.py"), cfg.model
        model.backbone, model.data_preprocessor = nano.model.backbone, nano.model.data_preprocessor
        model.neck.in_channels = nano.model.neck.in_channels
        for node in nodes(model):
            node.pop("num_classes", None)  # of COCO; heads follow the data set
        cfg, cfg.model = nano, model
        cfg.optim_wrapper.optimizer.lr /= 10  # their heads have no norm
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.py"
    cfg.dump(path)
    return path


def measure(row: Row, folder: Path) -> tuple[str, ...]:
    """The cells of a row."""
    path = recipe(row, folder)
    if not WorkFolder(folder).latest:
        options = (f"train_cfg.max_iters={ITERATIONS}", f"train_cfg.val_interval={ITERATIONS}")
        command = [sys.executable, REPO / "tools/train.py", path, "--work-dir", folder, "--cfg-options", *options]
        subprocess.run(command, check=True)
    file, start = folder / "model.onnx", time.perf_counter()
    said = export(load_config(path), find_checkpoint(folder), Wish(file, "onnx", row.static))
    seconds = time.perf_counter() - start
    engines = (re.search(rf"(?m)^{engine}: (.*)$", said)[1] for engine in ("onnxruntime", "openvino"))
    kind = f"`{row.config.rpartition('/')[2]}`"
    return row.name, kind, *engines, f"{seconds:.0f} s", str(len(onnx.load(file).graph.node))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the trainings")
    parser.add_argument("--only", nargs="+", help="print the rows of these models, and write nothing")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    lines = []
    for row in ROWS:
        if not args.only or row.name in args.only:
            name = re.sub(r"\W+", "_", row.name).lower()
            lines.append(measure(row, args.folder.resolve() / name))
            print(*lines[-1], sep=" | ", flush=True)
    if not args.only:
        with atomic_write(PAGE) as scratch:
            scratch.write_text(filled(read_text(PAGE), {HEADING: table(HEAD, lines)}), encoding="utf-8")


if __name__ == "__main__":
    main()
