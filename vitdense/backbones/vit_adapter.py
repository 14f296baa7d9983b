"""ViT-Adapter (Chen et al., ICLR 2023): a convolutional branch beside a plain ViT gives the maps of a pyramid."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from vitdense.backbones.base import Backbone, InitCfg, _warn_unloaded, maybe_checkpoint
from vitdense.backbones.vit import ViT, default_out_indices
from vitdense.layers import blocks
from vitdense.layers.blocks import SyncBatchNorm, init_transformer, max_pool
from vitdense.layers.deformable import DeformableAttention, Grid, References, references
from vitdense.layers.resize import resize_to_stride

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)
STRIDES = (4, 8, 16, 32)
VIT_FEATURES = ("last", "each", None)


def init_conv(module: nn.Module) -> None:
    """Convolutions normal with variance 2 / fan-out and zero bias, as the authors; use with `apply`."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def conv_norm(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
    """3x3 convolution, SyncBN, ReLU."""
    conv = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
    return [conv, SyncBatchNorm(out_channels), nn.ReLU(inplace=True)]


class SpatialPrior(nn.Module):
    """Maps of strides 4, 8, 16 and 32 by convolutions (ViT-Adapter section 3.2).

    Args:
        in_channels: Image channels.
        width: Channels of the stem.
        dim: Channels of the results.
    """

    def __init__(self, in_channels: int, width: int, dim: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *conv_norm(in_channels, width, 2), *conv_norm(width, width, 1), *conv_norm(width, width, 1)
        )
        widths = (width, 2 * width, 4 * width, 4 * width)
        for i, (before, after) in enumerate(pairwise(widths)):
            self.add_module(f"conv{i + 2}", nn.Sequential(*conv_norm(before, after, 2)))
        for i, channels in enumerate(widths):
            self.add_module(f"fc{i + 1}", nn.Conv2d(channels, dim, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Image ``[B, 3, H, W]`` to ``[B, C, ceil(H / s), ceil(W / s)]`` for every stride s."""
        x = x.contiguous(memory_format=torch.channels_last)
        x = max_pool(self.stem(x), kernel=3, stride=2, padding=1)  # [B, width, H/4, W/4]
        maps = [self.fc1(x)]
        for i in (2, 3, 4):
            x = getattr(self, f"conv{i}")(x)  # [B, width', h, w]
            maps.append(getattr(self, f"fc{i}")(x))
        return maps


def to_tokens(x: Tensor) -> Tensor:
    """``[B, C, h, w]`` to ``[B, h*w, C]``."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)  # [B, h*w, C]


def to_maps(x: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Tokens of several maps ``[B, N, C]`` to ``[B, C, h, w]`` each, views."""
    parts = x.split([h * w for h, w in sizes], dim=1)
    return [part.unflatten(1, size).permute(0, 3, 1, 2) for part, size in zip(parts, sizes)]


class DepthwiseConv(nn.Module):
    """One 3x3 depthwise convolution for maps of several strides.

    Args:
        dim: Channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """``[B, N, C]`` to the same; sizes (h, w) of the maps."""
        return torch.cat([to_tokens(self.dwconv(part)) for part in to_maps(x, sizes)], dim=1)


class ConvFFN(nn.Module):
    """Linear, depthwise convolution, GELU, Linear (ViT-Adapter section 3.4, "CFFN").

    Args:
        dim: Channels.
        hidden_dim: Channels between the linear layers.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.dwconv = DepthwiseConv(hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """See `DepthwiseConv`."""
        return self.fc2(F.gelu(self.dwconv(self.fc1(x), sizes)))  # [B, N, C]


class Injector(nn.Module):
    """The trunk's tokens read the adapter's maps (ViT-Adapter section 3.3). It is the identity at the start.

    Args:
        dim: Channels.
        attention: Makes the attention from `num_levels`.
    """

    def __init__(self, dim: int, attention: Callable[..., DeformableAttention]) -> None:
        super().__init__()
        self.query_norm, self.feat_norm = LayerNorm(dim), LayerNorm(dim)
        self.attn = attention(num_levels=len(STRIDES) - 1)
        self.gamma = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, c: Tensor, where: References) -> Tensor:
        """Trunk ``[B, h*w, C]`` and adapter ``[B, N, C]`` to the trunk's new tokens, ``[B, h*w, C]``."""
        return x + self.gamma * self.attn(self.query_norm(x), self.feat_norm(c), where)


class Extractor(nn.Module):
    """The adapter's maps read the trunk's tokens (ViT-Adapter section 3.4).

    Args:
        dim: Channels.
        attention: Makes the attention from `num_levels`.
        hidden_dim: Of the `ConvFFN`.
        drop_path: Stochastic depth of the `ConvFFN`.
    """

    def __init__(
        self, dim: int, attention: Callable[..., DeformableAttention], hidden_dim: int, drop_path: float
    ) -> None:
        super().__init__()
        self.query_norm, self.feat_norm = LayerNorm(dim), LayerNorm(dim)
        self.attn = attention(num_levels=1)
        self.ffn_norm, self.ffn = LayerNorm(dim), ConvFFN(dim, hidden_dim)
        self.ffn.apply(init_transformer)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, c: Tensor, x: Tensor, where: References, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Adapter ``[B, N, C]`` and trunk ``[B, h*w, C]`` to the adapter's new tokens; `sizes` of its maps."""
        c = c + self.attn(self.query_norm(c), self.feat_norm(x), where)
        return c + self.drop_path(self.ffn(self.ffn_norm(c), sizes))


class Interaction(nn.Module):
    """What frames some blocks of the trunk: an injector before them, extractors after them (ViT-Adapter figure 4).

    Args:
        injector: Before the blocks.
        extractors: After them, one or more.
    """

    def __init__(self, injector: Injector, extractors: Sequence[Extractor]) -> None:
        super().__init__()
        self.injector, self.extractor = injector, extractors[0]
        self.extra_extractors = nn.ModuleList(extractors[1:])


class ViTAdapter(Backbone):
    """Four maps of strides 4, 8, 16 and 32 from a plain ViT and an adapter, for an image of any size.

    Maps have the sizes that their strides round up to. For sides that are multiples of 32 and patches of 16 pixels this
    is the authors' model; other sizes, which their code does not run, and patches are aligned by pixels. A class token
    and other extra tokens of the trunk go through its blocks; the authors' models have none (``with_cls_token=False``).
    A frozen trunk (its `frozen_stages` is its depth) gets no gradients, but passes them to the injectors.

    Args:
        trunk: A `ViT` without output norms and with all its blocks, or its arguments, also with
            ``type='vitdense.ViT'``; from arguments, `out_norm` is ``'none'``. Its weights load by its own `init_cfg`.
        interaction_indexes: First and last block (from 0) of every interaction, in order, all blocks; quarters of the
            depth when None.
        conv_inplane: Channels of the convolutional stem.
        n_points: Points per head and level of deformable attention.
        deform_num_heads: Its heads. Authors: 6 for tiny and small, 12 for base, 16 for large.
        deform_ratio: Channels of its values over the trunk's. Authors: 1.0, from base 0.5.
        cffn_ratio: Hidden width of the extractors' MLPs over the trunk's channels.
        use_extra_extractor: Whether the last interaction has two more extractors.
        vit_feature: Map of the trunk that is added to the outputs: ``'last'``, as the authors' detection code;
            ``'each'``, to output i that after interaction i, as their segmentation code; None for none.
        drop_path_rate: Stochastic depth of the extractors' MLPs, but extra ones. Authors: that of the trunk.
        with_cp: Recompute the activations of injectors and extractors in the backward pass. The trunk has its own.
        init_cfg: A checkpoint of a whole ViT-Adapter; see `Backbone`.

    Raises:
        ValueError: A trunk of another kind, or options that do not fit together.
    """

    family = "vit_adapter"

    def __init__(
        self,
        trunk: Mapping[str, Any] | ViT,
        interaction_indexes: Sequence[Sequence[int]] | None = None,
        conv_inplane: int = 64,
        n_points: int = 4,
        deform_num_heads: int = 6,
        deform_ratio: float = 1.0,
        cffn_ratio: float = 0.25,
        use_extra_extractor: bool = True,
        vit_feature: str | None = "last",
        drop_path_rate: float = 0.1,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.trunk = make_trunk(trunk)
        self.arch, self.with_cp, self.vit_feature = self.trunk.arch, with_cp, vit_feature
        dim, depth = self.arch.embed_dims, self.arch.depth
        if interaction_indexes is None:
            lasts = default_out_indices(depth)
            interaction_indexes = [(before + 1, last) for before, last in pairwise((-1, *lasts))]
        self.interaction_indexes = tuple(tuple(pair) for pair in interaction_indexes)
        covered = [i for first, last in self.interaction_indexes for i in range(first, last + 1)]
        if covered != list(range(depth)) or any(first > last for first, last in self.interaction_indexes):
            raise ValueError(
                f"interaction_indexes: got {interaction_indexes}, expected (first, last) blocks that follow each other "
                f"and cover 0 to {depth - 1}"
            )
        if vit_feature not in VIT_FEATURES:
            raise ValueError(f"vit_feature: got {vit_feature!r}, expected one of {VIT_FEATURES}")
        if vit_feature == "each" and len(self.interaction_indexes) != len(STRIDES):
            raise ValueError(
                f"vit_feature: got 'each' with {len(self.interaction_indexes)} interactions, expected {len(STRIDES)}, "
                f"one for each output; set vit_feature='last'"
            )
        stem = next(module for module in self.trunk.patch_embed.modules() if isinstance(module, nn.Conv2d))
        attention = partial(DeformableAttention, dim, deform_num_heads, num_points=n_points, ratio=deform_ratio)
        extractor = partial(Extractor, dim, attention, int(dim * cffn_ratio))
        self.spm = SpatialPrior(stem.in_channels, conv_inplane, dim)
        self.level_embed = nn.Parameter(torch.randn(len(STRIDES) - 1, dim))
        self.interactions = nn.ModuleList()
        for _, last in self.interaction_indexes:
            num_extra = 2 * (use_extra_extractor and last == depth - 1)
            extractors = [extractor(drop_path_rate), *(extractor(0.0) for _ in range(num_extra))]
            self.interactions.append(Interaction(Injector(dim, attention), extractors))
        self.up = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        for part in (self.spm, self.interactions, self.up):
            part.apply(init_conv)
        self.build_outputs_and_freeze(
            dims=[dim] * len(STRIDES),
            strides=STRIDES,
            out_indices=range(len(STRIDES)),
            frozen_stages=-1,
            finetune=None,
            norm=SyncBatchNorm,
        )
        if self.trunk._names_weights():
            self.register_forward_pre_hook(_warn_unloaded_trunk)

    def stem_modules(self) -> list[nn.Module]:
        return self.trunk.stem_modules()

    def stage_modules(self) -> nn.ModuleList:
        return self.trunk.stage_modules()

    def unused_modules(self) -> list[nn.Module]:
        return []

    def layers(self) -> list[list[nn.Module]]:
        return self.trunk.layers()

    def init_weights(self) -> None:
        """Load the `init_cfg` of the adapter, a whole ViT-Adapter, or else that of its trunk; see `Backbone`."""
        super().init_weights()
        if not self._names_weights():
            self.trunk.init_weights()
            self.cfg = self.trunk.cfg

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Image ``[B, 3, H, W]`` to ``[B, C, ceil(H / s), ceil(W / s)]`` for the strides s of 4, 8, 16 and 32."""
        finest, *maps = self.spm(x)  # [B, C, h_i, w_i]
        sizes = [(c.shape[2], c.shape[3]) for c in maps]
        c = torch.cat([to_tokens(c) + level for c, level in zip(maps, self.level_embed)], dim=1)  # [B, N, C]
        x, size, steps = self.trunk.unroll(self.trunk.patch_embed(x))  # [B, E + h*w, C]
        stride = self.trunk.out_strides[0]
        levels: tuple[Grid, ...] = tuple((*size, stride) for size, stride in zip(sizes, STRIDES[1:]))
        to_levels = references(x, ((*size, stride),), levels)
        to_trunk = references(x, levels, ((*size, stride),))
        run = partial(maybe_checkpoint, with_cp=self.with_cp and self.training)
        features = []
        for interaction, (first, last) in zip(self.interactions, self.interaction_indexes):
            extra, x = self.split(x)  # [B, E, C], [B, h*w, C]
            x = torch.cat([extra, run(interaction.injector, x, c, to_levels)], dim=1)  # [B, E + h*w, C]
            for step in steps[first : last + 1]:
                x = step(x)  # [B, E + h*w, C]
            features.append(self.split(x)[1])
            for extractor in (interaction.extractor, *interaction.extra_extractors):
                c = run(extractor, c, features[-1], to_trunk, sizes)  # [B, N, C]
        maps = to_maps(c, sizes)
        h, w = finest.shape[2:]
        outs = [finest + self.up(maps[0])[..., :h, :w], *maps]
        if self.vit_feature:
            features = features if self.vit_feature == "each" else [features[-1]] * len(outs)
            outs = [
                out + resize_to_stride(to_maps(x, [size])[0], stride, out_stride, (out.shape[2], out.shape[3]))
                for out, x, out_stride in zip(outs, features, STRIDES)
            ]
        return tuple(self.output_norm(i)(out) for i, out in enumerate(outs))  # [B, C, h_i, w_i]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the trunk ``[B, E + h*w, C]`` as the extra ones and those of the map."""
        num_extra = 0 if self.trunk.tokens is None else len(self.trunk.tokens)
        return x[:, :num_extra], x[:, num_extra:]  # [B, E, C], [B, h*w, C]


def make_trunk(trunk: Mapping[str, Any] | ViT) -> ViT:
    """The trunk of a `ViTAdapter` from its arguments, or as it is.

    Raises:
        ValueError: It is not a `ViT`, or has outputs of its own.
    """
    if not isinstance(trunk, ViT):
        options = {"type": "vitdense.ViT", "out_norm": "none", **trunk}
        if (kind := options.pop("type")) not in ("vitdense.ViT", "ViT"):
            raise ValueError(f"trunk: got type {kind!r}, expected 'vitdense.ViT'")
        trunk = ViT(**options)
    if any(True for i in trunk.out_indices for _ in trunk.output_norm(i).parameters()):
        raise ValueError("trunk: got a ViT with output norms, which would not be used; set out_norm='none'")
    if trunk.output_cls_token or trunk.out_indices[-1] != trunk.arch.depth - 1:
        raise ValueError(
            f"trunk: got output_cls_token={trunk.output_cls_token}, out_indices={trunk.out_indices}; expected False, and "
            f"the last block among the outputs: leave both out"
        )
    return trunk


def _warn_unloaded_trunk(model: ViTAdapter, *_: Any) -> None:
    """Forward pre-hook: the trunk is not called as a whole, so its own hook would not run."""
    if model.trunk.unloaded_warning.id in model.trunk._forward_pre_hooks:
        _warn_unloaded(model.trunk)
