"""``vitdense test --operating-point WISH``: test on the validation data, and write the minimum scores that meet it."""

import argparse
import contextlib
import copy
import io
import json
from collections.abc import Mapping

import numpy as np
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from pycocotools.cocoeval import COCOeval

from vitdense.extensions.operating_point.find import Matches, find_point, parse_wish
from vitdense.extensions.operating_point.point import conditions_of, digest_of, file_beside
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.arguments import Parser
from vitdense.mm.config.query import as_list
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import HOOKS
from vitdense.mm.train.coco_engines import Evaluation, Found

IOU = 0.5  # from which on an object is right


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--operating-point",
        metavar="WISH",
        help="detectors: test on the validation data, and write operating_point.json beside the checkpoint: the "
        "minimum scores for precision=0.9, recall=0.8 or the best f1, which predictions and exports then have",
    )
    parser.add_argument("--by-class", action="store_true", help="of --operating-point: a minimum score for each class")
    parser.apart("--operating-point", "--tta")
    parser.need("--by-class", "--operating-point")


def change(cfg: Config, args: argparse.Namespace) -> None:
    """Let the test have the validation data."""
    if not args.operating_point:
        return
    parse_wish(args.operating_point)
    checkpoint = cfg.get("load_from") or ""
    if not checkpoint or "://" in checkpoint:
        raise ConfigError("--operating-point: got an exported file or an address, expected a checkpoint NAME.pth")
    if cfg.get("val_dataloader") is None or cfg.get("val_evaluator") is None:
        raise ConfigError("--operating-point: got a config without val_dataloader or val_evaluator, expected both")
    check_writable(file_beside(checkpoint), "--operating-point")
    for part in ("dataloader", "evaluator"):
        cfg[f"test_{part}"] = copy.deepcopy(cfg[f"val_{part}"])
    cfg.custom_hooks = [*as_list(cfg.get("custom_hooks")), {"type": "vitdense.KeepMatchesHook"}]


def after(args: argparse.Namespace, metrics: Mapping[str, float], runner: Runner) -> None:
    """Write the operating point, after the metrics."""
    if not args.operating_point or not is_main_process():
        return
    evaluations, checkpoint = _metric_of(runner).evaluations, runner.cfg.load_from
    if not evaluations:
        raise ConfigError("--operating-point: the detector found nothing on the validation data")
    classes = runner.test_evaluator.dataset_meta["classes"]
    point = find_point(match(evaluations[0]), args.operating_point, classes, args.by_class)
    conditions = conditions_of(runner.cfg, args.tiles, args.overlap)
    path = file_beside(checkpoint)
    with atomic_write(path) as scratch:
        content = {**point, "sha256": digest_of(checkpoint), "conditions": conditions}
        scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print_log(
        f"{path}: {point['wish']}, with precision {point['precision']:.3f} and recall {point['recall']:.3f} on the "
        f"validation data",
        "current",
    )


@HOOKS.register_module()
class KeepMatchesHook(Hook):
    """Lets a COCO metric keep what it evaluates in a test."""

    def before_test(self, runner: Runner) -> None:
        _metric_of(runner).evaluations = []


def _metric_of(runner: Runner) -> object:
    metrics = runner.test_evaluator.metrics
    found = next((one for one in metrics if hasattr(one, "evaluations")), None)
    if found is None:
        names = ", ".join(type(one).__name__ for one in metrics)
        raise ConfigError(f"--operating-point: got the metrics {names}, expected a COCO metric of a detector")
    return found


def match(evaluated: Evaluation) -> Matches:
    """Which objects are right, as COCO matches them: the highest score first, each object of the truth once.

    Those that match a crowd are left out.
    """
    truth = evaluated.truth
    evaluation = COCOeval(truth.indexed(), truth.detections(Found(evaluated.found.boxes).rows()), "bbox")
    params = evaluation.params
    params.imgIds, params.iouThrs = sorted(evaluated.images), np.array([IOU])
    params.catIds = list(range(1, len(truth.classes) + 1))
    params.areaRng, params.areaRngLbl, params.maxDets = [[0, 1e10]], ["all"], [max(params.maxDets)]
    with contextlib.redirect_stdout(io.StringIO()):  # its steps
        evaluation.evaluate()
    truths, rows = np.zeros(len(params.catIds), np.int64), []
    for cell in filter(None, evaluation.evalImgs):
        label = cell["category_id"] - 1
        truths[label] += np.count_nonzero(~np.asarray(cell["gtIgnore"], bool))
        counts = ~cell["dtIgnore"][0].astype(bool)
        scores, right = np.float64(cell["dtScores"])[counts], cell["dtMatches"][0][counts] > 0
        rows.append(np.stack([scores, np.full(len(scores), label), right], 1))
    scores, labels, right = np.concatenate(rows or [np.zeros((0, 3))]).T
    return Matches(scores, labels.astype(np.int64), right.astype(bool), truths)
