"""A report of predictions in COCO's format, by any project."""

from collections.abc import Mapping
from pathlib import Path

import hotcoco
import numpy as np
from pycocotools.cocoeval import Params

from vitdense.extensions.errors.objects import Judged
from vitdense.extensions.errors.report import Tested
from vitdense.mm.data.coco import KEYS, NUMBER, check_keys, parse, read_json
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.train.coco_engines import Found, Truth, evaluate

PLACES = {"segm": "segmentation", "keypoints": "keypoints"}
# What a report needs of annotations; figures by size need an area too, and pictures the file names.
TRUTH = {
    "images": {"id": int},
    "annotations": {"image_id": int, "category_id": int, "bbox": list},
    "categories": KEYS["categories"],
}
ROWS = {"image_id": int, "category_id": int, "score": NUMBER}
FIELDS = {"segm": ["segmentation"], "keypoints": ["keypoints", "num_keypoints"]}  # of annotations


def tested_of(file: Path, truth_file: Path, folder: Path | None) -> Tested:
    """What a file of predictions says of its model.

    Args:
        file: A list of COCO's results.
        truth_file: An annotation file of COCO.
        folder: Folder of the images; by default, the one of the annotation file.

    Raises:
        ConfigError: A file is of another format, or they are of different data.
    """
    rows, content = parse(file), read_json(truth_file, TRUTH)
    if not content["annotations"]:
        raise ConfigError(f"--truth {truth_file}: got no annotations, expected COCO's annotations")
    check_keys(file, "results", rows, ROWS)
    if not rows:
        raise ConfigError(f"--predictions {file}: got an empty list, expected COCO's results")
    truth = Truth({truth_file: content})
    truth.number([one["name"] for one in content["categories"]])
    labels = {one["id"]: i for i, one in enumerate(content["categories"], 1)}
    images = {one: number for (_, one), number in truth.images.items()}
    for key, known in (("image_id", images), ("category_id", labels)):
        if unknown := sorted({str(row.get(key)) for row in rows if row.get(key) not in known}):
            raise ConfigError(
                f"--predictions {file}: {key} not in {truth_file}: {join_some(unknown)}; give annotations of the same "
                f"data"
            )
    numbered = [{**row, "image_id": images[row["image_id"]], "category_id": labels[row["category_id"]]} for row in rows]
    try:  # hotcoco makes boxes of masks and keypoints
        made = hotcoco.COCO({**truth.dataset, "annotations": []}).load_res(numbered).dataset["annotations"]
        columns = [[one["image_id"], *one["bbox"], one["score"], one["category_id"]] for one in made]
        boxes = np.array(columns, float).reshape(len(rows), 7)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--predictions {file}: got a bbox or score ({error}), expected four numbers, and one"
        ) from error
    folder = truth_file.parent if folder is None else folder
    paths, parts = {images[one["id"]]: str(folder / one.get("file_name", "")) for one in content["images"]}, []
    for kind, key in {"bbox": None, **PLACES}.items():
        if key and not all(key in row for row in rows):
            continue
        found = Found(boxes, {key: [row[key] for row in rows]} if key else {})
        coco = Params(kind)
        options = {"thresholds": coco.iouThrs, "limits": coco.maxDets, "fields": FIELDS.get(kind, ())}
        if kind == "keypoints":
            options["kpt_oks_sigmas"] = sigmas_of(content)
        made = evaluate(truth, found, kind, images=list(images.values()), engine="hotcoco", **options)
        parts.append(Judged(made, paths))
    metrics = {f"{x.kind}_{name}": value for x in parts for name, value in x.evaluation.precisions("").items()}
    return Tested(str(file), metrics, parts)


def sigmas_of(content: Mapping) -> np.ndarray:
    """The sigmas of a file's category with keypoints; COCO's for a person's 17."""
    one = next((one for one in content["categories"] if one.get("keypoints")), {})
    sigmas, names = one.get("sigmas", Params("keypoints").kpt_oks_sigmas), one.get("keypoints", ())
    if names and len(sigmas) != len(names):
        raise ConfigError(f"--truth: got {len(names)} keypoints, expected as many 'sigmas' in their category")
    return np.array(sigmas, float)
