"""A plain ViT whose windows are parts of the image, with a class token in each: the trunk of RF-DETR and LW-DETR."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from vitdense.errors import OptionError
from vitdense.layers.blocks import pad_to_multiple
from vitdense.layers.layout import copied
from vitdense.layers.rope import Rotation
from vitdense.models.base import check_image, maybe_checkpoint
from vitdense.models.vit.model import ViT, ViTBlock
from vitdense.models.vit.sizes import VIT, ViTArch

# LW-DETR Table 1 and the authors' code; all have twelve heads.
_lwdetr = partial(ViTArch, num_heads=12, layer_scale=0.1, class_token=False, qkv_bias="no_key")


class WindowedViT(ViT):
    """A `ViT` on `num_windows` x `num_windows` windows of the image (RF-DETR, arXiv 2511.09554; LW-DETR, 2406.03459).

    A window is a part of the image, not a number of tokens: a larger image has larger windows. Class token and
    registers, with their positions, are in every window. Blocks attend within windows. In blocks of `global_indices`
    all tokens of an image attend together, including the class tokens of all windows. Tokens stay in the order of
    windows from the first block to the last, so that windows cost nothing.

    An image of any size is padded right and bottom to whole patches in every window. Learned positions are resized to
    the padded map; rotary ones refer to the map. Arguments not listed here: see `ViT`; windows of tokens, relative
    positions and `output_cls_token` are refused.

    Args:
        arch: See `ViT`; also ``'rfdetr_small'`` and, without class token, ``'lwdetr_tiny'``, ``'lwdetr_small'``,
            ``'lwdetr_medium'``.
        num_windows: Windows along a side; 1 for none.
        global_indices: Blocks without windows; None for the block after each output: 3, 6 and 9 of 12 with the outputs
            2, 5, 8 and 11, as RF-DETR has it.
    """

    archs: Mapping[str, ViTArch] = {
        **VIT,
        # As DINOv2, but learned positions are resized by another rule.
        "rfdetr_small": replace(VIT["dinov2_small"], patch_size=16, position_rule="antialias"),
        "lwdetr_tiny": _lwdetr(192, 6, taps=(1, 3, 5)),
        "lwdetr_small": _lwdetr(192, 10, taps=(2, 4, 5, 9)),
        "lwdetr_medium": _lwdetr(384, 10, taps=(2, 4, 5, 9)),
    }
    refused: ClassVar = {"window_size": None, "relative_position": False, "output_cls_token": False}

    def __init__(
        self,
        arch: str | Mapping = "rfdetr_small",
        *,
        num_windows: int = 2,
        global_indices: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(num_windows, int) or num_windows < 1:
            raise OptionError(f"num_windows: got {num_windows!r}, expected a number of windows along a side")
        for name, default in self.refused.items():
            if options.get(name, default) != default:
                raise OptionError(f"{name}: windows are parts of the image here; leave it out, or use vitdense.ViT")
        super().__init__(arch, **{"out_norm": "shared", "drop_path_rate": 0.0, **options})
        depth = len(self.blocks)
        self.num_windows = num_windows
        self.global_indices = tuple(i + 1 for i in self.out_indices[:-1]) if global_indices is None else global_indices
        if wrong := [i for i in self.global_indices if not 0 <= i < depth]:
            raise OptionError(f"global_indices: got {wrong}, expected blocks from 0 to {depth - 1}")

    def embed(self, x: Tensor) -> Tensor:
        """Patches of an image padded to whole patches in every window."""
        x = check_image(x, self)
        return super().embed(pad_to_multiple(x, self.arch.patch_size * self.num_windows))

    def unroll(self, x: Tensor) -> tuple[Tensor, tuple[int, int], list[Callable[[Tensor], Tensor]]]:
        """As `ViT.unroll`, with tokens ``[B * windows, E + n, C]``, E extra ones before the n of a window."""
        x = self.absolute_pos_embed(x)  # [B, h, w, C]
        size = x.shape[1], x.shape[2]
        inside, joined = self.rotations(x)
        used = [*self.blocks][: self.out_indices[-1] + 1]  # no slice of a ModuleList, of other names in programs
        x = self.prepare_tokens(self.cut(x))  # [B * windows, E + n, C]
        steps = [
            partial(self.attend_jointly, block, joined)
            if i in self.global_indices
            else partial(self.run, block, inside)
            for i, block in enumerate(used)
        ]
        return x, size, steps

    def run(self, block: ViTBlock, rotation: Rotation | None, x: Tensor) -> Tensor:
        """A block within the rows of ``[B, N, C]``."""
        return maybe_checkpoint(block, x, None, None, rotation, with_cp=self.with_cp and self.training)

    def attend_jointly(self, block: ViTBlock, rotation: Rotation | None, x: Tensor) -> Tensor:
        """A block over all windows of an image, of ``[B * windows, E + n, C]``."""
        windows = self.num_windows**2
        x = self.run(block, rotation, x.unflatten(0, (-1, windows)).flatten(1, 2))  # [B, windows * (E + n), C]
        return x.unflatten(1, (windows, -1)).flatten(0, 1)  # [B * windows, E + n, C]

    def rotations(self, x: Tensor) -> tuple[Rotation | None, Rotation | None]:
        """Rotary positions of a map ``[B, h, w, C]`` for blocks with windows, and for blocks without."""
        if self.rope is None:
            return None, None
        whole, num_extra = self.rope(x, None, 0), 0 if self.tokens is None else len(self.tokens)
        parts = []
        for turns, no_turn in ((whole.cos, 1.0), (whole.sin, 0.0)):
            turns = self.cut(turns.flatten(2).unflatten(1, x.shape[1:3]))  # [windows, n, d]
            parts.append(F.pad(turns, (0, 0, num_extra, 0), value=no_turn)[:, :, None, None])  # [windows, E+n, 1, 1, d]
        return tuple(
            Rotation(*each, whole.neighbours) for each in (parts, [part.flatten(0, 1)[None] for part in parts])
        )

    def cut(self, x: Tensor) -> Tensor:
        """A map ``[B, h, w, C]`` to windows, row by row, ``[B * windows, n, C]``."""
        side = self.num_windows
        x = x.unflatten(2, (side, -1)).unflatten(1, (side, -1)).transpose(2, 3)  # [B, side, side, h/side, w/side, C]
        return copied(x).flatten(3, 4).flatten(0, 2)  # [B * windows, n, C]

    def to_feature_map(self, x: Tensor, size: tuple[int, int], index: int) -> Tensor:
        """Map ``[B, C, h, w]`` of tokens ``[B * windows, E + n, C]``."""
        side, extra = self.num_windows, 0 if self.tokens is None else len(self.tokens)
        x = x[:, extra:].unflatten(1, (size[0] // side, size[1] // side)).unflatten(0, (-1, side, side))
        return self.output(copied(x.transpose(2, 3)).flatten(3, 4).flatten(1, 2), index)  # [B, C, h, w]
