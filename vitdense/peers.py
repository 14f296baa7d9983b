"""The same backbones as other projects write them: references for parity, and rivals for speed.

Each is imported on first use, so that none is needed to use this project.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from vitdense.backbones.vit import default_out_indices


@dataclass(frozen=True)
class Like:
    """What a peer is to be built like.

    Attributes:
        arch: A row of `vitdense.backbones.variants`, of the peer's family.
        shape: Image (h, w) in pixels.
        window: Swin's, side in tokens.
        pretrained: Swin V2's window sides of pretraining per stage in tokens, 0 for `window`.
        drop_path_rate: Of the last block.
        parallel: ViT's branches of each kind in a block.
    """

    arch: Any
    shape: tuple[int, int]
    window: int = 0
    pretrained: tuple[int, ...] = (0, 0, 0, 0)
    drop_path_rate: float = 0.0
    parallel: int = 1

    @property
    def stages(self) -> dict[str, list[int]]:
        """The arguments that all Swins name alike."""
        return {"depths": list(self.arch.depths), "num_heads": list(self.arch.num_heads)}


@dataclass(frozen=True)
class Peer:
    """A reference implementation.

    Attributes:
        package: What must be installed.
        build: The model, with random weights.
        maps: From the model and an image ``[B, 3, H, W]`` to the map ``[B, C_i, H_i, W_i]`` of every stage before any
            output norm. May change the model.
        run: The same as users of the project run it, for timing.
        lacks: What of a model to be built it does not have, if anything.
    """

    package: str
    build: Callable[[Like], nn.Module]
    maps: Callable[[nn.Module, Tensor], Sequence[Tensor]]
    run: Callable[[nn.Module, Tensor], Sequence[Tensor]]
    lacks: Callable[[Like], str] = lambda like: ""

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


def _mmdet_swin(like: Like) -> nn.Module:
    from mmdet.models.backbones import SwinTransformer

    return SwinTransformer(
        embed_dims=like.arch.embed_dims, window_size=like.window, drop_path_rate=like.drop_path_rate, **like.stages
    )


def _mmpretrain(name: str, like: Like, arch: dict, **options) -> nn.Module:
    from mmpretrain.models import backbones

    return getattr(backbones, name)(
        {"embed_dims": like.arch.embed_dims, **like.stages, **arch},
        like.shape,
        window_size=like.window,
        drop_path_rate=like.drop_path_rate,
        out_indices=range(len(like.arch.depths)),
        pad_small_map=True,
        **options,
    )


def _mmpretrain_swin(like: Like) -> nn.Module:
    return _mmpretrain("SwinTransformer", like, {})


def _mmpretrain_swin_v2(like: Like) -> nn.Module:
    extra = {"extra_norm_every_n_blocks": like.arch.extra_norm_every}
    return _mmpretrain("SwinTransformerV2", like, extra, pretrained_window_sizes=list(like.pretrained))


def _timm(name: str, like: Like, **options) -> nn.Module:
    import timm.models

    return getattr(timm.models, name)(
        like.shape,
        embed_dim=like.arch.embed_dims,
        window_size=like.window,
        drop_path_rate=like.drop_path_rate,
        num_classes=10,
        strict_img_size=False,  # takes any image,
        always_partition=True,  # and shifts wherever dense code does
        **like.stages,
        **options,
    )


def _timm_swin(like: Like) -> nn.Module:
    return _timm("SwinTransformer", like)


def _timm_swin_v2(like: Like) -> nn.Module:
    return _timm("SwinTransformerV2", like, pretrained_window_sizes=tuple(like.pretrained))


def _torchvision(like: Like, **options) -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        [4, 4],
        like.arch.embed_dims,
        window_size=[like.window] * 2,
        stochastic_depth_prob=like.drop_path_rate,
        num_classes=10,
        **like.stages,
        **options,
    )


def _torchvision_swin_v2(like: Like) -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    # A window of pretraining reaches it as the buffer of coordinates in its state dict.
    return _torchvision(like, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)


def _mmpretrain_mvit(like: Like) -> nn.Module:
    from mmpretrain.models.backbones import MViT

    arch = like.arch
    return MViT(
        {
            "embed_dims": arch.embed_dims,
            "num_layers": sum(arch.depths),
            "num_heads": arch.num_heads,
            "downscale_indices": list(accumulate(arch.depths))[:-1],
        },
        like.shape,
        # It feeds the norm of every output to the next stage: with the last output alone, as in classification, its
        # features are those of the paper.
        out_scales=[len(arch.depths) - 1],
        drop_path_rate=like.drop_path_rate,
        rel_pos_spatial=arch.relative_position,
        residual_pooling=arch.residual_pooling,
        dim_mul_in_attention=arch.growth == "attention",
    )


def _timm_mvit(like: Like) -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    arch = like.arch
    sizes = MultiScaleVitCfg(
        depths=arch.depths,
        embed_dim=arch.embed_dims,
        num_heads=arch.num_heads,
        expand_attn=arch.growth == "attention",
        residual_pooling=arch.residual_pooling,
        rel_pos_type="spatial" if arch.relative_position else "none",
        stride_q=((1, 1), *[(2, 2)] * (len(arch.depths) - 1)),
    )
    return MultiScaleVit(sizes, like.shape, num_classes=10, drop_path_rate=like.drop_path_rate)


def _timm_vit(like: Like) -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, ParallelThingsBlock, VisionTransformer

    arch = like.arch
    return (VisionTransformerDistilled if arch.distilled else VisionTransformer)(
        img_size=like.shape,
        patch_size=arch.patch_size,
        embed_dim=arch.embed_dims,
        depth=arch.depth,
        num_heads=arch.num_heads,
        init_values=arch.layer_scale,
        no_embed_class=not arch.token_position,
        drop_path_rate=like.drop_path_rate,
        num_classes=10,
        block_fn=ParallelThingsBlock if like.parallel == 2 else Block,
        dynamic_img_size=True,  # takes any image of whole patches
    )


def _mmpretrain_vit(like: Like) -> nn.Module:
    from mmpretrain.models.backbones import DistilledVisionTransformer, VisionTransformer

    arch = like.arch
    return (DistilledVisionTransformer if arch.distilled else VisionTransformer)(
        {
            "embed_dims": arch.embed_dims,
            "num_layers": arch.depth,
            "num_heads": arch.num_heads,
            "feedforward_channels": 4 * arch.embed_dims,
        },
        img_size=like.shape,
        patch_size=arch.patch_size,
        out_indices=list(default_out_indices(arch.depth)),
        out_type="featmap",
        drop_path_rate=like.drop_path_rate,
        layer_scale_init_value=arch.layer_scale or 0.0,
    )


def _mmseg_vit(like: Like) -> nn.Module:
    from mmseg.models.backbones import VisionTransformer

    arch = like.arch
    return VisionTransformer(
        img_size=like.shape,
        patch_size=arch.patch_size,
        embed_dims=arch.embed_dims,
        num_layers=arch.depth,
        num_heads=arch.num_heads,
        out_indices=list(default_out_indices(arch.depth)),
        drop_path_rate=like.drop_path_rate,
        norm_cfg={"type": "LN", "eps": 1e-6},  # 1e-5 by its default, 1e-6 in all its configs
        patch_bias=True,  # it has none by default, and drops that of a checkpoint
        final_norm=True,
    )


def _mmpretrain_vit_lacks(like: Like) -> str:
    lacks = {
        "parallel blocks": like.parallel > 1,
        # Its DeiT3 feeds the first norm of a block to the MLP too: its features are not those of the authors.
        "tokens without positions, whose DeiT III computes something else": not like.arch.token_position,
    }
    return ", ".join(what for what, is_so in lacks.items() if is_so)


def _mmseg_vit_lacks(like: Like) -> str:
    arch = like.arch
    lacks = {
        "parallel blocks": like.parallel > 1,
        "tokens without positions": not arch.token_position,
        "a distillation token": arch.distilled,
        "LayerScale": arch.layer_scale is not None,
    }
    return ", ".join(what for what, is_so in lacks.items() if is_so)


def _mm_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    for i in model.out_indices:
        setattr(model, f"norm{i}", nn.Identity())
    return list(model(x))


def _timm_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    return model.forward_intermediates(x, intermediates_only=True)


def _timm_vit_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    indices = list(default_out_indices(len(model.blocks)))
    return model.forward_intermediates(x, indices=indices, intermediates_only=True)


def _mm_vit_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.ln1 = nn.Identity()  # behind the last block
    return list(model(x))


def _torchvision_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    outs = []
    for i, layer in enumerate(model.features):
        x = layer(x)  # [B, H, W, C]
        if i % 2:
            outs.append(x.permute(0, 3, 1, 2))  # [B, C, H, W]
    return outs


def _block_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What the last block of every stage of mmpretrain's MViT puts out, tokens and their grid, as maps."""
    outs: dict[int, Tensor] = {}

    def keep(stage: int, block: nn.Module, args: tuple, out: tuple[Tensor, Sequence[int]]) -> None:
        tokens, grid = out
        outs[stage] = tokens.transpose(1, 2).unflatten(2, tuple(grid))  # [B, C, h, w]

    hooks = [model.blocks[i].register_forward_hook(partial(keep, stage)) for i, stage in model.stage_indices.items()]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return [outs[stage] for stage in sorted(outs)]


def _call(model: nn.Module, x: Tensor) -> Sequence[Tensor]:
    return model(x)


PEERS: dict[str, dict[str, Peer]] = {  # by family and naming scheme
    "swin": {
        "mmdet": Peer("mmdet", _mmdet_swin, _mm_maps, _call),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin, _mm_maps, _call),
        "timm": Peer("timm", _timm_swin, _timm_maps, _timm_maps),
        "torchvision": Peer("torchvision", _torchvision, _torchvision_maps, _torchvision_maps),
    },
    "swin_v2": {
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin_v2, _mm_maps, _call),
        "timm": Peer("timm", _timm_swin_v2, _timm_maps, _timm_maps),
        "torchvision": Peer("torchvision", _torchvision_swin_v2, _torchvision_maps, _torchvision_maps),
    },
    # Of MViTv2 for classification: all blocks attend globally, at the size it is built for, which is square. Neither
    # pools as MViT v1 does.
    "mvit": {
        "mmpretrain": Peer("mmpretrain", _mmpretrain_mvit, _block_maps, _block_maps),
        "timm": Peer("timm", _timm_mvit, _timm_maps, _timm_maps),
    },
    # Built for an image size: their position embeddings have its grid. The maps are of the last blocks of all quarters.
    "vit": {
        "timm": Peer("timm", _timm_vit, _timm_vit_maps, _timm_vit_maps),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_vit, _mm_vit_maps, _call, _mmpretrain_vit_lacks),
        "mmseg": Peer("mmseg", _mmseg_vit, _mm_vit_maps, _call, _mmseg_vit_lacks),
    },
}


def raw_maps(backbone: nn.Module, x: Tensor) -> list[Tensor]:
    """Maps of one of our backbones before its output norms, as `Peer.maps` gives them."""
    return _mm_maps(backbone, x)


def relative_errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> list[float]:
    """Per map, the norm of the difference over that of `want`."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]


def swin_shapes(window: int, num_stages: int = 4) -> list[tuple[int, int]]:
    """Two image sizes in pixels at which all Swins agree: every map is of whole windows, and of several."""
    side = 4 * 2 ** (num_stages - 1) * window
    return [(2 * side, 2 * side), (2 * side, 3 * side)]
