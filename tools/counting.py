"""Counted costs of models as tables: see `vitdense.cost`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitdense.cost import Cost, Device, ModelCost, count

FORWARD, TRAIN = "forward", "forward+backward"


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
