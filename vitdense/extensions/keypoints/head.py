"""RF-DETR with keypoints: every query has K queries of points, which attend with it (GroupPose, ICCV 2023).

K keypoints of one class, Q queries, G groups of them. The authors' model (rfdetr 1.11) is a preview.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmdet.models.layers.transformer import MLP, coordinate_to_encoding
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import ResidualLayerNorm
from vitdense.layers.layout import without_autocast
from vitdense.mm.heads.rfdetr.decoder import BoxAttention, Decoder, DecoderLayer, GroupAttention, moved
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.losses import WEIGHTS, Layer, Truth
from vitdense.mm.heads.rfdetr.projector import C2fProjector
from vitdense.mm.registry import MODELS

SMALL = 1e-7  # least area to divide by
NUMBERS = 8  # predicted values per keypoint, see `keypoint_terms`
CERTAINTY = 0.2  # exponent of the spread of an object's keypoints in its score
TINY = 1e-12


def keypoint_terms(found: Tensor, wanted: Tensor, areas: Tensor) -> dict[str, Tensor]:
    """Losses of keypoints by name, means over K. The arguments are broadcast together.

    Args:
        found: Predictions ``[..., K, 8]``: x, y; logits of being labelled and of being visible; the Cholesky factor of
            the precision matrix, lower triangle as (log, number, log); a summand of the class logit.
        wanted: Targets ``[..., K, 3]``: x, y, 0 to 1 of the map, and 0 not labelled, 1 hidden, 2 visible.
        areas: Areas of the objects' boxes, ``[...]``.

    Returns:
        All ``[...]``. ``point``: L1 distance over the root of the area, for labelled points. ``nll``: their negative
        log likelihood under the predicted Gaussian without its constant, distances relative to the root of the area.
        ``findable`` and ``visible``: cross entropies.
    """
    labelled = (wanted[..., 2] > 0).to(found.dtype)  # [..., K]
    number, areas = labelled.sum(-1).clamp(min=1), areas.clamp(min=SMALL)
    dx, dy = (found[..., :2] - wanted[..., :2]).unbind(-1)  # [..., K] each
    first, between, second = found[..., 4:7].unbind(-1)
    distance = (first.exp() * dx + between * dy) ** 2 + (second.exp() * dy) ** 2
    nll = distance / (2 * areas[..., None]) - first - second
    terms = {
        "point": ((dx.abs() + dy.abs()) * labelled).sum(-1) / number / areas.sqrt(),
        "nll": (nll * labelled).sum(-1) / number,
    }
    for i, name in enumerate(("findable", "visible")):
        logits = found[..., 2 + i]  # [..., K]
        terms[name] = (F.softplus(logits) - logits * (wanted[..., 2] > i)).mean(-1)
    return terms


class PointQueries(nn.Module):
    """Learned queries of K keypoints, modulated by the query of their object (adaLN)."""

    def __init__(self, dim: int, num_keypoints: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(num_keypoints, dim))
        self.fc1, self.fc2, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to ``[..., K, C]``."""
        scale, shift, gate = self.fc2(F.gelu(self.fc1(x)))[..., None, :].chunk(3, dim=-1)  # [..., 1, C] each
        points = F.layer_norm(self.queries, self.queries.shape[1:])  # [K, C]
        return self.queries + gate * self.proj(points * (1 + scale) + shift)  # [..., K, C]


class KeypointLayer(DecoderLayer):
    """A decoder layer, then the keypoints of every query: attention with it, deformable attention, MLP.

    Args:
        dim, num_heads, num_points, ffn_dims: See `DecoderLayer`.
    """

    def __init__(self, dim: int, num_heads: tuple[int, int], num_points: int, ffn_dims: int) -> None:
        super().__init__(dim, num_heads, num_points, ffn_dims)
        self.joint = GroupAttention(dim, num_heads[0])
        self.joint_scale = nn.Parameter(torch.full((1,), 1e-6))
        self.joint_norm = ResidualLayerNorm(dim)
        self.point_cross = BoxAttention(dim, num_heads[1], num_points)
        self.point_fc1, self.point_fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.point_norm1, self.point_norm2, self.point_norm3 = (ResidualLayerNorm(dim) for _ in range(3))

    def read(
        self,
        x: Tensor,
        points: Tensor,
        position: Tensor,
        kinds: Tensor,
        memory: Tensor,
        size: tuple[int, int],
        boxes: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Queries after `forward`, ``[B, G*Q, C]``, and their keypoints, ``[B, G*Q, K, C]``, to the same.

        Args:
            x, points: See above.
            position: Positions of the queries, ``[B, G*Q, C]``.
            kinds: Embeddings of the keypoints, ``[K, C]``.
            memory, size, boxes: See `BoxAttention`. All keypoints of a query have its box.
        """
        both = torch.cat([x[:, :, None], points], dim=2)  # [B, G*Q, 1 + K, C]
        places = F.pad(kinds, (0, 0, 1, 0)).expand_as(both)
        y = self.joint.attend(both.flatten(1, 2), places.flatten(1, 2), both.shape[1]).view_as(both)
        x = self.joint_norm(x + y[:, :, 0] * self.joint_scale)
        points = self.point_norm1(points + y[:, :, 1:])
        rows = (points + position[:, :, None]).flatten(1, 2)  # [B, G*Q*K, C]
        own = boxes[:, :, None].expand(-1, -1, points.shape[2], -1).flatten(1, 2)  # [B, G*Q*K, 4]
        points = self.point_norm2(points + self.point_cross(rows, memory, size, own).view_as(points))
        return x, self.point_norm3(points + self.point_fc2(self.point_fc1(points).relu()))


class KeypointDecoder(Decoder):
    """Decoder layers with keypoints. The head, which knows K, adds `kinds`, the embeddings of keypoints."""

    Layer = KeypointLayer
    kinds: nn.Parameter

    def forward(
        self,
        x: Tensor,
        points: Tensor,
        memory: Tensor,
        point_memory: Tensor,
        size: tuple[int, int],
        boxes: Tensor,
        groups: int,
    ) -> list[tuple[Tensor, Tensor]]:
        """Queries ``[B, G*Q, C]``, normalised, and keypoints ``[B, G*Q, K, C]`` after every layer.

        Args:
            x, memory, size, boxes, groups: See `Decoder`.
            points: Queries of the keypoints.
            point_memory: The map that keypoints read, ``[B, N, C]``.
        """
        position = self.position(coordinate_to_encoding(boxes, x.shape[-1] // 2))  # [B, G*Q, C]
        outs = []
        for layer in self.layers:
            x = layer(x, position, memory, size, boxes, groups)  # [B, G*Q, C]
            x, points = layer.read(x, points, position, self.kinds, point_memory, size, boxes)
            outs.append((self.norm(x), points))
        return outs


@MODELS.register_module()
class KeypointProjector(C2fProjector):
    """`C2fProjector`, and a second one of the same maps for keypoints: two maps.

    Args:
        *args, **options: See `C2fProjector`.
    """

    family = "rfdetr_keypoints_projector"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.keypoints = C2fProjector(*args, **options)
        self.out_channels *= 2

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """``[B, C_i, h, w]`` each to two of ``[B, out_channels, h, w]``."""
        return *super().forward(maps), *self.keypoints(maps)


@MODELS.register_module()
class RFDETRKeypointHead(RFDETRHead):
    """`RFDETRHead` that also predicts keypoints, for one class. Its neck is a `KeypointProjector`.

    Args:
        num_keypoints: K.
        num_classes: 1.
        **options: See `RFDETRHead`. There are no masks.

    Raises:
        ValueError: More than one class, masks, or no keypoints.
    """

    family = "rfdetr_keypoints"
    Decoder = KeypointDecoder
    weights = WEIGHTS | {"cls": 2.0, "point": 1.0, "findable": 1.0, "visible": 1.0, "nll": 1.0}
    more, terms = "keypoints", staticmethod(keypoint_terms)
    not_in_tiles = "a detector of keypoints, which are not merged, expected one without"

    def __init__(self, num_keypoints: int = 17, num_classes: int = 1, **options: Any) -> None:
        if num_classes != 1 or options.get("with_masks") or num_keypoints < 1:
            raise OptionError(
                f"num_classes: got {num_classes} with {num_keypoints} keypoints and with_masks="
                f"{options.get('with_masks', False)}, expected 1 class, which has 1 keypoint or more, and no masks"
            )
        super().__init__(num_classes, **options)
        self.num_keypoints, dim = num_keypoints, self.queries.embedding_dim
        self.decoder.kinds = nn.Parameter(torch.randn(num_keypoints, dim))
        self.points, self.first_points = (PointQueries(dim, num_keypoints) for _ in range(2))
        self.keypoints, *first = (MLP(dim, dim, NUMBERS, 3) for _ in range(1 + self.num_groups))
        self.first_keypoints = nn.ModuleList(first)
        for part in (self.keypoints, *first):
            nn.init.zeros_(part.layers[-1].weight)
            nn.init.zeros_(part.layers[-1].bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Layer]:
        """Two maps ``[B, C, h, w]``, of boxes and of keypoints; see `RFDETRHead`."""
        x, of_points = maps
        start = self.start(x)
        points = self.points(start.queries[:1]).expand(x.shape[0], -1, -1, -1)  # [B, G*Q, K, C]
        outs = self.decoder(
            start.queries, points, start.memory, of_points.flatten(2).mT, start.size, start.boxes, start.groups
        )
        layers = [
            self.layer(self.classes(out), moved(start.boxes, self.box(out)), self.keypoints(points), start.boxes)
            for out, points in (outs if self.training else outs[-1:])
        ]
        if self.training:
            rows = self.first_points(start.rows).chunk(start.groups, dim=1)  # [B, Q, K, C] each
            points = torch.cat([part(row) for part, row in zip(self.first_keypoints, rows)], dim=1)  # [B, G*Q, K, 8]
            layers.append(self.layer(*start.first, points, start.first.boxes))
        return layers

    def layer(self, logits: Tensor, boxes: Tensor, keypoints: Tensor, base: Tensor) -> Layer:
        """Predictions with keypoints ``[B, G*Q, K, 8]``, whose x and y are relative to boxes ``[B, G*Q, 4]``.

        The absolute x and y are float32, as in `moved`.
        """
        with without_autocast(keypoints):
            keypoints, base = keypoints.float(), base.float()[:, :, None]  # [B, G*Q, 1, 4]
            places = keypoints[..., :2] * base[..., 2:] + base[..., :2]  # [B, G*Q, K, 2]
            logits = logits + keypoints[..., 7].sum(-1, keepdim=True)  # [B, G*Q, 1]
            return Layer(logits, boxes, None, torch.cat([places, keypoints[..., 2:]], dim=-1))

    def truth(self, instances: InstanceData, h: int, w: int) -> Truth:
        """See `RFDETRHead`; with the keypoints of a `KeypointDataset`."""
        truth = super().truth(instances, h, w)
        points = instances.masks.to_tensor(torch.float32, truth.boxes.device)  # [T, K, 3] in pixels
        points = points.reshape(len(truth.labels), -1 if len(points) else self.num_keypoints, 3)  # also without objects
        return truth._replace(more=points / points.new_tensor([w, h, 1]))

    def shown(self, more: Tensor, size: Tensor) -> Tensor:
        """Predictions ``[..., K, 8]`` as x, y in pixels, and score, ``[..., K, 3]``."""
        more = more.float()
        places = more[..., :2] * size  # [..., K, 2]
        return torch.cat([places, more[..., 2:3].sigmoid()], dim=-1)  # [..., K, 3]

    def scores(self, layer: Layer) -> Tensor:
        """Scores of queries, ``[B, Q, 1]``: p / (p + spread^0.2) for a probability p.

        The spread is the mean trace of the keypoints' covariances, weighted by their probability of being labelled.
        """
        keypoints = layer.more.float()
        first, between, second = (-2 * keypoints[..., 4], keypoints[..., 5].abs(), -2 * keypoints[..., 6])  # [B, Q, K]
        third = 2 * between.clamp(min=TINY).log() + first + second
        weights = F.logsigmoid(keypoints[..., 2])
        trace = torch.stack([first, second, third]).logsumexp(0) + weights  # [B, Q, K]
        spread = trace.logsumexp(-1) - weights.logsumexp(-1)  # [B, Q], logarithm
        return (F.logsigmoid(layer.logits.float()) - CERTAINTY * spread[..., None]).sigmoid()
