"""Backbones of other projects: references for parity tests, baselines for benchmarks.

Each project is imported on first use. None of them is a dependency.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from vitdense.families import Model, arguments, backbone_class, find_model, near_names
from vitdense.models.base import Backbone, as_pair
from vitdense.models.vit.model import default_out_indices


@dataclass(frozen=True)
class PeerSpec:
    """The options of a peer.

    Attributes:
        arch: The facts of a size, such as `SwinArch`, of the peer's family.
        shape: Image (h, w) in pixels.
        window: Window side of Swin in tokens.
        pretrained: Window sides of Swin V2 in pretraining, per stage in tokens; 0 means `window`.
        drop_path_rate: Of the last block.
        parallel: Branches of each kind in a block of ViT.
        resnet: Blocks of every stage of the ResNet before a hybrid ViT; empty for none.
        others: Other options of our class, by name. No peer supports them.
    """

    arch: Any
    shape: tuple[int, int]
    window: int = 0
    pretrained: tuple[int, ...] = (0, 0, 0, 0)
    drop_path_rate: float = 0.0
    parallel: int = 1
    resnet: tuple[int, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stages(self) -> dict[str, list[int]]:
        """The arguments with the same names in all Swins."""
        return {"depths": list(self.arch.depths), "num_heads": list(self.arch.num_heads)}


# Features that some projects lack, and whether a spec needs them.
FEATURES: dict[str, Callable[[PeerSpec], bool]] = {
    "max pooling": lambda spec: spec.arch.pool == "max",
    "queries without pooling": lambda spec: not spec.arch.pool_all_queries,
    "absolute positions": lambda spec: spec.arch.absolute_position,
    "non-square images": lambda spec: spec.shape[0] != spec.shape[1],
    "images of partial patches": lambda spec: any(side % spec.arch.patch_size for side in spec.shape),
    "windows": lambda spec: spec.window > 0,
    "tokens without positions": lambda spec: not spec.arch.token_position,
    "a distillation token": lambda spec: spec.arch.distilled,
    "LayerScale": lambda spec: spec.arch.layer_scale is not None,
    "blocks other than Mixer's": lambda spec: spec.arch.block != "mixer",
    "registers": lambda spec: spec.arch.registers > 0,
    "rotary positions": lambda spec: spec.arch.rope is not None,
    "an FFN other than an MLP with exact GELU": lambda spec: spec.arch.ffn != "mlp",
    "no class token": lambda spec: not spec.arch.class_token,
    "other rules to resize positions": lambda spec: spec.arch.position_rule != "bicubic",
}


@dataclass(frozen=True)
class Peer:
    """A reference implementation.

    Attributes:
        package: Package to import.
        build: The model, with random weights.
        maps: A function of the model and an image ``[B, 3, H, W]``; returns the maps ``[B, C_i, H_i, W_i]`` of the
            stages, without output norms. May change the model.
        run: The usual forward pass, for timing.
        unsupported: Names of `FEATURES` that it lacks.
    """

    package: str
    build: Callable[[PeerSpec], nn.Module]
    maps: Callable[[nn.Module, Tensor], Sequence[Tensor]]
    run: Callable[[nn.Module, Tensor], Sequence[Tensor]]
    unsupported: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def unsupported_features(self, spec: PeerSpec) -> str:
        """The features of a spec that the peer lacks, as text; empty if none."""
        features = [name for name in self.unsupported if FEATURES[name](spec)]
        return ", ".join([*features, *(f"{name}={value!r}" for name, value in spec.others.items())])


def _mmdet_swin(spec: PeerSpec) -> nn.Module:
    from mmdet.models.backbones import SwinTransformer

    return SwinTransformer(
        embed_dims=spec.arch.embed_dims, window_size=spec.window, drop_path_rate=spec.drop_path_rate, **spec.stages
    )


def _mmpretrain_swin(
    spec: PeerSpec, name: str = "SwinTransformer", sizes: Mapping[str, int] | None = None, **options: Any
) -> nn.Module:
    from mmpretrain.models import backbones

    return getattr(backbones, name)(
        {"embed_dims": spec.arch.embed_dims, **spec.stages, **(sizes or {})},
        spec.shape,
        window_size=spec.window,
        drop_path_rate=spec.drop_path_rate,
        out_indices=range(len(spec.arch.depths)),
        pad_small_map=True,
        **options,
    )


def _mmpretrain_swin_v2(spec: PeerSpec) -> nn.Module:
    sizes = {"extra_norm_every_n_blocks": spec.arch.extra_norm_every}
    return _mmpretrain_swin(spec, "SwinTransformerV2", sizes, pretrained_window_sizes=list(spec.pretrained))


def _timm_swin(spec: PeerSpec, name: str = "SwinTransformer", **options: Any) -> nn.Module:
    import timm.models

    return getattr(timm.models, name)(
        spec.shape,
        embed_dim=spec.arch.embed_dims,
        window_size=spec.window,
        drop_path_rate=spec.drop_path_rate,
        num_classes=10,
        strict_img_size=False,  # any image size
        always_partition=True,  # shifted windows also on small maps, as in detection code
        **spec.stages,
        **options,
    )


def _timm_swin_v2(spec: PeerSpec) -> nn.Module:
    return _timm_swin(spec, "SwinTransformerV2", pretrained_window_sizes=spec.pretrained)


def _torchvision_swin(spec: PeerSpec, **options: Any) -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        [4, 4],
        spec.arch.embed_dims,
        window_size=[spec.window] * 2,
        stochastic_depth_prob=spec.drop_path_rate,
        num_classes=10,
        **spec.stages,
        **options,
    )


def _torchvision_swin_v2(spec: PeerSpec) -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    # The state dict has the window of pretraining, in the buffer of coordinates.
    return _torchvision_swin(spec, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)


def _mmpretrain_mvit(spec: PeerSpec) -> nn.Module:
    from mmpretrain.models.backbones import MViT

    arch = spec.arch
    return MViT(
        {
            "embed_dims": arch.embed_dims,
            "num_layers": sum(arch.depths),
            "num_heads": arch.num_heads,
            "downscale_indices": list(accumulate(arch.depths))[:-1],
        },
        spec.shape,
        # The norm of every output also changes the input of the next stage. The features are those of the paper only
        # with a single output, as in classification.
        out_scales=[len(arch.depths) - 1],
        drop_path_rate=spec.drop_path_rate,
        rel_pos_spatial=arch.relative_position,
        residual_pooling=arch.residual_pooling,
        dim_mul_in_attention=arch.growth == "attention",
    )


def _timm_mvit(spec: PeerSpec) -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    arch = spec.arch
    sizes = MultiScaleVitCfg(
        depths=arch.depths,
        embed_dim=arch.embed_dims,
        num_heads=arch.num_heads,
        expand_attn=arch.growth == "attention",
        residual_pooling=arch.residual_pooling,
        rel_pos_type="spatial" if arch.relative_position else "none",
        stride_q=((1, 1), *[(2, 2)] * (len(arch.depths) - 1)),
    )
    return MultiScaleVit(sizes, spec.shape, num_classes=10, drop_path_rate=spec.drop_path_rate)


def _timm_vit(spec: PeerSpec) -> nn.Module:
    from timm.layers import HybridEmbed, PatchEmbed, SwiGLUPacked
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, ParallelThingsBlock, VisionTransformer
    from timm.models.vision_transformer_hybrid import _resnetv2

    arch, resnet = spec.arch, spec.resnet
    if arch.rope:
        return _timm_eva(spec)
    # One layer makes both halves of a SwiGLU.
    ffn = {}
    if arch.ffn == "swiglu":
        ratio = 2 * arch.ffn_dims / arch.embed_dims
        ffn = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": ratio}
    elif arch.ffn == "mlp_tanh":
        ffn = {"act_layer": "gelu_tanh"}
    return (VisionTransformerDistilled if arch.distilled else VisionTransformer)(
        img_size=spec.shape,
        patch_size=1 if resnet else arch.patch_size,
        embed_layer=partial(HybridEmbed, backbone=_resnetv2(resnet)) if resnet else PatchEmbed,
        embed_dim=arch.embed_dims,
        depth=arch.depth,
        num_heads=arch.num_heads,
        init_values=arch.layer_scale,
        no_embed_class=not arch.token_position or arch.registers > 0,
        reg_tokens=arch.registers,
        class_token=arch.class_token,
        global_pool="token" if arch.class_token else "map",
        **ffn,
        drop_path_rate=spec.drop_path_rate,
        num_classes=10,
        block_fn=partial(ParallelThingsBlock, num_parallel=spec.parallel) if spec.parallel > 1 else Block,
        dynamic_img_size=True,  # any multiple of the patch size
    )


def _timm_cait(spec: PeerSpec) -> nn.Module:
    from timm.models.cait import Cait

    arch = spec.arch
    return Cait(
        img_size=spec.shape,
        patch_size=arch.patch_size,
        embed_dim=arch.embed_dims,
        depth=arch.depth,
        num_heads=arch.num_heads,
        depth_token_only=arch.class_blocks,
        init_values=arch.layer_scale,
        drop_path_rate=spec.drop_path_rate,
        num_classes=10,
    )


def _timm_eva(spec: PeerSpec) -> nn.Module:
    """EVA-02; with rotary positions from the centre DINOv3; with a norm before the blocks Perception Encoder."""
    from timm.layers import LayerNorm
    from timm.models.eva import Eva

    arch = spec.arch
    is_dinov3 = arch.rope == "dinov3"
    pe = {
        "attn_type": "rope",
        "class_token": arch.class_token,
        "use_pre_transformer_norm": True,
        "use_post_transformer_norm": False,
        "use_fc_norm": False,
        "rope_grid_offset": 1.0,
        "rope_grid_indexing": "xy",
        "ref_feat_shape": None,
        "num_classes": 0,
    }
    others = {"ref_feat_shape": None if is_dinov3 else (16, 16), "num_classes": 10}
    return Eva(
        img_size=spec.shape,
        patch_size=arch.patch_size,
        embed_dim=arch.embed_dims,
        depth=arch.depth,
        num_heads=arch.num_heads,
        qkv_bias=arch.qkv_bias != "none",
        qkv_fused=arch.ffn != "swiglu_norm",  # as in its own entries
        mlp_ratio=(arch.ffn_dims or 4 * arch.embed_dims) / arch.embed_dims + 1e-6,  # it rounds down
        swiglu_mlp=arch.ffn != "mlp",
        swiglu_align_to=8 if is_dinov3 else 0,
        scale_mlp=arch.ffn == "swiglu_norm",
        init_values=arch.layer_scale,
        num_reg_tokens=arch.registers,
        use_abs_pos_emb=arch.absolute_position,
        use_rot_pos_emb=True,
        rope_type="dinov3" if is_dinov3 else "cat",
        rope_temperature=100.0 if is_dinov3 else 10000.0,
        rope_rotate_half=is_dinov3,
        norm_layer=partial(LayerNorm, eps=arch.norm_eps),
        drop_path_rate=spec.drop_path_rate,
        dynamic_img_size=True,
        **(pe if arch.pre_norm else others),
    )


def _mmpretrain_vit(spec: PeerSpec) -> nn.Module:
    from mmpretrain.models.backbones import DistilledVisionTransformer, VisionTransformer

    arch = spec.arch
    return (DistilledVisionTransformer if arch.distilled else VisionTransformer)(
        {
            "embed_dims": arch.embed_dims,
            "num_layers": arch.depth,
            "num_heads": arch.num_heads,
            "feedforward_channels": 4 * arch.embed_dims,
        },
        img_size=spec.shape,
        patch_size=arch.patch_size,
        out_indices=list(default_out_indices(arch.depth)),
        out_type="featmap",
        drop_path_rate=spec.drop_path_rate,
        layer_scale_init_value=arch.layer_scale or 0.0,
    )


def _mmseg_vit(spec: PeerSpec) -> nn.Module:
    from mmseg.models.backbones import VisionTransformer

    arch = spec.arch
    return VisionTransformer(
        img_size=spec.shape,
        patch_size=arch.patch_size,
        embed_dims=arch.embed_dims,
        num_layers=arch.depth,
        num_heads=arch.num_heads,
        out_indices=list(default_out_indices(arch.depth)),
        drop_path_rate=spec.drop_path_rate,
        norm_cfg={"type": "LN", "eps": 1e-6},  # default 1e-5; 1e-6 in all its configs
        patch_bias=True,  # False by default: the bias of a checkpoint would be ignored
        final_norm=True,
    )


def _timm_mixer(spec: PeerSpec) -> nn.Module:
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import Affine, MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock

    arch = spec.arch
    options = {
        "mixer": {"block_layer": MixerBlock, "mlp_ratio": (0.5, arch.mlp_ratio)},
        "resmlp": {"block_layer": ResBlock, "mlp_ratio": arch.mlp_ratio, "norm_layer": Affine},
        "gmlp": {"block_layer": SpatialGatingBlock, "mlp_ratio": arch.mlp_ratio, "mlp_layer": GatedMlp},
    }
    return MlpMixer(
        img_size=spec.shape,
        patch_size=arch.patch_size,
        embed_dim=arch.embed_dims,
        num_blocks=arch.depth,
        drop_path_rate=spec.drop_path_rate,  # of all blocks
        num_classes=10,
        **options[arch.block],
    )


def _mmpretrain_mixer(spec: PeerSpec) -> nn.Module:
    from mmpretrain.models.backbones import MlpMixer

    arch = spec.arch
    return MlpMixer(
        {
            "embed_dims": arch.embed_dims,
            "num_layers": arch.depth,
            "tokens_mlp_dims": arch.embed_dims // 2,
            "channels_mlp_dims": int(arch.embed_dims * arch.mlp_ratio),
        },
        img_size=spec.shape,
        patch_size=arch.patch_size,
        out_indices=[i - arch.depth for i in default_out_indices(arch.depth)],  # its check refuses others
        drop_path_rate=spec.drop_path_rate,
        norm_cfg={"type": "LN", "eps": 1e-6},  # default 1e-5; 1e-6 where the weights are from
    )


def _torchvision_resnet(spec: PeerSpec) -> nn.Module:
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    return ResNet(Bottleneck if spec.arch.bottleneck else BasicBlock, list(spec.arch.depths), num_classes=10)


def _timm_resnet(spec: PeerSpec) -> nn.Module:
    from timm.models.resnet import BasicBlock, Bottleneck, ResNet

    kind = Bottleneck if spec.arch.bottleneck else BasicBlock
    return ResNet(kind, spec.arch.depths, num_classes=10, drop_path_rate=spec.drop_path_rate)


def _timm_convnext(spec: PeerSpec) -> nn.Module:
    from timm.models.convnext import ConvNeXt

    dims = [spec.arch.embed_dims * 2**i for i in range(4)]
    scale = {"use_grn": True, "ls_init_value": None} if spec.arch.grn else {}
    return ConvNeXt(depths=spec.arch.depths, dims=dims, num_classes=10, drop_path_rate=spec.drop_path_rate, **scale)


def _timm_hiera(spec: PeerSpec) -> nn.Module:
    from timm.models.hieradet_sam2 import HieraDet

    arch = spec.arch
    return HieraDet(
        embed_dim=arch.embed_dims,
        num_heads=arch.num_heads,
        stages=arch.depths,
        window_spec=arch.window_sizes,
        global_att_blocks=arch.global_indices,
        global_pos_size=arch.position_grid,
        num_classes=10,
        drop_path_rate=spec.drop_path_rate,
    )


def _mm_resnet(spec: PeerSpec, package: str) -> nn.Module:
    from vitdense.research.resnet.sizes import RESNET

    (depth,) = (name.removeprefix("resnet") for name, arch in RESNET.items() if arch == spec.arch)
    return import_module(f"{package}.models.backbones").ResNet(int(depth), out_indices=(0, 1, 2, 3))


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
    model.ln1 = nn.Identity()  # after the last block
    return list(model(x))


def _mm_mixer_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [out.unflatten(2, model.patch_resolution) for out in _mm_vit_maps(model, x)]  # [B, C, h, w] each


def _timm_resnet_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    return model.forward_intermediates(x, indices=[1, 2, 3, 4], intermediates_only=True)  # 0 is the stem


def _torchvision_resnet_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    outs = [model.maxpool(model.relu(model.bn1(model.conv1(x))))]
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        outs.append(stage(outs[-1]))
    return outs[1:]


def _torchvision_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    outs = []
    for i, layer in enumerate(model.features):
        x = layer(x)  # [B, H, W, C]
        if i % 2:
            outs.append(x.permute(0, 3, 1, 2))  # [B, C, H, W]
    return outs


def _block_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Maps of the last block of every stage of mmpretrain's MViT."""
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


_MVIT = ("max pooling", "queries without pooling", "absolute positions", "non-square images")
_VIT = ("windows", "images of partial patches")
_FOUNDATION = ("registers", "rotary positions", "an FFN other than an MLP with exact GELU", "no class token")
_MM_VIT = (*(*_VIT, *_FOUNDATION, "tokens without positions", "other rules to resize positions"),)
PEERS: dict[str, dict[str, Peer]] = {  # by family and naming scheme; the first is the default baseline
    "swin": {
        "mmdet": Peer("mmdet", _mmdet_swin, _mm_maps, _call),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin, _mm_maps, _call),
        "timm": Peer("timm", _timm_swin, _timm_maps, _timm_maps),
        "torchvision": Peer("torchvision", _torchvision_swin, _torchvision_maps, _torchvision_maps),
    },
    "swin_v2": {
        "timm": Peer("timm", _timm_swin_v2, _timm_maps, _timm_maps),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_swin_v2, _mm_maps, _call),
        "torchvision": Peer("torchvision", _torchvision_swin_v2, _torchvision_maps, _torchvision_maps),
    },
    # MViTv2 for classification: global attention, fixed image size.
    "mvit": {
        "timm": Peer("timm", _timm_mvit, _timm_maps, _timm_maps, _MVIT),
        "mmpretrain": Peer("mmpretrain", _mmpretrain_mvit, _block_maps, _block_maps, _MVIT),
    },
    # Position embeddings have the grid of the image it is built for. The last block of every quarter gives a map.
    "vit": {
        "timm": Peer("timm", _timm_vit, _timm_vit_maps, _timm_vit_maps, _VIT),
        # DeiT and MAE use timm's model. DeiT III has other names for LayerScale.
        "official": Peer("timm", _timm_vit, _timm_vit_maps, _timm_vit_maps, (*_VIT, *_FOUNDATION, "LayerScale")),
        # In mmpretrain's DeiT III, the first norm of a block also feeds the MLP: its features are not the authors'.
        "mmpretrain": Peer("mmpretrain", _mmpretrain_vit, _mm_vit_maps, _call, _MM_VIT),
        "mmseg": Peer("mmseg", _mmseg_vit, _mm_vit_maps, _call, (*_MM_VIT, "a distillation token", "LayerScale")),
    },
    "three_things": {"timm": Peer("timm", _timm_vit, _timm_vit_maps, _timm_vit_maps, _VIT)},
    "hybrid_vit": {"timm": Peer("timm", _timm_vit, _timm_vit_maps, _timm_vit_maps, _VIT)},
    "cait": {"timm": Peer("timm", _timm_cait, _timm_vit_maps, _timm_vit_maps, _VIT)},
    "swin_mixer": {},  # the authors' code is not a package
    # Peers for the image size that they are built for. The last block of every quarter gives a map.
    "mixer": {
        "timm": Peer("timm", _timm_mixer, _timm_vit_maps, _timm_vit_maps, _VIT[1:]),
        "mmpretrain": Peer(
            "mmpretrain", _mmpretrain_mixer, _mm_mixer_maps, _mm_mixer_maps, (*_VIT[1:], "blocks other than Mixer's")
        ),
    },
    "resnet": {
        "mmdet": Peer("mmdet", partial(_mm_resnet, package="mmdet"), _mm_maps, _call),
        "mmpretrain": Peer("mmpretrain", partial(_mm_resnet, package="mmpretrain"), _mm_maps, _call),
        "timm": Peer("timm", _timm_resnet, _timm_resnet_maps, _timm_resnet_maps),
        "torchvision": Peer("torchvision", _torchvision_resnet, _torchvision_resnet_maps, _torchvision_resnet_maps),
    },
    "convnext": {"timm": Peer("timm", _timm_convnext, _timm_maps, _timm_maps)},
    # Peers for images whose sides are multiples of the stride times the first window.
    "hiera": {"timm": Peer("timm", _timm_hiera, _timm_maps, _timm_maps)},
    "nat": {},  # the authors' code needs an extension that is compiled
}
# Our arguments for the same model.
AS_PEERS = {"mvit": {"window": "global"}, **{family: {"out_norm": "none"} for family in ("vit", "hybrid_vit", "cait")}}
# Our arguments with a field in `PeerSpec`. No peer has the others, except `AS_PEERS`.
IN_SPEC = {"window_size", "pretrained_window_sizes", "pretrain_img_size", "patch_size", "stem", "parallel"}


def comparable(
    row: Model, shape: tuple[int, int] | None = None, drop_path_rate: float = 0.0
) -> tuple[Backbone, PeerSpec]:
    """One of our models with random weights and the options of its peers, and the spec of these peers.

    Args:
        row: A row of the model table. Windows, if any, must be square.
        shape: Image (h, w) in pixels. Default: a size at which all peers agree. For Swin, every map is several whole
            windows; for other families, it is the size of pretraining.
        drop_path_rate: Of the last block of both.
    """
    make = backbone_class(row.family)
    options = arguments(make) | dict(row.options)
    image = as_pair(shape or options.get("pretrain_img_size", row.image_size), "shape")
    as_peers = {"drop_path_rate": drop_path_rate, **AS_PEERS.get(make.family, {})}
    if "pretrain_img_size" in options:
        as_peers["pretrain_img_size"] = image
    model = make(row.arch, **{**row.options, **as_peers}).eval()
    window, pretrained = options.get("window_size") or 0, options.get("pretrained_window_sizes") or 0
    if shape is None and make.family in ("swin", "swin_v2"):
        side = 4 * 2 ** (len(model.arch.depths) - 1) * window
        image = (2 * side, 3 * side)
    spec = PeerSpec(
        model.arch,
        image,
        window,
        (pretrained,) * 4 if isinstance(pretrained, int) else tuple(pretrained),
        drop_path_rate,
        parallel=options.get("parallel", 1),
        resnet=_resnet_stages(model),
        others={name: value for name, value in row.options.items() if name not in IN_SPEC | as_peers.keys()},
    )
    return model, spec


def _resnet_stages(model: nn.Module) -> tuple[int, ...]:
    """Blocks of every stage of the ResNet before a hybrid ViT; empty for other models."""
    resnet = getattr(getattr(model, "patch_embed", None), "backbone", None)
    return () if resnet is None else tuple(len(stage.blocks) for stage in resnet.stages)


def find(name: str) -> Model:
    """Find a row of the model table.

    Raises:
        ValueError: There is no row of this name.
    """
    if row := find_model(name):
        return row
    near = ", ".join(near_names(name)) or "swin_tiny"
    raise ValueError(f"got {name!r}, expected a name of vitdense.list_models(), such as {near}")


def raw_maps(backbone: nn.Module, x: Tensor) -> list[Tensor]:
    """Maps of one of our backbones without output norms, see `Peer.maps`. Changes the backbone."""
    return _mm_maps(backbone, x)


def relative_errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> list[float]:
    """Relative error per map: norm of the difference over the norm of `want`."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]
