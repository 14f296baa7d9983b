"""Matching and losses of RF-DETR, in float32: G groups of Q queries are matched separately (Group DETR).

T objects of an image, C classes. Boxes are (cx, cy, w, h), 0 to 1 of a map.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps
from mmdet.utils import reduce_mean
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vitdense.layers.mask_branch import PIXELS_PER_POINT, Masks, read_maps, read_masks, uncertain_points

WEIGHTS = {"cls": 1.0, "bbox": 5.0, "giou": 2.0, "mask": 5.0, "dice": 5.0}
CLASS_COST = 2.0  # the other costs have the weights of the losses
FOCAL = 0.25  # weight of objects in the cost of classes, and the exponent of the probability in IA-BCE
LEAST = 0.01  # least target of a matched query
TINY = 1e-12  # least area


class Layer(NamedTuple):
    """Predictions of G*Q queries."""

    logits: Tensor  # [B, G*Q, C]
    boxes: Tensor  # [B, G*Q, 4]
    masks: Masks | None = None
    more: Tensor | None = None  # further predictions of a subclass of the head, [B, G*Q, ...]


class Truth(NamedTuple):
    """Objects of an image."""

    labels: Tensor  # [T]
    boxes: Tensor  # [T, 4]
    masks: Tensor | None = None  # bool [T, H, W], in pixels of the padded image
    more: Tensor | None = None  # targets of a subclass's further predictions, [T, ...]


def overlaps(a: Tensor, b: Tensor, mode: str, is_aligned: bool) -> Tensor:
    return bbox_overlaps(bbox_cxcywh_to_xyxy(a), bbox_cxcywh_to_xyxy(b), mode, is_aligned, eps=TINY)


def box_costs(logits: Tensor, boxes: Tensor, truth: Truth) -> Tensor:
    """Costs of every query of an image (``[G*Q, C]``, ``[G*Q, 4]``) for every object, ``[G*Q, T]``."""
    logits = logits[:, truth.labels]  # [G*Q, T]
    probability = logits.sigmoid()
    cost = FOCAL * (1 - probability) ** 2 * -F.logsigmoid(logits)
    cost = cost - (1 - FOCAL) * probability**2 * -F.logsigmoid(-logits)  # [G*Q, T]
    distance = torch.cdist(boxes, truth.boxes, p=1)
    overlap = overlaps(boxes, truth.boxes, "giou", False)
    return CLASS_COST * cost + WEIGHTS["bbox"] * distance - WEIGHTS["giou"] * overlap


def mask_costs(masks: Masks, truths: Sequence[Truth]) -> list[Tensor]:
    """Costs of every query for every object, at random points that all masks share, ``[G*Q, T]`` each."""
    h, w = masks.pixels.shape[2:]
    points = torch.rand(1, h * w // PIXELS_PER_POINT, 2, device=masks.pixels.device)  # [1, P, 2]
    pixels = read_maps(masks.pixels, points.expand(len(truths), -1, -1))  # [B, C, P]
    logits = masks.queries @ pixels + masks.bias  # [B, G*Q, P]
    costs = []
    for x, truth in zip(logits, truths):
        which = torch.arange(len(truth.labels), device=x.device)  # [T]
        wanted = read_masks(truth.masks, which, points.expand(len(which), -1, -1))  # [T, P]
        entropy = (F.softplus(x).sum(1, keepdim=True) - x @ wanted.T) / x.shape[1]  # [G*Q, T]
        p = x.sigmoid()
        dice = 1 - (2 * p @ wanted.T + 1) / (p.sum(1, keepdim=True) + wanted.sum(1) + 1)  # [G*Q, T]
        costs.append(WEIGHTS["mask"] * entropy + WEIGHTS["dice"] * dice)
    return costs


# Losses of a subclass's further predictions by name, from predictions, targets and box areas, broadcast together.
Terms = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
Pairs = list[tuple[Tensor, Tensor]]  # for every image: matched queries and objects


@torch.no_grad()
def match(
    layers: Sequence[Layer],
    truths: Sequence[Truth],
    groups: int,
    weights: Mapping[str, float] = WEIGHTS,
    terms: Terms | None = None,
) -> list[Pairs]:
    """Match one query of every group to every object, in every layer; see `losses`."""
    costs = []
    for layer in layers:
        own = [box_costs(*image) for image in zip(layer.logits, layer.boxes, truths)]  # [G*Q, T] each
        if layer.masks is not None:
            own = [cost + more for cost, more in zip(own, mask_costs(layer.masks, truths))]
        for i, truth in enumerate(truths if terms is not None else ()):
            values = terms(layer.more[i][:, None], truth.more, truth.boxes[:, 2:].prod(-1))  # [G*Q, T] each
            own[i] = own[i] + sum(weights[name] * value for name, value in values.items())
        costs += own
    device, sizes = costs[0].device, [cost.shape for cost in costs]
    on_host = torch.cat([cost.flatten() for cost in costs]).cpu()  # one wait for the device
    found: Pairs = []
    for part, size in zip(on_host.split([size.numel() for size in sizes]), sizes):
        per_group = part.view(size).unflatten(0, (groups, -1)).numpy()  # [G, Q, T]
        solved = [linear_sum_assignment(cost) for cost in per_group]
        queries = torch.cat([torch.from_numpy(i) + g * per_group.shape[1] for g, (i, _) in enumerate(solved)])
        objects = torch.cat([torch.from_numpy(j) for _, j in solved])
        found.append((queries.to(device), objects.to(device)))
    return [found[i : i + len(truths)] for i in range(0, len(found), len(truths))]


def class_loss(logits: Tensor, index: tuple[Tensor, ...], quality: Tensor) -> Tensor:
    """The sum of IoU-aware binary cross entropy (RF-DETR, after Align-DETR and LW-DETR).

    `logits` are ``[B, G*Q, C]``, `index` is image, query and label of every pair, ``[n]`` each, and `quality` the IoU
    of its boxes, ``[n]``.
    """
    probability = logits.sigmoid()
    target = (probability[index] ** FOCAL * quality ** (1 - FOCAL)).clamp(min=LEAST).detach()  # [n]
    positive = torch.zeros_like(logits).index_put(index, target)
    negative = (probability**2).index_put(index, 1 - target)
    return (negative * logits - F.logsigmoid(logits) * (positive + negative)).sum()


def mask_losses(masks: Masks, truths: Sequence[Truth], pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Cross entropy and dice at uncertain points, sums over pairs."""
    logits = torch.cat([masks.logits_of(i, queries) for i, (queries, _) in enumerate(pairs)])  # [n, H, W]
    points = uncertain_points(logits)  # [n, P, 2]
    parts = zip(truths, pairs, points.split([len(objects) for _, objects in pairs]))
    wanted = torch.cat([read_masks(truth.masks, objects, part) for truth, (_, objects), part in parts])  # [n, P]
    x = read_maps(logits[:, None], points)[:, 0]  # [n, P]
    entropy = F.binary_cross_entropy_with_logits(x, wanted, reduction="none").mean(1).sum()
    p = x.sigmoid()
    return entropy, (1 - (2 * (p * wanted).sum(1) + 1) / (p.sum(1) + wanted.sum(1) + 1)).sum()


def losses(
    layers: Sequence[Layer],
    truths: Sequence[Truth],
    groups: int,
    weights: Mapping[str, float] = WEIGHTS,
    terms: Terms | None = None,
    quality: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The weighted losses of all layers, normalised over all processes.

    Args:
        layers: Outputs of the decoder's layers, then of the first stage.
        truths: Objects of every image.
        groups: G.
        weights: Weights of the losses.
        terms: Losses of a subclass's further predictions.
        quality: How well those of pairs fit, ``[n]``, the target of the class; by default the IoU of boxes.

    Returns:
        Of the last decoder layer ``loss_cls``, ``loss_bbox``, ``loss_giou``, with masks ``loss_mask`` and
        ``loss_dice``, and `terms`. The first layer's have names such as ``d0.loss_cls``, the first stage's such as
        ``enc_loss_cls``.
    """
    number = layers[0].logits.new_tensor(float(groups * sum(len(truth.labels) for truth in truths)))
    number = reduce_mean(number).clamp(min=1)
    starts = [*(f"d{i}." for i in range(len(layers) - 2)), "", "enc_"]
    found = {}
    for start, layer, pairs in zip(starts, layers, match(layers, truths, groups, weights, terms)):
        images = torch.cat([queries.new_full(queries.shape, i) for i, (queries, _) in enumerate(pairs)])  # [n]
        queries = torch.cat([queries for queries, _ in pairs])  # [n]
        labels = torch.cat([truth.labels[objects] for truth, (_, objects) in zip(truths, pairs)])  # [n]
        boxes = torch.cat([truth.boxes[objects] for truth, (_, objects) in zip(truths, pairs)])  # [n, 4]
        own = layer.boxes[images, queries]  # [n, 4]
        if terms is not None:
            more = torch.cat([truth.more[objects] for truth, (_, objects) in zip(truths, pairs)])  # [n, ...]
            found_more = layer.more[images, queries]
        fits = overlaps(own.detach(), boxes, "iou", True) if quality is None else quality(found_more.detach(), more)
        sums = {
            "cls": class_loss(layer.logits, (images, queries, labels), fits),
            "bbox": (own - boxes).abs().sum(),
            "giou": (1 - overlaps(own, boxes, "giou", True)).sum(),
        }
        if layer.masks is not None:
            sums["mask"], sums["dice"] = mask_losses(layer.masks, truths, pairs)
        if terms is not None:
            values = terms(found_more, more, boxes[:, 2:].prod(-1))  # [n] each
            sums |= {name: value.sum() for name, value in values.items()}
        found |= {f"{start}loss_{name}": weights[name] * value / number for name, value in sums.items()}
    return found
