"""The embedded data set as panoptic segments, made of its instances."""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vitdense.files import read_text
from vitdense.mm.data.panoptic_files import colours_of_ids
from vitdense.mm.data.shapes import CLASSES, SPLITS, draw_dataset

STUFF = ("background",)


def draw_panoptic_dataset(root: str | Path, **options: Any) -> Path:
    """Draw the embedded data set unless it exists, and with it ``panoptic/``.

    The folder has ``panoptic_{train,val}.json`` and ``{train,val}/*.png`` in COCO's panoptic format: ids are R + 256 G;
    1 to n are the instances, from back to front, n + 1 is the background.

    Args:
        root: See `draw_dataset`.
        **options: See `draw_dataset`.
    """
    root = draw_dataset(root, **options)
    folder = root / "panoptic"
    if folder.exists():
        return root
    temporary = root / f".panoptic.{uuid.uuid4().hex}"
    try:
        for split in SPLITS:
            (temporary / split).mkdir(parents=True)
            truth = json.loads(read_text(root / f"annotations/instances_{split}.json"))
            of_image: dict[int, list] = {image["id"]: [] for image in truth["images"]}
            for annotation in truth["annotations"]:
                of_image[annotation["image_id"]].append(annotation)
            content = {
                "images": truth["images"],
                "annotations": [_write(temporary / split, image, of_image[image["id"]]) for image in truth["images"]],
                "categories": [
                    {"id": i, "name": name, "isthing": int(name in CLASSES)}
                    for i, name in enumerate((*CLASSES, *STUFF), 1)
                ],
            }
            (temporary / f"panoptic_{split}.json").write_text(json.dumps(content), encoding="utf-8")
        os.rename(temporary, folder)
    except OSError:
        if not folder.exists():  # by another process in the meantime
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return root


def _write(folder: Path, image: dict, annotations: list[dict]) -> dict:
    """Write the ids of an image as a PNG; return its entry."""
    from pycocotools import mask as rle

    ids = np.full((image["height"], image["width"]), len(annotations) + 1, np.int32)
    for i, annotation in enumerate(annotations, 1):
        ids[rle.decode(annotation["segmentation"]).astype(bool)] = i
    categories = [annotation["category_id"] for annotation in annotations] + [len(CLASSES) + 1]
    segments = []
    for i, category in enumerate(categories, 1):
        ys, xs = np.nonzero(ids == i)
        if len(xs):
            box = [xs.min(), ys.min(), xs.max() - xs.min() + 1, ys.max() - ys.min() + 1]
            crowd = annotations[i - 1]["iscrowd"] if i <= len(annotations) else 0
            segments.append(
                {"id": i, "category_id": category, "iscrowd": crowd, "area": len(xs), "bbox": [int(x) for x in box]}
            )
    name = f"{Path(image['file_name']).stem}.png"
    (folder / name).write_bytes(cv2.imencode(".png", colours_of_ids(ids)[..., ::-1])[1].tobytes())
    return {"image_id": image["id"], "file_name": name, "segments_info": segments}
