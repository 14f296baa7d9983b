"""DINO and the pixel decoder of Mask2Former with sizes from the shapes of maps, not from tensors.

B images, N tokens of all levels, C channels, Q queries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.layers import MSDeformAttnPixelDecoder
from mmdet.models.layers.transformer.utils import inverse_sigmoid
from torch import Tensor, nn

from vitdense.export.select import Found, best, clip, corners, highest, pack, take
from vitdense.layers.deformable import deform_attend

Sizes = list[tuple[int, int]]  # height and width of every level


class Tokens(NamedTuple):
    """The positions of maps, level after level; images fill the maps."""

    tokens: Tensor  # [B, N, C]
    encoded: Tensor  # positions, [B, N, C]
    centres: list[Tensor]  # (x, y) in 0..1 of the image, [h * w, 2] of every level
    sizes: Sizes


def flatten(maps: Sequence[Tensor], encode: nn.Module, embeddings: Tensor) -> Tokens:
    """Maps ``[B, C, h, w]`` as tokens, with mmdet's positional encoding and level embeddings ``[levels, C]``."""
    tokens = torch.cat([x.flatten(2).mT for x in maps], 1)  # [B, N, C]
    encoded = [encode(None, input=x).permute(0, 2, 3, 1).flatten(1, 2).to(x.dtype) for x in maps]  # [B, h * w, C]
    encoded = torch.cat([x + level for x, level in zip(encoded, embeddings)], 1)  # [B, N, C]
    sizes, centres = [(x.shape[2], x.shape[3]) for x in maps], []
    for h, w in sizes:
        y, x = ((torch.arange(n, device=tokens.device, dtype=torch.float32) + 0.5) / n for n in (h, w))
        pair = (x.expand(h, -1), y[:, None].expand(-1, w))  # [h, w] each
        centres.append(torch.stack(pair, -1).flatten(0, 1))  # [h * w, 2]
    return Tokens(tokens, encoded, centres, sizes)


def encode(encoder: nn.Module, of: Tokens) -> Tensor:
    """Tokens after mmdet's encoder with deformable attention, ``[B, N, C]``."""
    points = torch.cat(of.centres)[None, :, None].expand(-1, -1, len(of.sizes), -1)  # [1, N, levels, 2]
    x = of.tokens
    for layer in encoder.layers:
        x = layer(
            query=x, query_pos=of.encoded, key_padding_mask=None, reference_points=points, spatial_shapes=of.sizes
        )
    return x


class FixedDeformableAttention(nn.Module):
    """mmcv's `MultiScaleDeformableAttention`, batch first, with the sizes of levels as numbers."""

    def __init__(self, attention: MultiScaleDeformableAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        value: Tensor,
        reference_points: Tensor,
        spatial_shapes: Sizes,
        query_pos: Tensor | None = None,
        identity: Tensor | None = None,
        key_padding_mask: None = None,
        **others: object,
    ) -> Tensor:
        """Queries ``[B, Q, C]`` read tokens ``[B, N, C]`` near their points, ``[B, Q, levels, 2 or 4]`` in 0..1."""
        own, identity = self.attention, query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        value = own.value_proj(value).unflatten(-1, (own.num_heads, -1))  # [B, N, heads, d]
        parts = value.split([h * w for h, w in spatial_shapes], 1)
        levels = [part.unflatten(1, size) for part, size in zip(parts, spatial_shapes)]  # [B, h, w, heads, d]
        shape = (own.num_heads, own.num_levels, own.num_points)
        offsets = own.sampling_offsets(query).float().unflatten(-1, (*shape, 2))  # [B, Q, heads, L, P, 2]
        weights = own.attention_weights(query).float().unflatten(-1, (own.num_heads, -1)).softmax(-1)
        near = reference_points.float()[:, :, None, :, None]  # [B, Q, 1, L, 1, 2 or 4]
        if near.shape[-1] == 2:
            one = near.new_ones(1)
            scale = torch.stack([torch.cat([one / w, one / h]) for h, w in spatial_shapes])[:, None]  # [L, 1, 2]
        else:
            scale = near[..., 2:] * (0.5 / own.num_points)  # [B, Q, 1, L, 1, 2]
        points = 2 * (near[..., :2] + offsets * scale) - 1
        out = deform_attend(levels, points, weights.unflatten(-1, shape[1:]))  # [B, Q, heads * d]
        return own.output_proj(out.to(value.dtype)) + identity


class FixedPixelDecoder(nn.Module):
    """mmdet's `MSDeformAttnPixelDecoder` (Mask2Former, Cheng et al., CVPR 2022) without sizes in tensors."""

    def __init__(self, decoder: MSDeformAttnPixelDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Maps, fine to coarse, to the features of masks, ``[B, C, h, w]``, and maps, coarse to fine."""
        own = self.decoder
        count = own.num_encoder_levels
        coarse = [conv(x) for conv, x in zip(own.input_convs, maps[::-1])]  # [B, C, h, w] each
        of = flatten(coarse, own.postional_encoding, own.level_encoding.weight)
        parts = encode(own.encoder, of).split([h * w for h, w in of.sizes], 1)
        outs = [x.mT.unflatten(2, size) for x, size in zip(parts, of.sizes)]  # [B, C, h, w] each
        for x, lateral, output in zip(maps[: len(maps) - count][::-1], own.lateral_convs, own.output_convs):
            x = lateral(x)
            coarser = nn.functional.interpolate(outs[-1], x.shape[2:], mode="bilinear", align_corners=False)
            outs.append(output(x + coarser))  # [B, C, h, w]
        return own.mask_feature(outs[-1]), outs[: own.num_outs]


def of_dino(model: nn.Module, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Found, dict]:
    """Objects of DINO (Zhang et al., ICLR 2023) in unpadded images (h, w)."""
    head, decoder = model.bbox_head, model.decoder
    of = flatten(maps, model.positional_encoding, model.level_embed)
    memory = encode(model.encoder, of)  # [B, N, C]
    query, points = _start(model, memory, of.centres)
    states, references = decoder(
        query=query,
        value=memory,
        key_padding_mask=None,
        self_attn_mask=None,
        reference_points=points,
        spatial_shapes=of.sizes,
        level_start_index=None,
        valid_ratios=torch.ones_like(points[:, : len(of.sizes), :2]),
        reg_branches=head.reg_branches,
    )  # [stages, B, Q, C] and, including the initial boxes, [stages + 1, B, Q, 4]
    last = decoder.num_layers - 1
    logits = head.cls_branches[last](states[last]).float()  # [B, Q, classes]
    deltas = head.reg_branches[last](states[last]).float()  # [B, Q, 4]
    boxes = clip(corners((deltas + inverse_sigmoid(references[last])).sigmoid(), size), size)  # [B, Q, 4]
    classes = logits.shape[2]
    scores, pair = best(logits.sigmoid().flatten(1), head.test_cfg.get("max_per_img", logits.shape[1]))
    return pack(take(boxes, pair // classes), scores, pair % classes), {}


def _start(model: nn.Module, memory: Tensor, centres: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """DINO's queries ``[B, Q, C]`` and their boxes (cx, cy, w, h) in 0..1, ``[B, Q, 4]``, from the best tokens."""
    head, stage = model.bbox_head, model.decoder.num_layers
    sides = [torch.full_like(x, 0.05 * 2.0**level) for level, x in enumerate(centres)]  # [h * w, 2]
    boxes = torch.cat([torch.cat(centres), torch.cat(sides)], -1)  # [N, 4]
    usable = ((boxes > 0.01) & (boxes < 0.99)).all(-1, keepdim=True)  # [N, 1]
    boxes = torch.where(usable, torch.log(boxes / (1 - boxes)), torch.inf)
    x = model.memory_trans_norm(model.memory_trans_fc(torch.where(usable, memory, 0.0)))  # [B, N, C]
    boxes = head.reg_branches[stage](x).float() + boxes  # [B, N, 4]
    scores = head.cls_branches[stage](x).amax(-1)  # [B, N]
    _, index = highest(scores, model.num_queries)  # [B, Q]
    return model.query_embedding.weight.expand(boxes.shape[0], -1, -1), take(boxes, index).sigmoid()


FORMS = {MultiScaleDeformableAttention: FixedDeformableAttention, MSDeformAttnPixelDecoder: FixedPixelDecoder}
