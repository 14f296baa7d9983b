"""The same backbones as other projects write them: references for parity, and rivals for speed.

Each is imported on first use, so that none is needed to use this project.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor, nn


@dataclass(frozen=True)
class Like:
    """What a peer is to be built like.

    Attributes:
        embed_dims: Channels of the first stage.
        depths: Blocks per stage.
        num_heads: Heads per stage.
        window: Side in tokens.
        shape: Image (h, w) in pixels.
        pretrained: Swin V2's window sides of pretraining per stage in tokens, 0 for `window`.
        extra_norm_every: Swin V2's.
        drop_path_rate: Of the last block.
    """

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window: int
    shape: tuple[int, int]
    pretrained: tuple[int, ...] = (0, 0, 0, 0)
    extra_norm_every: int = 0
    drop_path_rate: float = 0.0

    @property
    def stages(self) -> dict[str, list[int]]:
        """The arguments that all name alike."""
        return {"depths": list(self.depths), "num_heads": list(self.num_heads)}


@dataclass(frozen=True)
class Peer:
    """A reference implementation.

    Attributes:
        package: What must be installed.
        build: The model, with random weights.
        maps: From the model and an image ``[B, 3, H, W]`` to the map ``[B, C_i, H_i, W_i]`` of every stage before any
            output norm. May change the model.
        run: The same as users of the project run it, for timing.
    """

    package: str
    build: Callable[[Like], nn.Module]
    maps: Callable[[nn.Module, Tensor], Sequence[Tensor]]
    run: Callable[[nn.Module, Tensor], Sequence[Tensor]]

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


def _mmdet_swin(like: Like) -> nn.Module:
    from mmdet.models.backbones import SwinTransformer

    return SwinTransformer(
        embed_dims=like.embed_dims, window_size=like.window, drop_path_rate=like.drop_path_rate, **like.stages
    )


def _mmpretrain(name: str, like: Like, arch: dict, **options) -> nn.Module:
    from mmpretrain.models import backbones

    return getattr(backbones, name)(
        {"embed_dims": like.embed_dims, **like.stages, **arch},
        like.shape,
        window_size=like.window,
        drop_path_rate=like.drop_path_rate,
        out_indices=range(len(like.depths)),
        pad_small_map=True,
        **options,
    )


def _mmpretrain_swin(like: Like) -> nn.Module:
    return _mmpretrain("SwinTransformer", like, {})


def _mmpretrain_swin_v2(like: Like) -> nn.Module:
    extra = {"extra_norm_every_n_blocks": like.extra_norm_every}
    return _mmpretrain("SwinTransformerV2", like, extra, pretrained_window_sizes=list(like.pretrained))


def _timm(name: str, like: Like, **options) -> nn.Module:
    import timm.models

    return getattr(timm.models, name)(
        like.shape,
        embed_dim=like.embed_dims,
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
        like.embed_dims,
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


def _mm_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    for i in model.out_indices:
        setattr(model, f"norm{i}", nn.Identity())
    return list(model(x))


def _timm_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    return model.forward_intermediates(x, intermediates_only=True)


def _torchvision_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    outs = []
    for i, layer in enumerate(model.features):
        x = layer(x)  # [B, H, W, C]
        if i % 2:
            outs.append(x.permute(0, 3, 1, 2))  # [B, C, H, W]
    return outs


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
}


def raw_maps(backbone: nn.Module, x: Tensor) -> list[Tensor]:
    """Maps of one of our backbones before its output norms, as `Peer.maps` gives them."""
    return _mm_maps(backbone, x)


def relative_errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> list[float]:
    """Per map, the norm of the difference over that of `want`."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]


def oracle_shapes(window: int, num_stages: int = 4) -> list[tuple[int, int]]:
    """Two image sizes in pixels at which all implementations agree: every map is of whole windows, and of several."""
    side = 4 * 2 ** (num_stages - 1) * window
    return [(2 * side, 2 * side), (2 * side, 3 * side)]
