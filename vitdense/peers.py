"""The same backbones as other projects write them: references for parity, and rivals for speed.

Each is imported on first use, so that none is needed to use this project.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor, nn


@dataclass(frozen=True)
class Peer:
    """A reference implementation.

    Attributes:
        package: What must be installed.
        build: From sizes (`embed_dims`, `depths`, `num_heads`, V2's `extra_norm_every`), the window side, the window
            sides of pretraining per stage (V2; 0 for none) and the image size to a model with random weights.
        maps: From the model and an image ``[B, 3, H, W]`` to the map ``[B, C_i, H_i, W_i]`` of every stage before any
            output norm.
    """

    package: str
    build: Callable[[Mapping, int, Sequence[int], tuple[int, int]], nn.Module]
    maps: Callable[[nn.Module, Tensor], list[Tensor]]

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


def _mmdet_swin(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from mmdet.models.backbones import SwinTransformer

    return SwinTransformer(embed_dims=sizes["embed_dims"], window_size=window, **_depths(sizes))


def _mmpretrain_swin(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from mmpretrain.models.backbones import SwinTransformer

    arch = {"embed_dims": sizes["embed_dims"], **_depths(sizes)}
    return SwinTransformer(arch, shape, window_size=window, out_indices=range(len(arch["depths"])), pad_small_map=True)


def _mmpretrain_swin_v2(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from mmpretrain.models.backbones import SwinTransformerV2

    extra = sizes.get("extra_norm_every", 0)
    arch = {"embed_dims": sizes["embed_dims"], **_depths(sizes), "extra_norm_every_n_blocks": extra}
    return SwinTransformerV2(
        arch,
        shape,
        window_size=window,
        out_indices=range(len(arch["depths"])),
        pad_small_map=True,
        pretrained_window_sizes=list(pretrained),
    )


def _timm_swin(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    # Accepts any image, and shifts wherever dense code does.
    options = {"strict_img_size": False, "always_partition": True, "num_classes": 10}
    return SwinTransformer(shape, embed_dim=sizes["embed_dims"], window_size=window, **_depths(sizes), **options)


def _timm_swin_v2(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from timm.models.swin_transformer_v2 import SwinTransformerV2

    return SwinTransformerV2(
        shape,
        embed_dim=sizes["embed_dims"],
        window_size=window,
        strict_img_size=False,
        always_partition=True,
        num_classes=10,
        pretrained_window_sizes=tuple(pretrained),
        **_depths(sizes),
    )


def _torchvision_swin(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer([4, 4], sizes["embed_dims"], window_size=[window] * 2, num_classes=10, **_depths(sizes))


def _torchvision_swin_v2(sizes: Mapping, window: int, pretrained: Sequence[int], shape: tuple[int, int]) -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    if any(pretrained):
        raise ValueError("torchvision's Swin V2 has no pretraining window other than its own")
    return SwinTransformer(
        [4, 4],
        sizes["embed_dims"],
        window_size=[window] * 2,
        num_classes=10,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
        **_depths(sizes),
    )


def _depths(sizes: Mapping) -> dict[str, list[int]]:
    return {name: list(sizes[name]) for name in ("depths", "num_heads")}


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


PEERS: dict[str, dict[str, Peer]] = {  # by family and naming scheme
    "swin": {
        "mmdet": Peer("mmdet", _mmdet_swin, _mm_maps),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin, _mm_maps),
        "timm": Peer("timm", _timm_swin, _timm_maps),
        "torchvision": Peer("torchvision", _torchvision_swin, _torchvision_maps),
    },
    "swin_v2": {
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin_v2, _mm_maps),
        "timm": Peer("timm", _timm_swin_v2, _timm_maps),
        "torchvision": Peer("torchvision", _torchvision_swin_v2, _torchvision_maps),
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
