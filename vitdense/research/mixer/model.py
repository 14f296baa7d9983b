"""Isotropic MLP backbones for dense prediction: MLP-Mixer (Tolstikhin et al., NeurIPS 2021), ResMLP (Touvron et al.,
TPAMI 2022) and gMLP (Liu et al., NeurIPS 2021).

Their token layers fit one number of tokens, that of pretraining. `Mixer` takes images of any size by one of two rules.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers import blocks
from vitdense.layers.blocks import Mlp, PatchEmbed, init_transformer
from vitdense.layers.layout import Resampling, Windows, compute_dtype, resampled_window_layout, window_layout
from vitdense.models.base import Backbone, InitCfg, as_pair, maybe_checkpoint
from vitdense.models.registry import find_arch
from vitdense.models.vit.model import default_out_indices
from vitdense.research.mixer.sizes import MIXER, MixerArch

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)
TRANSFERS = {"windows": window_layout, "resize": resampled_window_layout}


def mix_tokens(layer: Callable[[Tensor], Tensor], x: Tensor, windows: Windows | Resampling) -> Tensor:
    """Apply a layer over the tokens of every window, channel by channel.

    Args:
        layer: ``[..., N]`` to the same.
        x: Normalised map, ``[B, H, W, C]``. It is padded with zeros to whole windows.
        windows: Partition of the map.

    Returns:
        ``[B, H, W, C]``.
    """
    x = windows.partition(x.to(compute_dtype(x)))  # [B*nW, N, C]
    return windows.unpartition(layer(x.transpose(1, 2)).transpose(1, 2))  # [B, H, W, C]


class Affine(nn.Module):
    """A learned factor and offset per channel, which ResMLP has in place of norms (section 2).

    Args:
        dim: Channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to the same."""
        return torch.addcmul(self.beta, self.alpha, x)


class MixerBlock(nn.Module):
    """Token-mixing MLP, then channel MLP, each on a branch after LayerNorm over the channels (MLP-Mixer section 2).

    Args:
        arch: Sizes.
        tokens: Tokens per window.
        drop_path: Stochastic depth.
    """

    def __init__(self, arch: MixerArch, tokens: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(arch.embed_dims)
        self.mlp_tokens = Mlp(tokens, arch.embed_dims // 2)
        self.norm2 = LayerNorm(arch.embed_dims)
        self.mlp_channels = Mlp(arch.embed_dims, int(arch.embed_dims * arch.mlp_ratio))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.apply(init_transformer)

    def forward(self, x: Tensor, windows: Windows | Resampling) -> Tensor:
        """``[B, H, W, C]`` to the same; see `mix_tokens`."""
        x = x + self.drop_path(mix_tokens(self.mlp_tokens, self.norm1(x), windows))
        return x + self.drop_path(self.mlp_channels(self.norm2(x)))


class ResMlpBlock(nn.Module):
    """One linear layer over the tokens, then a channel MLP, with `Affine` and LayerScale (ResMLP section 2).

    Args: see `MixerBlock`.
    """

    def __init__(self, arch: MixerArch, tokens: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = Affine(arch.embed_dims)
        self.linear_tokens = nn.Linear(tokens, tokens)
        self.gamma_1 = nn.Parameter(torch.full((arch.embed_dims,), arch.layer_scale))
        self.norm2 = Affine(arch.embed_dims)
        self.mlp_channels = Mlp(arch.embed_dims, int(arch.embed_dims * arch.mlp_ratio))
        self.gamma_2 = nn.Parameter(torch.full((arch.embed_dims,), arch.layer_scale))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.apply(init_transformer)

    def forward(self, x: Tensor, windows: Windows | Resampling) -> Tensor:
        """``[B, H, W, C]`` to the same; see `mix_tokens`."""
        x = x + self.drop_path(self.gamma_1 * mix_tokens(self.linear_tokens, self.norm1(x), windows))
        return x + self.drop_path(self.gamma_2 * self.mlp_channels(self.norm2(x)))


class GMlpBlock(nn.Module):
    """A channel MLP. Half of its hidden channels, mixed over the tokens, multiply the other half (gMLP section 2).

    Args: see `MixerBlock`.
    """

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
        # At first the gate is one everywhere, and mixes nothing.
        nn.init.normal_(self.linear_tokens.weight, std=1e-6)
        nn.init.ones_(self.linear_tokens.bias)

    def forward(self, x: Tensor, windows: Windows | Resampling) -> Tensor:
        """``[B, H, W, C]`` to the same; see `mix_tokens`."""
        y, gate = F.gelu(self.fc1(self.norm1(x))).chunk(2, dim=-1)  # [B, H, W, half] each
        gate = mix_tokens(self.linear_tokens, self.gate_norm(gate), windows)
        return x + self.drop_path(self.fc2(y * gate))  # [B, H, W, C]


BLOCKS = {"mixer": MixerBlock, "resmlp": ResMlpBlock, "gmlp": GMlpBlock}


class Mixer(Backbone):
    """MLP-Mixer, ResMLP or gMLP: maps of one stride, that of the patches, from an image of any size.

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
        pretrain_img_size: Image size in pixels, one int or (h, w), of whole patches, whose grid the token layers have.
        out_indices: Blocks whose maps to return, counted from 0; the last of every quarter when None.
        frozen_stages: -1 nothing, 0 patch embedding, n also the first n blocks with their norms.

    Raises:
        ValueError: An unknown arch or rule, or sizes that do not fit together.
    """

    family = "mixer"

    def __init__(
        self,
        arch: str | Mapping = "mixer_base_16",
        in_channels: int = 3,
        transfer: str = "windows",
        drop_path_rate: float = 0.1,
        pretrain_img_size: int | Sequence[int] = 224,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int | str = -1,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.arch = find_arch(arch, MIXER)
        dim, depth, patch = self.arch.embed_dims, self.arch.depth, self.arch.patch_size
        if transfer not in TRANSFERS:
            raise OptionError(f"transfer: got {transfer!r}, expected one of {', '.join(map(repr, TRANSFERS))}")
        image = as_pair(pretrain_img_size, "pretrain_img_size")
        if image[0] % patch or image[1] % patch:
            raise OptionError(f"pretrain_img_size: got {image[0]}x{image[1]}, expected whole patches of {patch} pixels")
        self.grid = image[0] // patch, image[1] // patch
        self.transfer, self.with_cp = transfer, with_cp
        self.patch_embed = PatchEmbed(in_channels, dim, patch, norm=False)
        block = partial(BLOCKS[self.arch.block], self.arch, self.grid[0] * self.grid[1])
        self.blocks = nn.ModuleList(block(drop_path_rate * i / max(depth - 1, 1)) for i in range(depth))
        self.build_outputs_and_freeze(
            dims=[dim] * depth,
            strides=[patch] * depth,
            out_indices=default_out_indices(depth) if out_indices is None else out_indices,
            frozen_stages=frozen_stages,
            finetune=None,
            norm=LayerNorm,
        )

    def stem_modules(self) -> list[nn.Module]:
        return [self.patch_embed]

    def stage_modules(self) -> nn.ModuleList:
        return self.blocks

    def layers(self) -> list[list[nn.Module]]:
        return [self.stem_modules(), *([block] for block in self.blocks[: self.out_indices[-1] + 1])]

    def forward_patches(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.contiguous()  # [B, h, w, C]
        windows = TRANSFERS[self.transfer](x, self.grid)
        outs = []
        for i, block in enumerate(self.blocks[: self.out_indices[-1] + 1]):
            x = maybe_checkpoint(block, x, windows, with_cp=self.with_cp and self.training)  # [B, h, w, C]
            if i in self.out_indices:
                outs.append(self.output(x, i))  # [B, C, h, w]
        return tuple(outs)
