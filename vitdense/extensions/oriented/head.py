"""RF-DETR with oriented boxes: each query also predicts the Gaussian of its object, and the phase of its sides.

The Gaussian of a rectangle has its centre as mean, and half its sides as standard deviations along them (Yang et al.,
ICML 2021). It has no angle to wrap around: turning by 90 degrees is swapping the sides. But a square's is the same at
every angle. So there is a phase: where the Gaussian is made round, by the inverse of its Cholesky factor, the sides of
the object are a square, whose angle counts modulo 90 degrees. Stretching the image changes neither.

T objects, Q queries, G groups of them. Rows ``[..., 7]`` are a Gaussian of `gaussian`, and cosine and sine of 4 phases.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmdet.models.layers.transformer import MLP
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.extensions.oriented.boxes import DEGREE, corners, regular
from vitdense.extensions.oriented.ops import LEAST, box_iou_rotated, divergence, gaussian
from vitdense.extensions.oriented.steps import straight
from vitdense.layers.layout import without_autocast
from vitdense.mm.heads.rfdetr.decoder import moved
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.losses import WEIGHTS, Layer, Truth
from vitdense.mm.registry import MODELS


def rows_of(corners: Tensor) -> Tensor:
    """Rows ``[..., 7]`` of rectangles, or stretched ones, ``[..., 4, 2]``."""
    rows, side = gaussian(corners), (corners[..., 1, :] - corners[..., 0, :]) / 2  # [..., 5], [..., 2]
    first, between, second = factor(rows)
    x = side[..., 0] / first
    y = (side[..., 1] - between * x) / second
    for _ in range(2):  # squared as complex numbers, twice
        x, y = x * x - y * y, 2 * x * y
    return torch.cat([rows, torch.stack([x, y], -1)], -1)  # [..., 7]


def factor(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Cholesky factors of the covariances of rows ``[..., 5 or 7]``: lower triangles, ``[...]`` each."""
    first = rows[..., 2].clamp(min=LEAST).sqrt()
    between = rows[..., 4] / first
    return first, between, (rows[..., 3] - between**2).clamp(min=LEAST).sqrt()


def rectangles(rows: Tensor) -> Tensor:
    """Oriented boxes ``[..., 5]`` of rows ``[..., 7]``; the inverse of `rows_of` for rectangles."""
    first, between, second = factor(rows)
    phase = torch.atan2(rows[..., 6], rows[..., 5]) / 4
    c, s = phase.cos(), phase.sin()
    along = torch.stack([first * c, between * c + second * s], -1)  # [..., 2], half sides
    across = torch.stack([-first * s, second * c - between * s], -1)  # [..., 2]
    turned = torch.stack([across[..., 1], -across[..., 0]], -1)  # in the direction of the other
    # Weighted by length: the longer side has the more certain direction.
    way = along * along.norm(dim=-1, keepdim=True) + turned * turned.norm(dim=-1, keepdim=True)  # [..., 2]
    x, y = (way / way.norm(dim=-1, keepdim=True).clamp(min=LEAST)).unbind(-1)  # [...] each
    v, w, both = rows[..., 2], rows[..., 3], 2 * rows[..., 4] * x * y
    variances = v * x * x + w * y * y + both, v * y * y + w * x * x - both
    sides = [2 * variance.clamp(min=LEAST).sqrt() for variance in variances]
    return regular(torch.stack([*rows[..., :2].unbind(-1), *sides, torch.atan2(y, x) / DEGREE], -1))  # [..., 5]


def scaled(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Rows ``[..., 7]`` in a frame whose axes are x and y times as long."""
    one = torch.ones_like(x)
    return rows * torch.stack([x, y, x * x, y * y, x * y, one, one], -1)  # [..., 7]


def terms(found: Tensor, wanted: Tensor, areas: Tensor) -> dict[str, Tensor]:
    """Losses by name, 0 to 1, ``[...]``: of Gaussians 1 - 1 / (1 + log(1 + divergence)), and of phases.

    The latter is (1 - cosine of 4 times the difference) / 2, times how square the object is. Found are rows
    ``[..., 7]``, 0 to 1 of the map; wanted rows, and the ratio of the map's width to its height, ``[..., 8]``.
    """
    _, _, v, w, c, *_ = scaled(wanted[..., :7], wanted[..., 7], torch.ones_like(wanted[..., 7])).unbind(-1)
    squareness = 4 * (v * w - c * c) / (v + w).square().clamp(min=LEAST**2)
    same = F.cosine_similarity(found[..., 5:], wanted[..., 5:7], dim=-1)
    turned = 1 - 1 / (1 + divergence(found[..., :5], wanted[..., :5]).log1p())
    return {"turned": turned, "phase": squareness * (1 - same) / 2}


def quality(found: Tensor, wanted: Tensor) -> Tensor:
    """IoU of the rectangles of pairs, ``[n]``; for the arguments see `terms`."""
    ratio, one = wanted[:, 7], torch.ones_like(wanted[:, 7])  # to a frame of square pixels
    boxes = (rectangles(scaled(rows, ratio, one)) for rows in (found, wanted[:, :7]))
    return box_iou_rotated(*boxes, aligned=True)


@MODELS.register_module()
class OrientedRFDETRHead(RFDETRHead):
    """`RFDETRHead` for oriented boxes, without NMS.

    Boxes are straight ones around the objects, with the losses of the published model, so that its weights serve. The
    Gaussian is relative to its box: the Cholesky factor of its covariance, 3 numbers; the phase is 2. Costs and losses
    are `terms`, and the target of the class is the IoU of the turned boxes.

    Results also have ``corners``, ``[N, 4, 2]`` in pixels. For arguments see `RFDETRHead`.
    """

    family = "rfdetr_oriented"
    weights = {**WEIGHTS, "turned": 5.0, "phase": 2.0}  # noqa: RUF012
    more, terms, quality = "corners", staticmethod(terms), staticmethod(quality)

    def __init__(self, *args: Any, in_channels: int = 256, **options: Any) -> None:
        super().__init__(*args, in_channels=in_channels, **options)
        self.shape = MLP(in_channels, in_channels, 5, 3)
        self.first_shapes = nn.ModuleList(MLP(in_channels, in_channels, 5, 3) for _ in range(self.num_groups))
        for part in (self.shape, *self.first_shapes):
            nn.init.zeros_(part.layers[-1].weight)
            nn.init.zeros_(part.layers[-1].bias)
            nn.init.ones_(part.layers[-1].bias[3:4])  # not turned

    def forward(self, maps: Sequence[Tensor]) -> list[Layer]:
        """A map ``[B, C, h, w]``; see `RFDETRHead`."""
        (x,) = maps
        start = self.start(x)
        outs = self.decoder(start.queries, start.memory, start.size, start.boxes, start.groups)
        layers = [
            self.layer(self.classes(out), moved(start.boxes, self.box(out)), self.shape(out))
            for out in (outs if self.training else outs[-1:])
        ]
        if self.training:
            rows = start.rows.chunk(start.groups, dim=1)  # [B, Q, C] each
            shapes = torch.cat([part(row) for part, row in zip(self.first_shapes, rows)], dim=1)  # [B, G*Q, 5]
            layers.append(self.layer(*start.first, shapes))
        return layers

    def layer(self, logits: Tensor, boxes: Tensor, shapes: Tensor) -> Layer:
        """Predictions with rows, from boxes ``[B, G*Q, 4]`` and shapes ``[B, G*Q, 5]``, in float32."""
        with without_autocast(shapes):
            (first, between, second, *phase), boxes = shapes.float().unbind(-1), boxes.float()  # [B, G*Q] each
            first, second = first.exp(), second.exp()
            w, h = boxes[..., 2:].unbind(-1)
            factors = first**2 * w**2, (between**2 + second**2) * h**2, first * between * w * h
            rows = torch.stack([*boxes[..., :2].unbind(-1), *(x / 4 for x in factors), *phase], -1)  # [B, G*Q, 7]
            return Layer(logits, boxes, None, rows)

    def truth(self, instances: InstanceData, h: int, w: int) -> Truth:
        """See `RFDETRHead`; boxes are corners ``[T, 8]``."""
        around = InstanceData(bboxes=straight(instances.bboxes.float()), labels=instances.labels)
        points = instances.bboxes.float().unflatten(-1, (4, 2)) / instances.bboxes.new_tensor([w, h])  # [T, 4, 2]
        more = torch.cat([rows_of(points), points.new_full((len(points), 1), w / h)], -1)  # [T, 8]
        return super().truth(around, h, w)._replace(more=more)

    def shown(self, more: Tensor, size: Tensor) -> Tensor:
        """Rows ``[..., 7]`` as corners ``[..., 4, 2]`` in pixels."""
        return corners(rectangles(scaled(more.float(), *size)))  # [..., 4, 2]
