"""ViT-Adapter (Chen et al., ICLR 2023): a plain ViT and parallel convolutions that give the maps of a pyramid."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import DropPath, SyncBatchNorm, init_conv, init_transformer, max_pool
from vitdense.layers.deformable import DeformableAttention, References, references
from vitdense.layers.resize import crop, resize_to_stride
from vitdense.models.base import Backbone, InitCfg, _warn_unloaded, check_image, maybe_checkpoint
from vitdense.models.vit.model import LayerNorm, ViT

STRIDES = (4, 8, 16, 32)
Sizes = Sequence[tuple[int, int]]  # (h, w) of maps whose tokens are concatenated


def to_tokens(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).flatten(1, 2)  # [B, h*w, C]


def to_maps(x: Tensor, sizes: Sizes) -> list[Tensor]:
    """Tokens of several maps ``[B, N, C]`` to ``[B, C, h, w]`` each."""
    parts = x.split([h * w for h, w in sizes], dim=1)
    return [part.unflatten(1, size).permute(0, 3, 1, 2) for part, size in zip(parts, sizes)]


def convolutions(channels: Iterable[int], strides: Sequence[int]) -> nn.Sequential:
    """3x3 convolutions, SyncBN and ReLU after each."""
    layers = []
    for (n, m), stride in zip(pairwise(channels), strides):
        layers += [nn.Conv2d(n, m, 3, stride, padding=1, bias=False), SyncBatchNorm(m), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class SpatialPrior(nn.Module):
    """Maps of strides 4, 8, 16 and 32 with `dim` channels by convolutions of `width` to 4 `width` (section 3.2)."""

    def __init__(self, in_channels: int, width: int, dim: int) -> None:
        super().__init__()
        self.stem = convolutions((in_channels, width, width, width), (2, 1, 1))
        widths = (width, 2 * width, 4 * width, 4 * width)
        self.conv2, self.conv3, self.conv4 = (convolutions(pair, (2,)) for pair in pairwise(widths))
        self.fc1, self.fc2, self.fc3, self.fc4 = (nn.Conv2d(n, dim, 1) for n in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Image ``[B, 3, H, W]`` to ``[B, C, ceil(H / s), ceil(W / s)]`` for every stride s."""
        x = self.stem(x.contiguous(memory_format=torch.channels_last))  # [B, width, H/2, W/2]
        x = max_pool(x, kernel=3, stride=2, padding=1)  # [B, width, H/4, W/4]
        x2 = self.conv2(x)  # [B, 2*width, H/8, W/8]
        x3 = self.conv3(x2)  # [B, 4*width, H/16, W/16]
        return [self.fc1(x), self.fc2(x2), self.fc3(x3), self.fc4(self.conv4(x3))]


class ConvFFN(nn.Module):
    """An MLP with a depthwise convolution before its GELU, the same for maps of all strides (section 3.4, "CFFN")."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        conv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)
        self.dwconv = nn.ModuleDict({"dwconv": conv})  # the authors' name
        self.apply(init_transformer)

    def forward(self, x: Tensor, sizes: Sizes) -> Tensor:
        """``[B, N, C]`` to the same."""
        maps = [self.dwconv["dwconv"](part) for part in to_maps(self.fc1(x), sizes)]  # [B, hidden_dim, h, w]
        return self.fc2(F.gelu(torch.cat([to_tokens(part) for part in maps], dim=1)))  # [B, N, C]


class Injector(nn.Module):
    """The trunk reads the maps of the adapter (section 3.3); initially the identity."""

    def __init__(self, dim: int, attention: Callable[[int], DeformableAttention]) -> None:
        super().__init__()
        self.query_norm, self.feat_norm, self.attn = LayerNorm(dim), LayerNorm(dim), attention(len(STRIDES) - 1)
        self.gamma = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, c: Tensor, where: References) -> Tensor:
        """Trunk ``[B, h*w, C]`` and adapter ``[B, N, C]`` to the trunk, ``[B, h*w, C]``."""
        return x + self.gamma * self.attn(self.query_norm(x), self.feat_norm(c), where)


class Extractor(nn.Module):
    """The maps of the adapter read the trunk, then an MLP with stochastic depth (section 3.4)."""

    def __init__(self, dim: int, attention: Callable[[int], DeformableAttention], drop_path: float) -> None:
        super().__init__()
        self.query_norm, self.feat_norm, self.attn = LayerNorm(dim), LayerNorm(dim), attention(1)
        self.ffn_norm, self.ffn = LayerNorm(dim), ConvFFN(dim, dim // 4)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, c: Tensor, x: Tensor, where: References, sizes: Sizes) -> Tensor:
        """Adapter ``[B, N, C]`` and trunk ``[B, h*w, C]`` to the adapter, ``[B, N, C]``."""
        c = c + self.attn(self.query_norm(c), self.feat_norm(x), where)
        return c + self.drop_path(self.ffn(self.ffn_norm(c), sizes))


class ViTAdapter(Backbone):
    """Four maps of strides 4, 8, 16 and 32 from a plain ViT and an adapter, for an image of any size.

    For sides that are multiples of 32, and patches of 16 pixels, it is the authors' model; their code needs these.
    Extra tokens of the trunk go through its blocks; the authors' models have none. A frozen trunk passes gradients on.

    Args:
        trunk: A `ViT` without output norms, or its arguments, also with ``type='vitdense.ViT'``. An interaction ends
            after each block of its `out_indices`. Pretrained weights (`init_cfg`) and freezing are set in the trunk.
        conv_inplane: Channels of the convolutional stem.
        deform_num_heads: Heads of deformable attention. Authors: 6 for tiny and small, 12 for base, 16 for large.
        deform_ratio: Channels of its values over the trunk's. Authors: 1.0; 0.5 for base and large.
        vit_feature: Map of the trunk that is added to the outputs: ``'last'``, as in the authors' detection code; or
            ``'each'``, the map after interaction i to output i, as in their segmentation code.
        drop_path_rate: Stochastic depth of the extractors except extra ones. Authors: the trunk's.
        with_cp: Recompute activations of injectors and extractors in the backward pass. The trunk has its own.
        init_cfg: A checkpoint of adapter and trunk; see `Backbone`.
    """

    family = "vit_adapter"

    def __init__(
        self,
        trunk: Mapping[str, Any] | ViT,
        *,
        conv_inplane: int = 64,
        deform_num_heads: int = 6,
        deform_ratio: float = 1.0,
        vit_feature: str = "last",
        drop_path_rate: float = 0.1,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, with_cp=with_cp, init_cfg=init_cfg)
        self.trunk = make_trunk(trunk)
        self.trunk.place = f"{self.place}.trunk"
        self.arch, self.vit_feature = self.trunk.arch, vit_feature
        dim, lasts = self.arch.embed_dims, self.trunk.out_indices
        if vit_feature not in ("last", "each") or (vit_feature == "each" and len(lasts) != len(STRIDES)):
            raise OptionError(
                f"vit_feature: got {vit_feature!r} with the trunk's out_indices {lasts}, expected 'last', or 'each' "
                f"with {len(STRIDES)} of them, after each of which an interaction ends"
            )
        self.in_channels = self.trunk.in_channels
        self.spm = SpatialPrior(self.in_channels, conv_inplane, dim)
        self.level_embed = nn.Parameter(torch.randn(len(STRIDES) - 1, dim))
        attention = partial(DeformableAttention, dim, deform_num_heads, ratio=deform_ratio)
        extractor = partial(Extractor, dim, attention)
        self.interactions = nn.ModuleList()
        for last in lasts:
            extra = nn.ModuleList(extractor(0.0) for _ in range(2 if last == lasts[-1] else 0))
            layers = {"injector": Injector(dim, attention), "extractor": extractor(drop_path_rate)}
            self.interactions.append(nn.ModuleDict({**layers, "extra_extractors": extra}))
        self.up = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        for part in (self.spm, self.interactions, self.up):
            part.apply(init_conv)
        self.build_outputs_and_freeze([dim] * 4, STRIDES, SyncBatchNorm)
        if self.trunk.unloaded_warning.id in self.trunk._forward_pre_hooks:  # the trunk's forward is not called
            self.trunk.unloaded_warning.remove()
            self.trunk.unloaded_warning = self.register_forward_pre_hook(_warn_unloaded_trunk)

    def stem_modules(self) -> list[nn.Module]:
        return self.trunk.stem_modules()

    def stage_modules(self) -> list[nn.Module]:
        return []  # the trunk freezes its own modules, and the adapter has no unused ones

    def layers(self) -> list[list[nn.Module]]:
        return self.trunk.layers()

    def init_weights(self) -> None:
        """Load the `init_cfg` of the whole model, or else the trunk's; see `Backbone`."""
        super().init_weights()
        if not self._names_weights():
            self.trunk.init_weights()
            self.cfg = self.trunk.cfg

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Image ``[B, 3, H, W]`` to ``[B, C, ceil(H / s), ceil(W / s)]`` for the strides s of 4, 8, 16 and 32."""
        finest, *maps = self.spm(check_image(x, self))  # [B, C, h_i, w_i]
        sizes = [(c.shape[2], c.shape[3]) for c in maps]
        c = torch.cat([to_tokens(c) + embed for c, embed in zip(maps, self.level_embed)], dim=1)  # [B, N, C]
        x, size, steps = self.trunk.unroll(self.trunk.patch_embed(x))  # [B, E + h*w, C]
        stride, num_extra = self.trunk.out_strides[0], 0 if self.trunk.tokens is None else len(self.trunk.tokens)
        of_trunk, levels = ((*size, stride),), tuple((*size, level) for size, level in zip(sizes, STRIDES[1:]))
        to_levels, to_trunk = references(x, of_trunk, levels), references(x, levels, of_trunk)
        run, features = partial(maybe_checkpoint, with_cp=self.with_cp and self.training), []
        for interaction, (before, last) in zip(self.interactions, pairwise((-1, *self.trunk.out_indices))):
            patches = run(interaction["injector"], x[:, num_extra:], c, to_levels)  # [B, h*w, C]
            x = torch.cat([x[:, :num_extra], patches], dim=1)  # [B, E + h*w, C]
            for step in steps[before + 1 : last + 1]:
                x = step(x)  # [B, E + h*w, C]
            features.append(x[:, num_extra:])  # [B, h*w, C]
            for extractor in (interaction["extractor"], *interaction["extra_extractors"]):
                c = run(extractor, c, features[-1], to_trunk, sizes)  # [B, N, C]
        maps = to_maps(c, sizes)
        outs = [finest + crop(self.up(maps[0]), finest.shape[2:]), *maps]  # [B, C, h_i, w_i]
        for i, x in enumerate(features if self.vit_feature == "each" else features[-1:] * len(outs)):
            (x,) = to_maps(x, [size])  # [B, C, h, w]
            outs[i] = outs[i] + resize_to_stride(x, stride, STRIDES[i], outs[i].shape[2:])  # [B, C, h_i, w_i]
        return tuple(self.output_norm(i)(out) for i, out in enumerate(outs))  # [B, C, h_i, w_i]


def make_trunk(trunk: Mapping[str, Any] | ViT) -> ViT:
    """The trunk of a `ViTAdapter`, built from arguments or as given; a ValueError if it does not fit."""
    if not isinstance(trunk, ViT):
        options = {"type": "vitdense.ViT", "out_norm": "none", **trunk}
        if (kind := options.pop("type")) not in ("vitdense.ViT", "ViT"):
            raise OptionError(f"trunk: got type {kind!r}, expected 'vitdense.ViT'")
        trunk = ViT(**options)
    last = trunk.arch.depth - 1
    if trunk.out_norm != "none" or trunk.output_cls_token or trunk.out_indices[-1] < last:
        raise OptionError(
            f"trunk: got out_norm={trunk.out_norm!r}, output_cls_token={trunk.output_cls_token}, out_indices="
            f"{trunk.out_indices}; expected 'none', False, and {last} among the out_indices"
        )
    return trunk


def _warn_unloaded_trunk(model: ViTAdapter, *_: Any) -> None:
    _warn_unloaded(model.trunk)
