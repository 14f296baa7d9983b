"""``vitdense test --operating-point WISH``: test on validation data, and write the minimum scores for the wish."""

import argparse
import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitdense.files import atomic_write, check_writable
from vitdense.mm.errors import ConfigError

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

    from vitdense.mm.config.arguments import Parser


def add_options(parser: "Parser") -> None:
    parser.add_argument(
        "--operating-point",
        metavar="WISH",
        help="detectors: test on the validation data, and write operating_point.json beside the checkpoint: the "
        "minimum scores for precision=0.9, recall=0.8 or the best f1, which predictions and exports then have",
    )
    parser.add_argument("--by-class", action="store_true", help="of --operating-point: a minimum score for each class")
    parser.apart("--operating-point", "--tta")
    parser.need("--by-class", "--operating-point")


def change(cfg: "Config", args: argparse.Namespace) -> None:
    """Test on the validation data."""
    if not args.operating_point:
        return

    from vitdense.extensions.operating_point.find import parse_wish
    from vitdense.extensions.operating_point.point import file_beside

    parse_wish(args.operating_point)
    checkpoint = cfg.get("load_from") or ""
    if not checkpoint or "://" in checkpoint:
        raise ConfigError("--operating-point: got an exported file or an address, expected a checkpoint NAME.pth")
    if cfg.get("val_dataloader") is None or cfg.get("val_evaluator") is None:
        raise ConfigError("--operating-point: got a config without val_dataloader or val_evaluator, expected both")
    check_writable(file_beside(checkpoint), "--operating-point")
    for part in ("dataloader", "evaluator"):
        cfg[f"test_{part}"] = copy.deepcopy(cfg[f"val_{part}"])


def before(args: argparse.Namespace, runner: "Runner") -> None:
    """Let the COCO metric keep its evaluation."""
    if args.operating_point:
        metric_of(runner).evaluations = []


def metric_of(runner: "Runner") -> object:
    metrics = runner.test_evaluator.metrics
    found = next((one for one in metrics if hasattr(one, "evaluations")), None)
    if found is None:
        names = ", ".join(type(one).__name__ for one in metrics)
        raise ConfigError(f"--operating-point: got the metrics {names}, expected a COCO metric of a detector")
    return found


def after(args: argparse.Namespace, metrics: Mapping[str, float], runner: "Runner") -> None:
    """Write the operating point, after the metrics."""
    if not args.operating_point:
        return

    from mmengine.dist import is_main_process
    from mmengine.logging import print_log

    from vitdense.extensions.operating_point.find import find_point, match
    from vitdense.extensions.operating_point.point import conditions_of, digest_of, file_beside

    if not is_main_process():
        return
    evaluations, checkpoint = metric_of(runner).evaluations, runner.cfg.load_from
    if not evaluations:
        raise ConfigError("--operating-point: the detector found nothing on the validation data")
    classes = runner.test_evaluator.dataset_meta["classes"]
    judged = next((one for one in evaluations if one.kind == "obb"), evaluations[0])
    point = find_point(match(judged), args.operating_point, classes, args.by_class)
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
