"""Random weights and inputs that depend on names alone: golden files of RF-DETR hold what a model makes of them."""

import json
import math
import zlib
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

FACTORS = ("norm", ".bn.", "layer_scale")  # in names of weights around 1
GOLDEN = Path(__file__).parent / "data/golden"
SEED = 9  # with which no two positions have so nearly the same logit that rounding orders them
EMBEDDINGS = ("refpoint_embed", "reference_point_embed", "query_feat", "token", "position_embeddings")


def normal(name: str, *shape: int) -> Tensor:
    """Normal numbers; the seed is the name."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(f"{name} {SEED}".encode())))


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    if name.endswith("num_batches_tracked"):
        return torch.tensor(0)
    x = normal(name, *shape)
    if any(part in name for part in EMBEDDINGS):
        return x * 0.3
    if len(shape) == 1:
        return 1 + 0.1 * x if any(part in name for part in FACTORS) and not name.endswith("bias") else 0.3 * x
    return x / max(x[:1].numel(), 1) ** 0.5


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: weight(name, tuple(shape)) for name, shape in shapes.items()}


def targets(size: int, counts: tuple[int, ...], width: int | None = None) -> list[dict[str, Tensor]]:
    found = []
    for i, count in enumerate(counts):
        labels = normal(f"labels {i}", count).mul(100).long().abs() % 91
        centres, sides = normal(f"boxes {i}", count, 4).sigmoid().chunk(2, dim=1)
        boxes = torch.cat([0.3 + 0.4 * centres, 0.1 + 0.4 * sides], dim=1)
        at = [(torch.arange(n) + 0.5) / n for n in (width or size, size)]
        inside = [(at[d] - boxes[:, d, None]).abs() < boxes[:, 2 + d, None] / 2 for d in (0, 1)]  # [n, w], [n, h]
        found.append({"labels": labels, "boxes": boxes, "masks": inside[1][:, :, None] & inside[0][:, None]})
    return found


def with_keypoints(truths: list[dict[str, Tensor]], number: int = 17) -> list[dict[str, Tensor]]:
    """Objects of one class with keypoints in and around their boxes: x, y from 0 to 1, and 0, 1 or 2. The first object
    has none that is labelled."""
    found = []
    for i, truth in enumerate(truths):
        boxes = truth["boxes"]
        places = normal(f"places {i}", len(boxes), number, 2) * boxes[:, None, 2:] / 3 + boxes[:, None, :2]
        flags = normal(f"flags {i}", len(boxes), number, 1).mul(100).long().abs() % 3
        flags[:1] *= i > 0
        keypoints = torch.cat([places, flags], dim=2)
        found.append({**truth, "labels": truth["labels"] * 0, "keypoints": keypoints})
    return found


@contextmanager
def same_points():
    def rand(*size: int, **options: object) -> Tensor:
        return original(1, *size[1:], generator=torch.Generator().manual_seed(0)).expand(*size).clone()

    original = torch.rand
    with patch.object(torch, "rand", rand):
        yield


def shapes_of(name):
    content = json.loads((GOLDEN / "rfdetr_keys.json").read_text())
    number = content["models"].index(name)
    found = {}
    for key, rows in content["keys"].items():
        for shape, models in rows.items():
            if number in models:
                found[key] = tuple(int(n) for n in shape.split("x") if n)
    return found


def assert_same_losses(losses, golden, names):
    """All losses of a golden file, whose names of kinds are these."""
    compared = set()
    for key, value in losses.items():
        start, _, kind = key.rpartition("loss_")
        end = "_enc" if start == "enc_" else f"_{start[1:-1]}" if start else ""
        theirs = f"loss/loss_{names.get(kind, kind)}{end}"
        assert math.isclose(value.item(), golden[theirs].item(), rel_tol=1e-5), key
        compared.add(theirs)
    assert compared == {key for key in golden if key.startswith("loss/")}
