"""Several models of the same data, side by side."""

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import hotcoco
import numpy as np
import torch
from mmengine.device import get_device
from mmengine.runner import Runner

from vitdense import __version__
from vitdense.extensions.errors import page
from vitdense.extensions.errors.objects import Judged
from vitdense.extensions.errors.pictures import Figures, figures_of, sides_of
from vitdense.extensions.errors.report import Tested, page_of
from vitdense.extensions.page import write_page
from vitdense.flops import count
from vitdense.mm.config.asked import Asked
from vitdense.mm.config.base import build_model
from vitdense.mm.config.model_index import trained_of
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import Inference
from vitdense.mm.train.launch import test

SAMPLES, ROUNDS = 200, 5  # of the bootstrap, and of the clock
SHOWN = 24  # images


def compare(args: argparse.Namespace, names: Sequence[str]) -> Path:
    """Test models, each a work folder or published, and write the page or the table; its path."""
    models: list[tuple[Tested, Runner]] = []
    for name in names:
        one = argparse.Namespace(**{**vars(args), "config": name, "checkpoint": None, "others": [], "models": models})
        test(*trained_of(one, measured=True), Inference.of(one, device=get_device()), **Asked.keywords("test", one))
    first, path = models[0][0], page_of(args.report)
    for name, (tested, _) in zip(names, models):
        if keys_of(tested) != keys_of(first):
            raise ConfigError(
                f"--report: {name} was tested on other images or classes than {names[0]}, expected the same"
            )
    clocked = clock([runner for _, runner in models])
    rows = [
        {"model": f"{i}. {name}", **intervals(tested, first), **costs}
        for i, (name, (tested, _), costs) in enumerate(zip(names, models, clocked), 1)
    ]
    if args.report.suffix in page.TABLES:
        page.write_table(path, rows)
        return path
    args.report.mkdir(parents=True, exist_ok=True)
    figures, made = differences([tested for tested, _ in models])
    note = "In brackets intervals of 95 %, by the bootstrap over images; differences are to the first model."
    body = page.section("Models", note, page.table(rows)) + page.section(
        "Where they differ",
        "The truth, and what each model found, in the order of the table",
        page.card("Images", made),
    )
    write_page(path, f"{len(models)} models", f"vitdense {__version__}", "", body + figures.notes())
    page.write_json(args.report / "metrics.json", {"models": rows})
    return path


def keys_of(tested: Tested) -> Any:
    """What two tests of the same data have in common."""
    if tested.maps:
        return tested.maps.names, [one.path for one in tested.maps.images]
    return [(one.kind, one.truth.classes, one.images, list(one.truth.images)) for one, _ in tested.evaluations]


def intervals(tested: Tested, first: Tested) -> dict[str, str]:
    """Metrics, and their differences to the first model's, with intervals, as text."""
    if tested.maps:
        mine, base = (np.stack([one.counts for one in x.maps.images]) for x in (tested, first))
        weights = np.random.default_rng(0).multinomial(len(mine), np.full(len(mine), 1 / len(mine)), SAMPLES)
        weights = np.concatenate([np.ones((1, len(mine))), weights])  # the images themselves come first
        values = [100 * _mean(np.einsum("sn,nck->sck", weights, one)) for one in (mine, base)]
        name = "PQ" if np.ndim(tested.maps.segments) else "mIoU"
        return {name: _interval(values[0]), "difference": "" if tested is first else _interval(values[0] - values[1])}
    row = {}
    for (one, _), (other, _) in zip(tested.evaluations, first.evaluations):
        nothing = hotcoco.COCOeval(one.made.coco_gt, one.made.coco_gt.load_res(np.zeros((0, 7))), one.kind)
        nothing.params = one.made.params
        nothing.evaluate()
        for name, base in (("mAP", nothing), ("difference", other.made)):
            said = hotcoco.compare(base, one.made, n_bootstrap=SAMPLES)
            ends = (100 * said["ci"]["AP"][end] for end in ("lower", "upper"))
            text = "{:.1f} ({:.1f} to {:.1f})".format(100 * said["deltas"]["AP"], *ends)
            row[f"{one.kind} {name}"] = text if name == "mAP" or tested is not first else ""
    return row


def _mean(counts: np.ndarray) -> np.ndarray:
    """Means over classes of quotients, [samples, C, 2] -> [samples]."""
    known = counts[..., 1] > 0
    return (counts[..., 0] / np.maximum(counts[..., 1], 1e-9) * known).sum(1) / known.sum(1)


def _interval(values: np.ndarray) -> str:
    return "{:.1f} ({:.1f} to {:.1f})".format(values[0], *np.percentile(values[1:], (2.5, 97.5)))


@torch.no_grad()
def clock(runners: Sequence[Runner]) -> list[dict[str, Any]]:
    """Parameters, multiply-adds, seconds an image and memory, of models in turn, each on its first image."""
    batches, times, rows = [next(iter(one.test_dataloader)) for one in runners], [[] for _ in runners], []
    batches = [{key: values[:1] for key, values in batch.items()} for batch in batches]
    on_gpu = torch.cuda.is_available()
    for _ in range(ROUNDS + 1):  # the first is not counted
        for runner, batch, kept in zip(runners, batches, times):
            start = perf_counter()
            runner.model.test_step(copy.deepcopy(batch))
            if on_gpu:
                torch.cuda.synchronize()
            kept.append(perf_counter() - start)
    for runner, batch, kept in zip(runners, batches, times):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            runner.model.test_step(copy.deepcopy(batch))
        height, width = batch["inputs"][0].shape[-2:]
        with torch.device("meta"):
            model = build_model(runner.cfg).eval()
        parts = count(model, (height, width))
        rows.append(
            {
                "M parameters": round(sum(part.params for part in parts) / 1e6, 2),
                "GMACs": round(sum(part.macs for part in parts) / 1e9, 2),
                "image": f"{height}x{width}",
                "ms an image": round(1000 * float(np.median(kept[1:])), 1),
                "GB": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else "",
            }
        )
    return rows


def differences(models: Sequence[Tested]) -> tuple[Figures, list[str]]:
    """The figures of the images on which models differ most."""
    if models[0].maps:
        images = list(zip(*(one.maps.images for one in models)))
        figures = Figures({one.path: one.path for one in models[0].maps.images})
        order = np.argsort([-np.ptp([one.wrong for one in row]) for row in images], kind="stable")[:SHOWN]
        made = []
        for row in (images[i] for i in order):
            views = [of.maps.views(one, figures) for of, one in zip(models, row)]
            if views[0]:
                text = "wrong: " + ", ".join(f"{100 * one.wrong:.1f} %" for one in row)
                made.append(figures.add(row[0].path, [views[0][0], *(one[1] for one in views)], text))
        return figures, made
    judged = [Judged(one.evaluations[-1][0], one.score) for one in models]
    said = [one.evaluation.made.image_diagnostics()["img_summary"] for one in judged]
    figures, made = figures_of(judged[0], models[0].paths), []
    spread = {image: np.ptp([one[image]["f1"] for one in said]) for image in said[0]}
    for image in sorted(spread, key=lambda image: -spread[image])[:SHOWN]:
        sides = [sides_of(one, image) for one in judged]
        text = "F1: " + ", ".join(f"{one[image]['f1']:.2f}" for one in said)
        made.append(figures.crops(image, [], [sides[0][0], *(one[1] for one in sides)], text))
    return figures, made
