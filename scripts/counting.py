"""Counted costs of models as tables: see `cost.py`."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from statistics import mean
from typing import Any

import torch
from torch import nn

from cost import Cost, Device, ModelCost, count, count_pass, live_bytes
from vitdense.hub import create
from vitdense.layers.layout import empty_cache

# ViTDet-B as in configs/cascade_vit_b_coco.py: the table of models has its weights under another name.
VITDET = {
    "vitdet_base": {
        "name": "vit_base.mae",
        "window_size": 14,
        "relative_position": True,
        "img_size": 1024,
        "out_indices": (11,),
        "out_norm": "none",
    }
}

FORWARD, TRAIN = "forward", "forward+backward"


def build(name: str, drop_path_rate: float) -> nn.Module:
    """One of our models as its users build it: a name of the model table, or of `VITDET`."""
    return create(**VITDET.get(name, {"name": name}), drop_path_rate=drop_path_rate)


@dataclass(frozen=True)
class Row:
    """The cost of a pass of a model.

    Attributes:
        model: Name.
        dtype: Of weights and images.
        step: `FORWARD` or `TRAIN`.
        cost: Its cost, or the error of a model that does not run in this dtype.
    """

    model: str
    dtype: str
    step: str
    cost: Cost | str

    @property
    def title(self) -> str:
        return f"{self.dtype:9} {self.step:17} {self.model:18}"


def count_rows(models: Mapping[str, tuple[nn.Module, Callable]], shape: Sequence[int]) -> list[Row]:
    """Costs of both passes of models, with weights in float32 and bfloat16. Moves the models to the meta device.

    Args:
        models: Modules and their forward passes, by name.
        shape: Of the images, ``[B, 3, H, W]``.
    """
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.empty(*shape, dtype=dtype, device="meta")  # [B, 3, H, W]
        costs: dict[str, ModelCost | str] = {}
        for name, (model, run) in models.items():
            try:
                costs[name] = count(model.to("meta", dtype), x, run)
            except RuntimeError as error:  # mmdet's Swin adds a mask in float32, and multiplies with bfloat16
                if dtype == torch.float32:
                    raise
                costs[name] = str(error)
        for step, attribute in ((FORWARD, "forward"), (TRAIN, "train")):
            rows += [
                Row(name, str(dtype).removeprefix("torch."), step, getattr(cost, attribute, cost))
                for name, cost in costs.items()
            ]
    return rows


def as_json(row: Row, device: Device, top: int) -> dict[str, Any]:
    """A row for JSON: bytes, FLOPs and seconds; the kernels with the most bytes."""
    head = {"model": row.model, "dtype": row.dtype, "pass": row.step}
    if isinstance(row.cost, str):
        return {**head, "error": row.cost}
    counts = {name: getattr(row.cost, name) for name in ("kernels", "casts", "bytes", "flops", "kept")}
    seconds = dict(zip(("flops", "bytes", "launches"), row.cost.seconds(device)))
    kernels = [{"name": name, "calls": calls, "bytes": moved} for name, calls, moved in most_bytes(row.cost, top)]
    return {**head, **counts, "roofline_s": {**seconds, "sum": sum(seconds.values())}, "top": kernels}


def table(rows: Sequence[Row], device: Device) -> str:
    """Rows as text: counts, and the roofline time of a device in milliseconds."""
    lines = [
        f"{'':46} {'':40} | roofline, ms of",
        f"{'weights':9} {'pass':17} {'model':18} {'kernels':>8} {'casts':>5} {'GB':>7} {'GFLOP':>8} {'kept GB':>8} "
        f"| {'FLOPs':>7} {'bytes':>7} {'launches':>8} {'sum':>7}",
    ]
    for row in rows:
        if isinstance(row.cost, str):
            lines.append(f"{row.title} does not run: {row.cost}")
            continue
        cost, seconds = row.cost, row.cost.seconds(device)
        flops, moved, launches, total = (1e3 * s for s in (*seconds, sum(seconds)))
        lines.append(
            f"{row.title} {cost.kernels:8,} {cost.casts:5} {cost.bytes / 1e9:7.2f} {cost.flops / 1e9:8.1f} "
            f"{cost.kept / 1e9:8.2f} | {flops:7.2f} {moved:7.2f} {launches:8.2f} {total:7.2f}"
        )
    return "\n".join(lines)


def top_table(row: Row, top: int) -> str:
    """The kernels with the most bytes as text."""
    lines = [row.title.rstrip()]
    lines += [
        f"  {name:40} {calls:6,} calls {moved / 1e9:8.3f} GB {moved / row.cost.bytes:7.1%}"
        for name, calls, moved in most_bytes(row.cost, top)
    ]
    return "\n".join(lines)


def most_bytes(cost: Cost, top: int) -> list[tuple[str, int, int]]:
    """Name, calls and bytes of the kernels with the most bytes, descending."""
    names = sorted(cost.bytes_of, key=cost.bytes_of.get, reverse=True)[:top]
    return [(name, cost.calls[name], cost.bytes_of[name]) for name in names]


@dataclass(frozen=True)
class DrawRow:
    """Costs of a kind of pass of a model over batches of many sizes.

    Attributes:
        model: Name.
        step: `FORWARD` or `TRAIN`.
        first: Whether these are the first passes of the batches (cold), or passes right after them (warm).
        costs: Of every batch.
        cached: Bytes that the model keeps in caches after all of them.
    """

    model: str
    step: str
    first: bool
    costs: Sequence[Cost]
    cached: int

    @property
    def title(self) -> str:
        return f"{self.step:17} {self.model:18} {'cold' if self.first else 'warm':4}"

    def values(self, name: str) -> list[int]:
        """Kernels, bytes or kept bytes of every batch."""
        return [getattr(cost, name) for cost in self.costs]


def count_draw_rows(
    models: Mapping[str, tuple[nn.Module, Callable]], shapes: Sequence[tuple[int, int, int]]
) -> list[DrawRow]:
    """Cold and warm costs of both passes of models, with weights in float32. Moves the models to the meta device.

    Every model and pass has a process of its own, with empty caches.

    Args:
        models: Modules and their forward passes, by name.
        shapes: Of the batches (B, h, w), in the order of training.
    """
    jobs = [(name, step) for step, name in product((FORWARD, TRAIN), models)]
    for model, _ in models.values():
        model.to("meta")
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count()), get_context("spawn")) as pool:
        pairs = [pool.submit(count_draw, name, *models[name], step, shapes) for name, step in jobs]
        return [row for pair in pairs for row in pair.result()]


def count_draw(
    name: str, model: nn.Module, run: Callable, step: str, shapes: Sequence[tuple[int, int, int]]
) -> tuple[DrawRow, DrawRow]:
    """The rows of cold and of warm passes of a model on the meta device; see `count_draw_rows`.

    A warm pass is counted once per size. So is a cold pass where no cold pass so far differed from its warm one: such a
    model caches nothing.
    """
    empty_cache()
    before = live_bytes(model)
    warm: dict[tuple[int, int, int], Cost] = {}
    costs, caches = [], False
    for shape in shapes:
        if shape in warm and not caches:
            costs.append(warm[shape])
            continue
        x = torch.empty(shape[0], 3, *shape[1:], device="meta")  # [B, 3, h, w]
        costs.append(count_pass(model, x, run, step == TRAIN))
        if shape not in warm:
            warm[shape] = count_pass(model, x, run, step == TRAIN)
        caches = caches or costs[-1] != warm[shape]
    del x
    cached = live_bytes(model) - before
    again = [warm[shape] for shape in shapes]
    return DrawRow(name, step, True, costs, cached), DrawRow(name, step, False, again, cached)


def draw_as_json(row: DrawRow) -> dict[str, Any]:
    """A row for JSON."""
    head = {"model": row.model, "pass": row.step, "caches": "cold" if row.first else "warm", "cached": row.cached}
    values = {name: row.values(name) for name in ("kernels", "bytes", "kept")}
    return head | {name: {"mean": mean(v), "min": min(v), "max": max(v)} for name, v in values.items()}


def draw_table(rows: Sequence[DrawRow]) -> str:
    """Rows as text: mean, minimum and maximum."""
    columns = (("kernels", 1, ",.0f"), ("bytes", 1e9, ".2f"), ("kept", 1e9, ".2f"))  # name, unit, format
    spread = f" | {'mean':>8}{'min':>8}{'max':>8}"
    heads = "".join(f" | {name:^24}" for name in ("kernels", "GB", "kept GB"))
    lines = [f"{'':41}{heads} | cached", f"{'pass':17} {'model':23}{spread * 3} | MB"]
    for row in rows:
        line = row.title
        for name, unit, spec in columns:
            values = row.values(name)
            line += " | " + "".join(f"{of(values) / unit:8{spec}}" for of in (mean, min, max))
        lines.append(f"{line} | {row.cached / 1e6:.2f}")
    return "\n".join(lines)
