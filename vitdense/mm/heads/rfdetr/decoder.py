"""The decoder of RF-DETR (arXiv 2511.09554): queries on selected boxes, which are never refined.

Boxes are (cx, cy, w, h), 0 to 1 of a map. N positions of a map h x w, Q queries, G groups of them.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmdet.models.layers.transformer import MLP, coordinate_to_encoding
from torch import Tensor, nn

from vitdense.layers.attention import attend
from vitdense.layers.blocks import ResidualLayerNorm
from vitdense.layers.deformable import deform_attend
from vitdense.layers.layout import without_autocast

PROPOSAL = 0.05  # width and height of the box at every position
MARGIN = 0.01  # boxes are proposed if their four numbers are between this and 1 minus this


class Boxes(NamedTuple):
    """What Q queries predict."""

    logits: Tensor  # of classes, [..., Q, C]
    boxes: Tensor  # [..., Q, 4]


def moved(boxes: Tensor, deltas: Tensor) -> Tensor:
    """Boxes ``[..., 4]`` moved by their size times the first two deltas, and scaled by exp of the other two.

    Computed in float32: half precision cannot tell all pixels of an image apart.
    """
    with without_autocast(boxes):
        boxes, deltas = boxes.float(), deltas.float()
        centres = deltas[..., :2] * boxes[..., 2:] + boxes[..., :2]  # [..., 2]
        return torch.cat([centres, deltas[..., 2:].exp() * boxes[..., 2:]], dim=-1)  # [..., 4]


def proposals(x: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes at the positions of a map ``[B, C, h, w]``, ``[N, 4]``, and whether they are proposed, ``[N, 1]``.

    Boxes that are not proposed are 0.
    """
    rows, columns = ((torch.arange(n, device=x.device) + 0.5) / n for n in x.shape[2:])  # [h], [w]
    h, w = x.shape[2:]
    centres = torch.stack([columns.expand(h, -1), rows[:, None].expand(-1, w)], dim=-1)  # [h, w, 2]
    boxes = torch.cat([centres, torch.full_like(centres, PROPOSAL)], dim=-1).flatten(0, 1)  # [N, 4]
    proposed = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(-1, keepdim=True)  # [N, 1]
    return boxes * proposed, proposed


class Selection(nn.Module):
    """The first stage: selects the positions of a map with the highest class logits."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(dim, dim), ResidualLayerNorm(dim)
        self.classes, self.box = nn.Linear(dim, num_classes), MLP(dim, dim, 4, 3)

    def forward(self, memory: Tensor, places: Tensor, number: int) -> tuple[Tensor, Boxes]:
        """Select rows of ``[B, N, dim]``: ``[B, number, dim]``, and their `Boxes`, predicted from boxes ``[N, 4]``.

        If N is less than `number`, the first row is repeated.
        """
        rows = self.proj(memory)  # [B, N, dim]
        best = self.classes(self.norm(rows)).amax(-1)  # [B, N]
        best = F.pad(best, (0, number), value=-math.inf).topk(number).indices  # [B, number]
        best = torch.where(best < memory.shape[1], best, 0)
        # The norm again, of the selected rows only: the backward pass need not keep the whole map.
        rows = self.norm(rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2])))  # [B, number, dim]
        return rows, Boxes(self.classes(rows), moved(places[best], self.box(rows)))


class BoxAttention(nn.Module):
    """Deformable attention (Zhu et al., ICLR 2021) to one map, at points scaled by the box of a query."""

    def __init__(self, dim: int, num_heads: int, num_points: int) -> None:
        super().__init__()
        self.shape = num_heads, 1, num_points
        self.sampling_offsets = nn.Linear(dim, 2 * math.prod(self.shape))
        self.attention_weights = nn.Linear(dim, math.prod(self.shape))
        self.value_proj, self.output_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def init_weights(self) -> None:
        """Head i starts with points in the i-th direction, evenly spaced from the centre to the edge of the box."""
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for parameter in (self.sampling_offsets.weight, *self.attention_weights.parameters()):
            nn.init.zeros_(parameter)
        heads, _, points = self.shape
        angles = torch.arange(heads, device=self.sampling_offsets.bias.device) * (2 * math.pi / heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)  # [heads, 2]
        directions = directions / directions.abs().amax(-1, keepdim=True)
        steps = torch.arange(1, points + 1, device=angles.device)[:, None]  # [points, 1]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_((directions[:, None] * steps).flatten())

    def forward(self, queries: Tensor, memory: Tensor, size: tuple[int, int], boxes: Tensor) -> Tensor:
        """Queries ``[B, Q, dim]`` with boxes ``[B, Q, 4]`` read a map (h, w) ``[B, N, dim]``: ``[B, Q, dim]``."""
        values = self.value_proj(memory).unflatten(-1, (self.shape[0], -1)).unflatten(1, size)  # [B, h, w, heads, d]
        weights = self.attention_weights(queries).unflatten(-1, (self.shape[0], -1))  # [B, Q, heads, P]
        weights = weights.softmax(-1, dtype=torch.float32).unflatten(-1, self.shape[1:])  # [B, Q, heads, 1, P]
        offsets = self.sampling_offsets(queries).float().unflatten(-1, (*self.shape, 2))  # [B, Q, heads, 1, P, 2]
        centres, sizes = boxes[:, :, None, None, None].chunk(2, dim=-1)  # [B, Q, 1, 1, 1, 2] each
        points = 2 * centres - 1 + offsets * sizes / self.shape[2]  # [B, Q, heads, 1, P, 2], -1 to 1
        y = deform_attend([values], points, weights)  # [B, Q, dim]
        return self.output_proj(y.to(values.dtype, memory_format=torch.contiguous_format))  # [B, Q, dim]


class GroupAttention(nn.Module):
    """Self-attention within groups of rows. Positions are added to queries and keys, not to values."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk, self.v, self.proj = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def attend(self, x: Tensor, position: Tensor, groups: int) -> Tensor:
        """Rows and their positions, ``[B, groups * n, dim]`` each, to the same."""

        def heads(y: Tensor) -> Tensor:
            return y.unflatten(1, (groups, -1)).unflatten(-1, (self.num_heads, -1)).transpose(2, 3).flatten(0, 1)

        q, k = self.qk(x + position).chunk(2, dim=-1)  # [B, groups * n, dim] each
        y = attend(*(heads(part) for part in (q, k, self.v(x))))  # [B * groups, heads, n, d]
        return self.proj(y.transpose(1, 2).flatten(2).unflatten(0, (-1, groups)).flatten(1, 2))  # [B, groups*n, dim]


class DecoderLayer(GroupAttention):
    """Self-attention within a group, deformable attention and an MLP, each with a norm after it.

    `num_heads` are the heads of self-attention and of deformable attention; `ffn_dims` the hidden channels of the MLP.
    """

    def __init__(self, dim: int, num_heads: tuple[int, int], num_points: int, ffn_dims: int) -> None:
        super().__init__(dim, num_heads[0])
        self.cross = BoxAttention(dim, num_heads[1], num_points)
        self.fc1, self.fc2 = nn.Linear(dim, ffn_dims), nn.Linear(ffn_dims, dim)
        self.norm1, self.norm2, self.norm3 = (ResidualLayerNorm(dim) for _ in range(3))

    def forward(
        self, x: Tensor, position: Tensor, memory: Tensor, size: tuple[int, int], boxes: Tensor, groups: int
    ) -> Tensor:
        """Queries and their positions, ``[B, G*Q, dim]`` each, to queries; for other arguments see `BoxAttention`."""
        x = self.norm1(x + self.attend(x, position, groups))
        x = self.norm2(x + self.cross(x + position, memory, size, boxes))
        return self.norm3(x + self.fc2(self.fc1(x).relu()))


class Decoder(nn.Module):
    """Decoder layers on fixed boxes; see `DecoderLayer`."""

    Layer = DecoderLayer

    def __init__(self, dim: int, num_layers: int, num_heads: tuple[int, int], num_points: int, ffn_dims: int) -> None:
        super().__init__()
        self.position = MLP(2 * dim, dim, dim, 2)
        self.layers = nn.ModuleList(self.Layer(dim, num_heads, num_points, ffn_dims) for _ in range(num_layers))
        self.norm = ResidualLayerNorm(dim)

    def forward(self, x: Tensor, memory: Tensor, size: tuple[int, int], boxes: Tensor, groups: int) -> list[Tensor]:
        """Queries ``[B, G*Q, dim]`` after every layer, normalised; see `BoxAttention`."""
        position = self.position(coordinate_to_encoding(boxes, x.shape[-1] // 2))  # [B, G*Q, dim]
        outs = []
        for layer in self.layers:
            x = layer(x, position, memory, size, boxes, groups)  # [B, G*Q, dim]
            outs.append(self.norm(x))
        return outs
