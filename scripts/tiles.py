"""Training in tiles against training on resized images: box AP of whole images, by seed.

``nice python scripts/tiles.py work_dirs/tiles --seeds 0 1 2``. The images are mosaics of 2,000 pixels with drawn
objects of 12 to 40 pixels.
"""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

from rectangles import arguments, box_ap
from vitdense.mm.data.shapes import CLASSES, draw_image

CELL, CELLS, OBJECTS = 125, 16, (12, 40)  # pixels of a cell, cells of a side, longer sides of boxes
FILLED = 40  # cells with objects
NUMBER = {"train": 60, "val": 12}  # images
SIDE = 256  # of a tile, and of a resized image


def draw(folder: Path, split: str) -> Path:
    """Draw a split, and write COCO's annotations of it; their file."""
    images, annotations, pixels = folder / split, [], CELL * CELLS
    images.mkdir(parents=True, exist_ok=True)
    for number in range(NUMBER[split]):
        canvas, objects = mosaic(np.random.default_rng([sorted(NUMBER).index(split), number]))
        for label, box in objects:
            placed = {"bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": label, **placed})
        cv2.imwrite(str(images / f"{number}.jpg"), canvas[..., ::-1])
    listed = [{"id": i, "file_name": f"{i}.jpg", "height": pixels, "width": pixels} for i in range(NUMBER[split])]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    content = {"images": listed, "annotations": annotations, "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / f"{split}.json"


def mosaic(rng: np.random.Generator) -> tuple[np.ndarray, list[tuple[int, list[int]]]]:
    """An image of cells, [2000, 2000, 3], and labels and boxes of its objects."""
    canvas, objects = np.zeros((CELL * CELLS, CELL * CELLS, 3), np.uint8), []
    filled = set(rng.choice(CELLS**2, FILLED, replace=False).tolist())
    for cell in range(CELLS**2):
        y, x = CELL * (cell // CELLS), CELL * (cell % CELLS)
        canvas[y : y + CELL, x : x + CELL], boxes = _cell(rng, cell in filled)
        objects += [(label, [box[0] + x, box[1] + y, *box[2:]]) for label, box in boxes]
    return canvas, objects


def _cell(rng: np.random.Generator, is_filled: bool) -> tuple[np.ndarray, list[tuple[int, list[int]]]]:
    """A drawn image without objects, or with objects whose sizes are all in `OBJECTS`; labels and boxes."""
    while True:
        patch, instances = draw_image(rng, (CELL, CELL), empty=not is_filled)
        boxes = [(one.label, list(cv2.boundingRect(one.mask.astype(np.uint8)))) for one in instances if one.mask.any()]
        if all(OBJECTS[0] <= max(box[2:]) <= OBJECTS[1] for _, box in boxes) and bool(boxes) == is_filled:
            return patch, boxes


def main() -> None:
    args = arguments(__doc__)
    data = {split: draw(args.folder, split) for split in NUMBER}
    options = ["--train", data["train"], "--val", data["val"], "--images", args.folder / "train", "--boxes"]
    options += ["--val-images", args.folder / "val", "--base", "cascade_rcnn_swin_nano_shapes", "--force"]
    ways = {"tiles": ["--tiles", SIDE], "whole": []}
    for way, more in ways.items():
        command = [sys.executable, "-m", "vitdense", "new", "detection", args.folder / f"{way}.py", *options, *more]
        subprocess.run([*map(str, command)], check=True)
    print("| seed |", " | ".join(f"{way}, box AP" for way in ways), "|", flush=True)
    for seed in args.seeds:
        works = {way: args.folder / f"{way}_{seed}" for way in ways}
        row = [box_ap(args.folder / f"{way}.py", work, (SIDE,), seed, args.iters) for way, work in works.items()]
        print(f"| {seed} |", " | ".join(f"{100 * ap:.1f}" for ap in row), "|", flush=True)


if __name__ == "__main__":
    main()
