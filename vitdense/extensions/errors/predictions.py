"""A report of predictions in COCO's format, by any project."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hotcoco
import numpy as np
from pycocotools.cocoeval import Params

from vitdense.extensions.errors.report import Tested
from vitdense.mm.data.coco import parse
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.train.coco_engines import Evaluation, Found, Truth, evaluate

PLACES = {"segm": "segmentation", "keypoints": "keypoints"}
THRESHOLDS = np.linspace(0.5, 0.95, 10)  # COCO's


def tested_of(file: Path, truth_file: Path, folder: Path | None) -> Tested:
    """What a file of predictions says of its model.

    Args:
        file: A list of COCO's results.
        truth_file: An annotation file of COCO.
        folder: Folder of the images; by default, the one of the annotation file.

    Raises:
        ConfigError: A file is of another format, or they are of different data.
    """
    rows, content = parse(file), parse(truth_file)
    if not isinstance(content, dict) or not all(content.get(key) for key in ("images", "annotations", "categories")):
        raise ConfigError(
            f"--truth {truth_file}: got no images, annotations or categories, expected COCO's annotations"
        )
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"--predictions {file}: got no list of results, or an empty one, expected COCO's results")
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not {"image_id", "category_id", "score"} <= row.keys():
            raise ConfigError(f"--predictions {file}: result {i} has not image_id, category_id and score")
    truth, names = Truth({truth_file: content}), [one["name"] for one in content["categories"]]
    truth.number(names)
    labels = {one["id"]: i for i, one in enumerate(content["categories"], 1)}
    images = {one: number for (_, one), number in truth.images.items()}
    for key, known in (("image_id", images), ("category_id", labels)):
        if unknown := sorted({str(row[key]) for row in rows if row[key] not in known}):
            raise ConfigError(
                f"--predictions {file}: {key} not in {truth_file}: {join_some(unknown)}; give annotations of the same "
                f"data"
            )
    numbered = [{**row, "image_id": images[row["image_id"]], "category_id": labels[row["category_id"]]} for row in rows]
    try:
        known = hotcoco.COCO({**truth.dataset, "annotations": []}).load_res(numbered).dataset["annotations"]
        columns = [[one["image_id"], *one["bbox"], one["score"], one["category_id"]] for one in known]
        boxes = np.array(columns, float).reshape(len(rows), 7)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--predictions {file}: got a bbox or score ({error}), expected four numbers, and one"
        ) from error
    kinds = [kind for kind, key in PLACES.items() if all(key in row for row in rows)]
    evaluations = [_evaluate(truth, boxes, kind, rows, content) for kind in ("bbox", *kinds)]
    metrics = {f"{one.kind}_{name}": value for one in evaluations for name, value in one.precisions("").items()}
    folder = truth_file.parent if folder is None else folder
    paths = {images[one["id"]]: str(folder / one.get("file_name", "")) for one in content["images"]}
    return Tested(str(file), metrics, [(one, 100) for one in evaluations], paths)


def _evaluate(truth: Truth, boxes: np.ndarray, kind: str, rows: Sequence[Mapping], content: Mapping) -> Evaluation:
    options: dict[str, Any] = {"limits": [20] if kind == "keypoints" else [1, 10, 100], "engine": "hotcoco"}
    key = PLACES.get(kind)
    if kind == "segm":
        options["fields"] = ["segmentation"]
    if kind == "keypoints":
        options |= {"fields": ["keypoints", "num_keypoints"], "kpt_oks_sigmas": sigmas_of(content)}
    found = Found(boxes, {key: [row[key] for row in rows]} if key else {})
    return evaluate(truth, found, kind, images=list(truth.images.values()), thresholds=THRESHOLDS, **options)


def sigmas_of(content: Mapping) -> np.ndarray:
    """The sigmas of a file's category with keypoints; COCO's for a person's 17."""
    one = next((one for one in content["categories"] if one.get("keypoints")), {})
    person = Params("keypoints").kpt_oks_sigmas
    sigmas = np.array(one.get("sigmas", person), float)
    if len(sigmas) != len(one.get("keypoints", person)):
        raise ConfigError(
            f"--truth: got {len(one['keypoints'])} keypoints, expected as many 'sigmas' in their category"
        )
    return sigmas
