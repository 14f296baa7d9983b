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
from vitdense.extensions.errors.maps import Maps
from vitdense.extensions.errors.objects import Judged
from vitdense.extensions.errors.pictures import Figures
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
    all_parts, path = [tested.parts for tested, _ in models], page_of(args.report)
    for name, parts in zip(names, all_parts):
        if [one.data for one in parts] != [one.data for one in all_parts[0]]:
            raise ConfigError(
                f"--report: {name} was tested on other images or classes than {names[0]}, expected the same"
            )
    rows = [{"model": f"{i}. {name}"} for i, name in enumerate(names, 1)]
    for row, parts, costs in zip(rows, all_parts, clock([runner for _, runner in models])):
        for part, base in zip(parts, all_parts[0]):
            row |= (of_pixels if isinstance(part, Maps) else of_objects)(part, base)
        row |= costs
    if args.report.suffix in page.TABLES:
        page.write_table(path, rows)
        return path
    args.report.mkdir(parents=True, exist_ok=True)
    figures, made = differences([parts[-1] for parts in all_parts])
    note = "In brackets intervals of 95 %, by the bootstrap over images; differences are to the first model."
    shown = "The truth, and what each model found, in the order of the table. Wrong is 1 - F1, or the share of pixels."
    first = all_parts[0][-1]
    parts = [first.legend() if isinstance(first, Maps) else "", page.card("Images", made)]
    body = page.section("Models", note, page.table(rows)) + page.section("Where they differ", shown, *parts)
    write_page(path, f"{len(models)} models", f"vitdense {__version__}", "", body + figures.notes())
    page.write_json(args.report / "metrics.json", {"models": rows})
    return path


def of_pixels(part: Maps, first: Maps) -> dict[str, str]:
    """IoU or panoptic quality, and the difference to the first model's, with intervals, as text."""
    mine, base = (np.stack([one.counts for one in x.images.values()]) for x in (part, first))
    weights = np.random.default_rng(0).multinomial(len(mine), np.full(len(mine), 1 / len(mine)), SAMPLES)
    weights = np.concatenate([np.ones((1, len(mine))), weights])  # the images themselves come first
    values = [100 * _mean(np.einsum("sn,nck->sck", weights, one)) for one in (mine, base)]
    difference = "" if part is first else _interval(values[0] - values[1])
    return {"PQ" if np.ndim(part.segments) else "mIoU": _interval(values[0]), "difference": difference}


def of_objects(part: Judged, first: Judged) -> dict[str, str]:
    """AP, and the difference to the first model's, with intervals, as text."""
    made, row = part.evaluation.made, {}
    nothing = hotcoco.COCOeval(made.coco_gt, made.coco_gt.load_res(np.zeros((0, 7))), part.kind)
    nothing.params = made.params
    nothing.evaluate()
    for name, base in (("mAP", nothing), ("difference", first.evaluation.made)):
        said = hotcoco.compare(base, made, n_bootstrap=SAMPLES)
        ends = (100 * said["ci"]["AP"][end] for end in ("lower", "upper"))
        row[f"{part.kind} {name}"] = "{:.1f} ({:.1f} to {:.1f})".format(100 * said["deltas"]["AP"], *ends)
    return {**row, f"{part.kind} difference": ""} if part is first else row


def _mean(counts: np.ndarray) -> np.ndarray:
    """Means over classes of quotients, [samples, C, 2] -> [samples]."""
    known = counts[..., 1] > 0
    return (counts[..., 0] / np.maximum(counts[..., 1], 1e-9) * known).sum(1) / known.sum(1)


def _interval(values: np.ndarray) -> str:
    return "{:.1f} ({:.1f} to {:.1f})".format(values[0], *np.percentile(values[1:], (2.5, 97.5)))


@torch.no_grad()
def clock(runners: Sequence[Runner]) -> list[dict[str, Any]]:
    """Parameters, multiply-adds, seconds an image and memory, of models in turn, each on its first image."""
    batches, rows, on_gpu = [next(iter(one.test_dataloader)) for one in runners], [], torch.cuda.is_available()
    turns = [(one, {key: x[:1] for key, x in batch.items()}, []) for one, batch in zip(runners, batches)]
    for _ in range(ROUNDS + 1):  # the first is not counted
        for runner, batch, times in turns:
            start = perf_counter()
            runner.model.test_step(copy.deepcopy(batch))
            if on_gpu:
                torch.cuda.synchronize()
            times.append(perf_counter() - start)
    for runner, batch, times in turns:
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
                "ms an image": round(1000 * float(np.median(times[1:])), 1),
                "GB": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else "",
            }
        )
    return rows


def differences(parts: Sequence[Judged | Maps]) -> tuple[Figures, list[str]]:
    """The figures of the images on which models differ most."""
    figures, made = Figures(parts[0].paths, parts[0].called), []
    spread = {image: np.ptp([one.wrong[image] for one in parts]) for image in parts[0].wrong}
    for image in sorted(spread, key=lambda image: -spread[image])[:SHOWN]:
        views = [one.views(image, figures) for one in parts]
        if views[0]:
            text = "wrong: " + ", ".join(f"{one.wrong[image]:.2f}" for one in parts)
            made.append(figures.add(image, [views[0][0], *(found for _, found in views)], text))
    return figures, made
