"""The operating point of a trained detector, found on validation data and kept in its checkpoint."""

import contextlib
import io
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner
from pycocotools.cocoeval import COCOeval

from vitdense.files import atomic_write
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.coco_engines import Evaluation
from vitdense.results.operating_point import Matches, find_operating_point

IOU = 0.5  # from which on an object is right


def set_operating_point(runner: Runner, checkpoint: str, wish: str, by_class: bool) -> dict[str, float]:
    """Test a detector, and write thresholds and the calibration of its scores into its checkpoint.

    Args:
        runner: A runner whose test loop has the validation data.
        checkpoint: The tested file; it is replaced as a whole.
        wish, by_class: See `find_operating_point`.

    Returns:
        The metrics.

    Raises:
        ConfigError: The model is not a detector, or its checkpoint is no file of a training.
        OptionError: See `find_operating_point`; the file stays as it was.
    """
    runner.test_loop  # noqa: B018  builds the evaluator
    metric = next((one for one in runner.test_evaluator.metrics if hasattr(one, "evaluations")), None)
    if metric is None:
        names = ", ".join(type(one).__name__ for one in runner.test_evaluator.metrics)
        raise ConfigError(
            f"--operating-point: got the metrics {names}, expected a COCO metric: it is of detectors; segmentors and "
            f"panoptic models say one class of each pixel, without a score"
        )
    if not (Path(checkpoint).is_file() and checkpoint.endswith(".pth")):
        raise ConfigError(f"--operating-point: got {checkpoint}, expected a checkpoint NAME.pth on this machine")
    metric.evaluations = []
    metrics = runner.test()
    if not is_main_process():
        return metrics
    if not metric.evaluations:
        raise ConfigError("--operating-point: the detector found nothing on the validation data")
    classes = runner.test_evaluator.dataset_meta["classes"]
    point, said = find_operating_point(match(metric.evaluations[0]), wish, classes, by_class)
    content = read_checkpoint(checkpoint, "cpu")
    content["meta"] = {**content.get("meta", {}), "operating_point": asdict(point)}
    with atomic_write(checkpoint) as scratch:
        torch.save(content, scratch)
    print_log(f"operating point in {checkpoint}: {point}{f'; {said}' if said else ''}", logger="current")
    return metrics


def match(evaluated: Evaluation) -> Matches:
    """Which objects of a detector are right, as COCO matches them: the highest score first, each object once; what
    matches a crowd is left out.
    """
    truth = evaluated.truth
    evaluation = COCOeval(truth.indexed(), truth.detections(evaluated.found.rows()), "bbox")
    params = evaluation.params
    params.imgIds, params.iouThrs = sorted(evaluated.images), np.array([IOU])
    params.catIds = list(range(1, len(truth.classes) + 1))
    params.areaRng, params.areaRngLbl, params.maxDets = [[0, 1e10]], ["all"], [max(params.maxDets)]
    with contextlib.redirect_stdout(io.StringIO()):  # its steps
        evaluation.evaluate()
    truths = np.zeros((len(params.imgIds), len(params.catIds)), np.int64)
    rows = []
    cells = ((i, label) for label in range(truths.shape[1]) for i in range(truths.shape[0]))
    for (i, label), cell in zip(cells, evaluation.evalImgs):
        if cell is None:  # neither found nor in the truth
            continue
        truths[i, label] = len(cell["gtIgnore"]) - np.count_nonzero(cell["gtIgnore"])
        counts = ~cell["dtIgnore"][0].astype(bool)
        scores, right = np.float64(cell["dtScores"])[counts], cell["dtMatches"][0][counts] > 0
        rows.append(np.stack([scores, right, np.full(len(scores), label), np.full(len(scores), i)], 1))
    scores, right, labels, of = np.concatenate(rows or [np.zeros((0, 4))]).T
    return Matches(scores, labels.astype(np.int64), of.astype(np.int64), right.astype(bool), truths)
