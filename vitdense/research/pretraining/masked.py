"""Masked-image pretraining: BEiT (Bao et al., ICLR 2022), SimMIM (Xie et al., CVPR 2022), MAE (He et al., CVPR 2022).

The mask comes after the patch embedding, as in "Three things everyone should know about Vision Transformers" section 5.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense import ViT
from vitdense.errors import OptionError, check_choice
from vitdense.layers.blocks import init_transformer
from vitdense.mm.registry import MODELS
from vitdense.models.base import maybe_checkpoint
from vitdense.models.swin.model import SwinTrunk
from vitdense.models.vit.model import BlockSpec, LayerNorm, ViTBlock
from vitdense.models.vit.sizes import ViTArch
from vitdense.research.pretraining.targets import TARGETS
from vitdense.research.pretraining.teacher import ModelWithTeacher, Teacher


def sine_cosine(grid: tuple[int, int], dim: int, device: torch.device | None = None) -> Tensor:
    """Fixed 2-D position embedding of MAE (He et al., CVPR 2022): sines and cosines of the column, then of the row.

    Args:
        grid: (h, w) in tokens.
        dim: Channels; a multiple of 4.
        device: Of the result.

    Returns:
        ``[1, h, w, dim]``.
    """
    numbers = partial(torch.arange, dtype=torch.float64, device=device)
    frequency = 10000 ** (-numbers(dim // 4) / (dim // 4))  # [dim / 4]
    rows, columns = (torch.outer(numbers(n), frequency) for n in grid)  # [h or w, dim / 4]
    rows, columns = (torch.cat([x.sin(), x.cos()], dim=1) for x in (rows, columns))  # [h or w, dim / 2]
    h, w = grid
    table = torch.cat([columns.expand(h, -1, -1), rows[:, None].expand(-1, w, -1)], dim=-1)  # [h, w, dim]
    return table[None].to(torch.get_default_dtype())  # [1, h, w, dim]


class Decoder(nn.Module):
    """MAE's decoder: mask tokens in place of dropped patches, fixed positions, and a few blocks of a ViT."""

    def __init__(self, dim: int, out: int, embed_dims: int = 512, depth: int = 8, num_heads: int = 16) -> None:
        super().__init__()
        spec = BlockSpec(ViTArch(embed_dims, depth, num_heads))
        self.embed = nn.Linear(dim, embed_dims)
        self.mask_token = nn.Parameter(trunc_normal_(torch.empty(embed_dims), std=0.02))
        self.blocks = nn.ModuleList(ViTBlock(spec, mlp_ratio=4.0) for _ in range(depth))
        self.norm = LayerNorm(embed_dims)
        self.pred = nn.Linear(embed_dims, out)

    def forward(self, x: Tensor, num_extra: int, order: Tensor, grid: tuple[int, int]) -> Tensor:
        """Predict every patch, ``[B, h, w, out]`` for a grid (h, w).

        `x` has `num_extra` tokens, then the visible patches, ``[B, E + n, C]``. `order` has the patch numbers,
        ``[B, h * w]``: of visible patches as in `x`, then of dropped ones.
        """
        extra, x = self.embed(x).tensor_split((num_extra,), dim=1)  # [B, E, D], [B, n, D]
        dropped = self.mask_token.expand(x.shape[0], order.shape[1] - x.shape[1], -1)  # [B, h*w - n, D]
        back = order.argsort(1)[..., None].expand(-1, -1, x.shape[2])  # [B, h*w, D]
        x = torch.cat([x, dropped], dim=1).gather(1, back)  # [B, h*w, D]
        x = x + sine_cosine(grid, x.shape[2], x.device).flatten(1, 2).to(x.dtype)
        x = torch.cat([extra, x], dim=1)  # [B, E + h*w, D]
        for block in self.blocks:
            x = block(x, None, None)
        return self.pred(self.norm(x))[:, num_extra:].unflatten(1, grid)  # [B, h, w, out]


@MODELS.register_module()
class MaskedImageModel(ModelWithTeacher):
    """Learns to predict masked patches of images without labels.

    Without a `decoder` the embeddings of masked patches are replaced by a learned token (BEiT, SimMIM), and a linear
    layer predicts from the backbone's last map. With one, masked patches are dropped, and the decoder predicts from the
    others (MAE). The masks come with the images, from `DrawMask`. Checkpoints are read by the `init_cfg` of the same
    backbone in any model.

    Args:
        backbone: A ViT (``out_norm='final'``) or Swin with its last block or stage as its one output.
        target: ``dict(type='pixels')``, ``dict(type='mean_colour')`` or ``dict(type='words', centres=...)``, with the
            arguments of `PixelTarget`, `MeanColour`, `VisualWords`. Words need the `teacher` that they were found with.
        decoder: Sizes of `Decoder`, or None. With a decoder, positions are fixed sines and cosines, as in MAE.
        teacher, mean, std, data_preprocessor, init_cfg: See `ModelWithTeacher`.
    """

    def __init__(
        self,
        backbone: Mapping | nn.Module,
        target: Mapping,
        decoder: Mapping | None = None,
        teacher: Teacher | Mapping | None = None,
        **options: object,
    ) -> None:
        super().__init__(backbone, teacher, **options)
        self.side = self.backbone.out_strides[-1]
        self._check(target, decoder)
        target = dict(target)
        self.target = TARGETS[target.pop("type")](self.side, **target)
        # Checkpoints of a backbone have the output norms of all stages or none. A ViT's norm belongs to its classifier.
        last = f"norm{self.backbone.out_indices[0]}"
        self.norm = getattr(self.backbone, last)
        setattr(self.backbone, last, nn.Identity())
        dim, channels = self.backbone.out_channels[0], self.target.channels
        if decoder is None:
            self.mask_token = nn.Parameter(trunc_normal_(torch.empty(self.backbone.arch.embed_dims), std=0.02))
            self.decoder = nn.Linear(dim, channels)
        else:
            self.decoder = Decoder(dim, channels, **decoder)
            self._fix_positions()
        self.decoder.apply(init_transformer)

    def _fix_positions(self) -> None:
        """Fix the encoder's positions as in MAE: sines and cosines for patches, zero for tokens."""
        table = self.backbone.absolute_pos_embed.table.requires_grad_(False)
        table.copy_(sine_cosine(tuple(table.shape[1:3]), table.shape[3], table.device))
        for name, parameter in self.backbone.tokens.named_parameters():
            if name.endswith("_position"):
                parameter.requires_grad_(False).zero_()

    def _check(self, target: Mapping, decoder: Mapping | None) -> None:
        backbone, last = self.backbone, len(self.backbone.stage_modules()) - 1
        check_choice("target.type", target.get("type"), TARGETS)
        is_vit = isinstance(backbone, ViT) and backbone.norm is not None and not backbone.output_cls_token
        if not (is_vit or isinstance(backbone, SwinTrunk)) or backbone.out_indices != (last,):
            raise OptionError(
                f"backbone: got a {type(backbone).__name__}, expected a ViT with out_norm='final' and without "
                f"output_cls_token, or a Swin; of either out_indices=[{last}]"
            )
        has_table = hasattr(backbone.absolute_pos_embed, "table") and getattr(backbone, "rope", None) is None
        if decoder is not None and not (is_vit and backbone.tokens and has_table):
            raise OptionError(
                "decoder: masked patches can be dropped only from a ViT with global attention and a table of "
                "positions and no rope; give None"
            )
        if (target["type"] == "words") != (self.teacher is not None):
            raise OptionError(f"teacher: got {self.teacher is not None} with target {target['type']}; words need one")

    def forward(
        self, inputs: Tensor, data_samples: Sequence[BaseDataElement] | None = None, mode: str = "tensor"
    ) -> tuple[Tensor, Tensor] | dict[str, Tensor]:
        """Mask images and predict.

        Args:
            inputs: Normalised images ``[B, 3, H, W]``.
            data_samples: One per image, with the `mask` and `cell` of `DrawMask`.
            mode: ``'loss'`` gives ``{"loss": mean over the masked patches}``; ``'tensor'`` the prediction of every
                whole patch, ``[B, h, w, D]``, and the mask, ``[B, h, w]``.
        """
        mask = self.masks_of(data_samples, inputs)  # [B, h, w]
        prediction = self.predict_patches(inputs, mask)  # [B, h, w, D]
        if mode == "tensor":
            return prediction, mask
        if mode != "loss":
            raise OptionError(f"mode: got {mode!r}, expected 'loss' or 'tensor'; there is nothing to evaluate")
        return {"loss": self.loss_of(prediction, mask, inputs)}

    def masks_of(self, data_samples: Sequence[BaseDataElement] | None, images: Tensor) -> Tensor:
        """The masks of whole patches on the CPU, ``[B, h, w]``, True where masked. Padding is never masked."""
        if not data_samples or not all("mask" in sample for sample in data_samples):
            raise OptionError(
                f"data_samples: expected a mask for every image; add dict(type='vitdense.DrawMask', ratio=0.6, "
                f"cell={self.side}) to the pipeline, after vitdense.TimmTransform"
            )
        cell, *others = {sample.cell for sample in data_samples}
        if others or cell % self.side:
            raise OptionError(
                f"cell: got {[cell, *others]} pixels in a batch, expected one multiple of the backbone's stride "
                f"{self.side}"
            )
        cells, grid = (tuple(n // side for n in images.shape[2:]) for side in (cell, self.side))
        mask = torch.stack([_pad(sample.mask, cells) for sample in data_samples])  # [B, H // cell, W // cell]
        return _pad(_repeat(mask, cell // self.side), grid)  # [B, h, w]

    def predict_patches(self, images: Tensor, mask: Tensor) -> Tensor:
        """The prediction of every whole patch, ``[B, h, w, D]``; see `forward`.

        With a decoder all images have the same number of masked patches.
        """
        x = self.backbone.patch_embed(images)  # [B, h', w', C]
        factor = self.side // self.backbone.patch_embed.patch_size
        masked = _pad(_repeat(mask, factor), tuple(x.shape[1:3]))  # [B, h', w']
        if isinstance(self.decoder, Decoder):
            x = self._encode_visible(x, masked)  # [B, h', w', D]
        else:
            x = torch.where(masked[..., None].to(x.device), self.mask_token, x)  # [B, h', w', C]
            x = self.decoder(self.norm(self.backbone.forward_patches(x)[-1].permute(0, 2, 3, 1)))  # [B, h', w', D]
        return x[:, : mask.shape[1], : mask.shape[2]]

    def _encode_visible(self, x: Tensor, masked: Tensor) -> Tensor:
        visible, *others = (~masked).flatten(1).sum(1).unique().tolist()  # the masks are on the CPU
        if others:
            raise OptionError(
                f"decoder: got images with {[visible, *others]} visible patches in a batch, expected as many in each: "
                f"images of one size, and kind='random' of vitdense.DrawMask"
            )
        order = masked.flatten(1).byte().argsort(dim=1, stable=True).to(x.device)  # [B, h*w], visible patches first
        keep = order[:, :visible, None].expand(-1, -1, x.shape[3])  # [B, n, C]
        tokens = self.backbone.absolute_pos_embed(x).flatten(1, 2).gather(1, keep)  # [B, n, C]
        tokens = self.backbone.prepare_tokens(tokens)  # [B, E + n, C]
        for block in self.backbone.blocks:
            with_cp = self.backbone.with_cp and self.training
            tokens = maybe_checkpoint(block, tokens, None, None, with_cp=with_cp)  # [B, E + n, C]
        tokens = self.backbone.output_norm(len(self.backbone.blocks) - 1)(tokens)
        return self.decoder(tokens, len(self.backbone.tokens), order, tuple(x.shape[1:3]))  # [B, h, w, D]

    def loss_of(self, prediction: Tensor, mask: Tensor, images: Tensor) -> Tensor:
        """Mean loss of the masked patches; for the shapes see `forward`."""
        mask = mask.to(prediction.device)
        target = self.target(self, images)  # [B, h, w, D] or, classes, [B, h, w]
        return (self.target.loss(prediction, target) * mask).sum() / mask.sum()


def _repeat(mask: Tensor, times: int) -> Tensor:
    return mask.repeat_interleave(times, 1).repeat_interleave(times, 2)  # [B, times*h, times*w]


def _pad(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    return F.pad(mask, (0, grid[1] - mask.shape[-1], 0, grid[0] - mask.shape[-2]))  # [..., *grid]
