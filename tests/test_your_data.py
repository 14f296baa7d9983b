"""From annotations to scored predictions, as docs/your-data.md shows it: names, ids and what is refused on the way."""

import json

import numpy as np
import pytest
from commands import run_command
from PIL import Image

pytestmark = [pytest.mark.long, pytest.mark.docs]

# Not COCO's names; ids with gaps; images in sub-folders, annotations beside them.
CATEGORIES = [{"id": 7, "name": "red fox"}, {"id": 3, "name": "owl"}, {"id": 20, "name": "oak tree"}]
IMAGE_IDS = (11, 12, 40, 700)
SIZE = (128, 96)  # width, height


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs a command of the docs in the folder of the data; its exit status, and what it printed."""
    monkeypatch.chdir(tmp_path)
    return lambda line: run_command(line.split())


@pytest.fixture
def animals(tmp_path):
    def write(with_masks=True, **changes):
        draw = np.random.default_rng(0)
        for split in ("train", "val"):
            images, annotations = [], []
            for i, image_id in enumerate(IMAGE_IDS):
                name = f"{split}/{'ab'[i % 2]}/{image_id}.jpg"
                pixels = draw.integers(0, 60, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
                for j, category in enumerate(CATEGORIES):
                    x, y, side = 8 + 40 * j, 10 + 8 * i, 30
                    pixels[y : y + side, x : x + side, j] = 230
                    annotation = {"id": 100 * (i + 1) + j, "image_id": image_id, "category_id": category["id"]}
                    annotation |= {"bbox": [x, y, side, side], "area": side * side, "iscrowd": 0}
                    if with_masks:
                        corners = [x, y, x + side, y, x + side, y + side, x, y + side]
                        annotation["segmentation"] = [corners]
                    annotations.append(annotation)
                path = tmp_path / "animals/pictures" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
                images.append({"id": image_id, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
            content = {"images": images, "annotations": annotations, "categories": CATEGORIES} | changes
            (tmp_path / f"animals/{split}.json").write_text(json.dumps(content))

    return write


def succeed(result):
    status, printed = result
    assert status == 0, printed
    return printed


DATA = "--train animals/train.json --val animals/val.json --images animals/pictures"


@pytest.mark.parametrize("kind", ["masks", pytest.param("boxes", marks=pytest.mark.slow)])
def test_detection_from_annotations_to_scored_predictions(command, animals, tmp_path, kind):
    from pycocotools.coco import COCO

    animals(with_masks=kind == "masks")
    base = "cascade_swin_nano_coco" if kind == "masks" else "cascade_rcnn_swin_nano_shapes"
    boxes = "--boxes" if kind == "boxes" else ""
    printed = succeed(command(f"new detection {boxes} {DATA} --base {base} --iters 2 mine.py"))
    assert "red fox" in printed
    text = (tmp_path / "mine.py").read_text()
    assert "num_classes" not in text
    assert "red fox" in succeed(command("check mine.py --all"))
    options = "--cfg-options default_hooks.logger.interval=1 train_dataloader.num_workers=0"
    options += " train_dataloader.persistent_workers=False default_hooks.curves=None"
    succeed(command(f"train mine.py --batch-size 2 {options}"))
    assert "bbox_mAP" in succeed(command("test mine.py work_dirs/mine"))
    # A model is never sure after two iterations.
    options = "--score-thr 0 --cfg-options model.test_cfg.rcnn.score_thr=0"
    succeed(command(f"predict mine.py work_dirs/mine animals/pictures/val/a {options}"))
    truth = COCO("animals/val.json")
    results = truth.loadRes("predictions/mine/predictions.json")
    found = results.loadAnns(results.getAnnIds())
    assert {a["image_id"] for a in found} <= {11, 40}  # the images of val/a
    found_as_json = json.loads((tmp_path / "predictions/mine/predictions.json").read_text())
    assert found
    assert {a["category_id"] for a in found} <= {7, 3, 20}
    assert all(("segmentation" in a) == (kind == "masks") for a in found_as_json)
