"""Isotropic MLP backbones for dense prediction: MLP-Mixer (Tolstikhin et al., NeurIPS 2021), ResMLP (Touvron et al.,
TPAMI 2022) and gMLP (Liu et al., NeurIPS 2021).

Their token layers fit the number of tokens in pretraining. `Mixer` takes images of any size by one of two rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.families import find_arch
from vitdense.layers import blocks
from vitdense.layers.blocks import DropPath, Mlp, PatchEmbed, add_layer_scale, init_transformer, scaled
from vitdense.layers.layout import Windows, cached_by_size, compute_dtype, copied, resample, window_layout
from vitdense.models.base import Backbone, as_pair, drop_path_rates, maybe_checkpoint
from vitdense.models.vit.model import default_out_indices
from vitdense.research.mixer.sizes import MIXER, MixerArch
from vitdense.research.swin_mixer.resize import bicubic_weights

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)


@dataclass(frozen=True)
class Resampling:
    """Resizes a map to a single window of fixed size, and back.

    A linear map W over the tokens of the window becomes ``(S / S') R W R^T``, where the map has S' tokens, the window S
    and R is the bicubic resize. Inputs and outputs of W are resized as grids, and a mean stays a mean.
    """

    rows: Tensor  # R, [h, wh]
    columns: Tensor  # [w, ww]
    rows_back: Tensor  # the transpose of rows times h / wh, [wh, h]
    columns_back: Tensor  # [ww, w]

    def partition(self, x: Tensor) -> Tensor:
        """Map ``[B, h, w, C]`` to windows ``[B, N, C]``."""
        return resample(x, self.rows_back, self.columns_back).flatten(1, 2)  # [B, wh*ww, C]

    def unpartition(self, windows: Tensor) -> Tensor:
        """Windows ``[B, N, C]`` to the map ``[B, h, w, C]``."""
        grid = self.rows.shape[1], self.columns.shape[1]
        return resample(copied(windows).unflatten(1, grid), self.rows, self.columns)  # [B, h, w, C]


def resampled_window_layout(x: Tensor, window: tuple[int, int]) -> Windows | Resampling:
    """A map ``[B, h, w, C]`` as one window (h, w) of tokens, resized where the sizes differ."""
    size = x.shape[1], x.shape[2]
    if not torch.compiler.is_compiling() and size == window:
        return window_layout(x, window)
    (rows, rows_back), (columns, columns_back) = (_resampling(x, *pair) for pair in zip(window, size))
    return Resampling(rows, columns, rows_back, columns_back)


@cached_by_size
def _resampling(old: int, new: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The resize of an axis, ``[new, old]``, and back, ``[old, new]``; see `Resampling`."""
    weights = bicubic_weights(old, new, device, torch.promote_types(dtype, torch.float32))  # [new, old]
    return weights.to(dtype), (weights.T * (old / new)).to(dtype)


# How token layers take maps of another size than in pretraining; see `Mixer`.
TRANSFERS = {"windows": window_layout, "resize": resampled_window_layout}


def mix_tokens(layer: Callable[[Tensor], Tensor], x: Tensor, windows: Windows | Resampling) -> Tensor:
    """Apply a layer ``[..., N]`` over the tokens of every window of a normalised map ``[B, H, W, C]``, per channel.

    The map is padded with zeros to whole windows.
    """
    x = windows.partition(x.to(compute_dtype(x)))  # [B*nW, N, C]
    return windows.unpartition(layer(x.transpose(1, 2)).transpose(1, 2))  # [B, H, W, C]


class Affine(nn.Module):
    """A learned factor and offset per channel, in place of norms (ResMLP section 2)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to the same."""
        return torch.addcmul(self.beta, self.alpha, x)


class MixerBlock(nn.Module):
    """Token-mixing MLP, then channel MLP, each on a branch after LayerNorm over the channels (MLP-Mixer section 2)."""

    norm: Callable[[int], nn.Module] = LayerNorm
    mixer = "mlp_tokens"  # name of the layer over the tokens

    def __init__(self, arch: MixerArch, tokens: int, drop_path: float) -> None:
        super().__init__()
        dim = arch.embed_dims
        self.norm1 = self.norm(dim)
        self.add_module(self.mixer, self.make_mixer(tokens, dim))
        self.norm2 = self.norm(dim)
        self.mlp_channels = Mlp(dim, int(dim * arch.mlp_ratio))
        add_layer_scale(self, dim, arch.layer_scale)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.apply(init_transformer)

    def make_mixer(self, tokens: int, dim: int) -> nn.Module:
        """The layer over the tokens, ``[..., N]`` to the same."""
        return Mlp(tokens, dim // 2)

    def forward(self, x: Tensor, windows: Windows | Resampling) -> Tensor:
        """``[B, H, W, C]`` to the same; see `mix_tokens`."""
        y = mix_tokens(getattr(self, self.mixer), self.norm1(x), windows)  # [B, H, W, C]
        x = x + self.drop_path(scaled(y, self.gamma_1))
        return x + self.drop_path(scaled(self.mlp_channels(self.norm2(x)), self.gamma_2))


class ResMlpBlock(MixerBlock):
    """One linear layer over the tokens, then a channel MLP, with `Affine` and LayerScale (ResMLP section 2)."""

    norm, mixer = Affine, "linear_tokens"

    def make_mixer(self, tokens: int, dim: int) -> nn.Module:
        return nn.Linear(tokens, tokens)


class GMlpBlock(nn.Module):
    """A channel MLP. Half of its hidden channels, mixed over the tokens, multiply the other half (gMLP section 2)."""

    def __init__(self, arch: MixerArch, tokens: int, drop_path: float) -> None:
        super().__init__()
        half = int(arch.embed_dims * arch.mlp_ratio) // 2
        self.norm1 = LayerNorm(arch.embed_dims)
        self.fc1 = nn.Linear(arch.embed_dims, 2 * half)
        self.gate_norm = blocks.LayerNorm(half)
        self.linear_tokens = nn.Linear(tokens, tokens)
        self.fc2 = nn.Linear(half, arch.embed_dims)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.apply(init_transformer)
        # The gate starts as one everywhere.
        nn.init.normal_(self.linear_tokens.weight, std=1e-6)
        nn.init.ones_(self.linear_tokens.bias)

    def forward(self, x: Tensor, windows: Windows | Resampling) -> Tensor:
        """``[B, H, W, C]`` to the same; see `mix_tokens`."""
        y, gate = F.gelu(self.fc1(self.norm1(x))).chunk(2, dim=-1)  # [B, H, W, half] each
        gate = mix_tokens(self.linear_tokens, self.gate_norm(gate), windows)
        return x + self.drop_path(self.fc2(y * gate))  # [B, H, W, C]


BLOCKS = {"mixer": MixerBlock, "resmlp": ResMlpBlock, "gmlp": GMlpBlock}


class Mixer(Backbone):
    """MLP-Mixer, ResMLP or gMLP: maps of one stride, the side of a patch, from an image of any size.

    The image is padded right and bottom to whole patches. At the size of pretraining both rules of `transfer` are the
    published model; at other sizes they differ. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'mixer_small_32'``, ``'mixer_small_16'``, ``'mixer_base_32'``, ``'mixer_base_16'``,
            ``'mixer_large_32'``, ``'mixer_large_16'``, ``'mixer_huge_14'``; ``'resmlp_small_12'``,
            ``'resmlp_small_24'``, ``'resmlp_small_36'``, ``'resmlp_base_24'``; ``'gmlp_tiny'``, ``'gmlp_small'``,
            ``'gmlp_base'``; or a dict of the fields of `MixerArch`.
        transfer: How token layers take maps of other sizes. ``'windows'``: they run in windows of the pretraining grid
            (at integer multiples of it, the rule of MLP-Mixer appendix C). ``'resize'``: their weights and biases are
            resized bicubically to the whole map.
        pretrain_img_size: Image size of pretraining in pixels, one int or (h, w), in whole patches.
        out_indices: Blocks whose maps to return, counted from 0; the last of every quarter when None.
        frozen_stages: See `Backbone`; a stage is a block.
    """

    family = "mixer"

    def __init__(
        self,
        arch: str | Mapping = "mixer_base_16",
        *,
        transfer: str = "windows",
        drop_path_rate: float = 0.1,
        pretrain_img_size: int | Sequence[int] = 224,
        out_indices: Sequence[int] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, out_indices=out_indices, **common)
        self.arch = find_arch(arch, MIXER)
        dim, depth, patch = self.arch.embed_dims, self.arch.depth, self.arch.patch_size
        check_choice("transfer", transfer, TRANSFERS)
        image = as_pair(pretrain_img_size, "pretrain_img_size")
        if image[0] % patch or image[1] % patch:
            raise OptionError(f"pretrain_img_size: got {image[0]}x{image[1]}, expected whole patches of {patch} pixels")
        self.grid = image[0] // patch, image[1] // patch
        self.transfer = transfer
        self.patch_embed = PatchEmbed(self.in_channels, dim, patch, norm=None)
        block = partial(BLOCKS[self.arch.block], self.arch, self.grid[0] * self.grid[1])
        self.blocks = nn.ModuleList(block(rate) for rate in drop_path_rates(drop_path_rate, depth))
        self.out_indices = default_out_indices(depth) if out_indices is None else out_indices
        self.build_outputs_and_freeze([dim] * depth, [patch] * depth, LayerNorm)

    def stem_modules(self) -> list[nn.Module]:
        return [self.patch_embed]

    def stage_modules(self) -> nn.ModuleList:
        return self.blocks

    def unroll(self, x: Tensor) -> tuple[Tensor, tuple[int, int], list[Callable[[Tensor], Tensor]]]:
        """See `Backbone`."""
        x = x.contiguous()  # [B, h, w, C]
        windows, with_cp = TRANSFERS[self.transfer](x, self.grid), self.with_cp and self.training

        def step(block: nn.Module, x: Tensor) -> Tensor:
            return maybe_checkpoint(block, x, windows, with_cp=with_cp)  # [B, h, w, C]

        used = [*self.blocks][: self.out_indices[-1] + 1]
        return x, (x.shape[1], x.shape[2]), [partial(step, block) for block in used]
