"""Every published size of every family, one row each, with its source. Weights read it too: it imports no torch."""

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import TypeVar


def check_positive(arch: object, *names: str) -> None:
    """Raise a ValueError unless these sizes of `arch` are ints above 0."""
    for name in names:
        if not isinstance(value := getattr(arch, name), int) or value < 1:
            raise ValueError(f"arch: {name} is {value!r}, expected a number above 0")


def check_sizes(embed_dims: int, depths: tuple[int, ...]) -> None:
    """Raise a ValueError unless the channels of the first stage and the blocks of every stage are numbers above 0."""
    if not isinstance(embed_dims, int) or embed_dims < 1:
        raise ValueError(f"arch: embed_dims is {embed_dims!r}, expected a number of channels")
    if not isinstance(depths, tuple) or not depths or not all(isinstance(n, int) and n > 0 for n in depths):
        raise ValueError(
            f"arch: depths is {depths!r}, expected a number of blocks for every stage, such as (2, 2, 6, 2)"
        )


@dataclass(frozen=True)
class SwinArch:
    """Sizes of a Swin: channels of stage 0 (they double per stage), blocks and heads per stage."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]

    def __post_init__(self) -> None:
        check_sizes(self.embed_dims, self.depths)
        if len(self.depths) != len(self.num_heads):
            raise ValueError(
                f"arch: depths {self.depths} and num_heads {self.num_heads} must name the same number of stages"
            )
        for stage, heads in enumerate(self.num_heads):
            if (dim := self.embed_dims * 2**stage) % heads:
                raise ValueError(
                    f"arch: stage {stage} has {dim} channels, which {heads} heads do not divide; change num_heads"
                )


# Swin section 3.3, "Architecture Variants".
SWIN = {
    "tiny": SwinArch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": SwinArch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": SwinArch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": SwinArch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


@dataclass(frozen=True)
class SwinV2Arch(SwinArch):
    """Sizes of a Swin V2: those of a Swin, and every how many blocks of a stage there is an extra norm (0: never)."""

    extra_norm_every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.extra_norm_every, int) or self.extra_norm_every < 0:
            raise ValueError(f"arch: extra_norm_every is {self.extra_norm_every!r}, expected a number of blocks or 0")


# Swin V2 section 3.6, "Model configurations". It names no heads; those of huge and giant, whose weights were never
# released, are mmpretrain's, which calls huge's uncertain (44 channels per head where all other sizes have 32).
SWIN_V2 = {
    "tiny": SwinV2Arch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": SwinV2Arch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": SwinV2Arch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": SwinV2Arch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
    "huge": SwinV2Arch(352, (2, 2, 18, 2), (8, 16, 32, 64), extra_norm_every=6),
    "giant": SwinV2Arch(512, (2, 2, 42, 4), (16, 32, 64, 128), extra_norm_every=6),
}

# Swin Table 6 and the authors' configs/swinmlp. D are the channels per head; base, which the paper calls D24, has 32.
SWIN_MIXER = {
    "tiny_d24": SwinArch(96, (2, 2, 6, 2), (4, 8, 16, 32)),
    "tiny_d12": SwinArch(96, (2, 2, 6, 2), (8, 16, 32, 64)),
    "tiny_d6": SwinArch(96, (2, 2, 6, 2), (16, 32, 64, 128)),
    "base": SwinArch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
}


@dataclass(frozen=True)
class MViTArch:
    """Sizes of an MViT: channels and heads of the first stage (both double per stage), blocks per stage.

    Attributes:
        growth: Which branch changes the width: ``'attention'`` of a stage's first block, or ``'mlp'`` of the last block
            of the stage before.
        pool: ``'conv'`` (depthwise, with a norm) or ``'max'``.
        pool_all_queries: Whether queries have that convolution in every block, or only in blocks that shrink the map.
        relative_position: Decomposed relative positions.
        absolute_position: An absolute position embedding after the patch embedding.
        residual_pooling: Whether the pooled queries are added to the attention's result.
    """

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: int
    growth: str = "attention"
    pool: str = "conv"
    pool_all_queries: bool = True
    relative_position: bool = True
    absolute_position: bool = False
    residual_pooling: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.embed_dims, self.depths)
        if not isinstance(self.num_heads, int) or self.num_heads < 1:
            raise ValueError(
                f"arch: num_heads is {self.num_heads!r}, expected the number of the first stage; it doubles per stage"
            )
        if self.embed_dims % self.num_heads:
            raise ValueError(f"arch: {self.num_heads} heads do not divide {self.embed_dims} channels; change num_heads")
        for name, known in (("growth", ("attention", "mlp")), ("pool", ("conv", "max"))):
            if (got := getattr(self, name)) not in known:
                raise ValueError(f"arch: {name} is {got!r}, expected one of {', '.join(known)}")


_mvit_v1 = partial(
    MViTArch,
    growth="mlp",
    pool_all_queries=False,
    relative_position=False,
    absolute_position=True,
    residual_pooling=False,
)
# MViTv2 Table 1 and the authors' configs. Large was released twice: for ImageNet-1K it grows in the MLP.
MVIT = {
    "v2_tiny": MViTArch(96, (1, 2, 5, 2), 1),
    "v2_small": MViTArch(96, (1, 2, 11, 2), 1),
    "v2_base": MViTArch(96, (2, 3, 16, 3), 1),
    "v2_large": MViTArch(144, (2, 6, 36, 4), 2),
    "v2_large_in1k": MViTArch(144, (2, 6, 36, 4), 2, growth="mlp"),
    "v2_huge": MViTArch(192, (4, 8, 60, 8), 3),
    # MViT v1 Table 2 ("B-16") as trained on images: the released model, and the authors' config with max pooling.
    "v1_base": _mvit_v1(96, (1, 2, 11, 2), 1),
    "v1_base_max": _mvit_v1(96, (1, 2, 11, 2), 1, pool="max"),
}


@dataclass(frozen=True)
class ViTArch:
    """Sizes of a plain ViT, the same in every block.

    Attributes:
        embed_dims: Channels.
        depth: Blocks.
        num_heads: Attention heads.
        patch_size: Patch side and stride in pixels.
        distilled: Whether there is a distillation token in addition to the class token (DeiT section 4).
        token_position: Whether these tokens have position embeddings.
        layer_scale: Initial value of a learned factor per channel on every residual branch; None for no factors.
        constant_drop_path: Whether all blocks have the same stochastic depth; otherwise it is linear from 0.
        talking_heads: Whether attention mixes its heads, before and after the softmax (CaiT).
        class_blocks: Blocks of class attention after the others, which then have no class token (CaiT); needs
            `layer_scale`.
        class_token: Whether there is a class token.
        registers: Register tokens after the class token, without positions (Darcet et al., ICLR 2024).
        norm_eps: Epsilon of every LayerNorm.
        position: Position embedding of the patches: ``'1d'``, ``'2d'`` or ``'none'``, see `ViT`.
        position_rule: How a table of positions is resized to a map: see `layers.position`.
        rope: Rotary positions, one of `vitdense.layers.rope.ROPES`; None for none.
        qkv_bias: Which of queries, keys and values have a bias: ``'all'``, ``'no_key'`` or ``'none'``.
        ffn: ``'mlp'``, with ``'mlp_tanh'`` approximate GELU, ``'swiglu'``, or with a norm inside ``'swiglu_norm'``.
        ffn_dims: Its hidden channels; None for `mlp_ratio` times `embed_dims`.
        pre_norm: Whether the tokens have a norm before the first block.
        taps: Blocks whose maps the authors use; None for the last of every quarter.
    """

    embed_dims: int
    depth: int
    num_heads: int
    patch_size: int = 16
    distilled: bool = False
    token_position: bool = True
    layer_scale: float | None = None
    constant_drop_path: bool = False
    talking_heads: bool = False
    class_blocks: int = 0
    class_token: bool = True
    registers: int = 0
    norm_eps: float = 1e-6
    position: str = "1d"
    position_rule: str = "bicubic"
    rope: str | None = None
    qkv_bias: str = "all"
    ffn: str = "mlp"
    ffn_dims: int | None = None
    pre_norm: bool = False
    taps: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.distilled or self.registers or self.class_blocks) and not self.class_token:
            raise ValueError("arch: distilled, registers and class_blocks need a class_token")
        if self.rope and self.talking_heads:
            raise ValueError("arch: attention with talking_heads has no rope; leave one of them out")
        if self.position_rule != "bicubic" and self.position != "1d":
            raise ValueError(f"arch: position_rule is {self.position_rule!r}, which is for position '1d' only")
        if self.class_blocks and (self.distilled or self.layer_scale is None):
            raise ValueError("arch: class_blocks need a layer_scale and no distillation token")
        check_positive(self, "embed_dims", "depth", "num_heads", "patch_size")
        if self.embed_dims % self.num_heads:
            raise ValueError(f"arch: {self.num_heads} heads do not divide {self.embed_dims} channels; change num_heads")


_cait = partial(
    ViTArch, token_position=False, layer_scale=1e-5, constant_drop_path=True, talking_heads=True, class_blocks=2
)
# DINOv2 (Oquab et al.) Table 16 and the authors' code: at other sizes those with registers resize by another rule.
_dinov2 = partial(ViTArch, patch_size=14, layer_scale=1e-5, position_rule="dinov2")
_DINOV2 = {
    "small": _dinov2(384, 12, 6),
    "base": _dinov2(768, 12, 12),
    "large": _dinov2(1024, 24, 16, taps=(4, 11, 17, 23)),
    "giant": _dinov2(1536, 40, 24, ffn="swiglu", ffn_dims=4096),
}
# DINOv3 (Simeoni et al.) Tables 2 and 3. The authors tap 24 blocks not at the ends of quarters.
_dinov3 = partial(
    ViTArch, layer_scale=1e-5, registers=4, norm_eps=1e-5, position="none", rope="dinov3", qkv_bias="no_key"
)
_DINOV3 = {
    "small": _dinov3(384, 12, 6),
    "small_plus": _dinov3(384, 12, 6, ffn="swiglu", ffn_dims=1536),
    "base": _dinov3(768, 12, 12),
    "large": _dinov3(1024, 24, 16, taps=(4, 11, 17, 23)),
    "large_plus": _dinov3(1024, 24, 16, ffn="swiglu", ffn_dims=4096, taps=(4, 11, 17, 23)),
    "huge_plus": _dinov3(1280, 32, 20, ffn="swiglu", ffn_dims=5120),
    "7b": _dinov3(4096, 40, 32, qkv_bias="none", ffn="swiglu", ffn_dims=8192),
}
# EVA-02 (Fang et al.) Table 3. Patches are of 14 pixels in pretraining, of 16 in detection.
_eva02 = partial(ViTArch, patch_size=14, rope="eva02", qkv_bias="no_key")
# Perception Encoder (Bolya et al., 2025), the spatial models.
_pe = partial(ViTArch, norm_eps=1e-5, position_rule="bilinear", rope="pe", pre_norm=True)
_siglip2 = partial(ViTArch, class_token=False, ffn="mlp_tanh")
_deit3 = partial(ViTArch, token_position=False, layer_scale=1e-4, constant_drop_path=True)
VIT = {
    # ViT Table 1; tiny and small are of "How to train your ViT?" (Steiner et al.), Table 1.
    "vit_tiny": ViTArch(192, 12, 3),
    "vit_small": ViTArch(384, 12, 6),
    "vit_base": ViTArch(768, 12, 12),
    "vit_large": ViTArch(1024, 24, 16),
    "vit_huge": ViTArch(1280, 32, 16, patch_size=14),
    # DeiT Table 1.
    "deit_tiny": ViTArch(192, 12, 3),
    "deit_small": ViTArch(384, 12, 6),
    "deit_base": ViTArch(768, 12, 12),
    "deit_tiny_distilled": ViTArch(192, 12, 3, distilled=True),
    "deit_small_distilled": ViTArch(384, 12, 6, distilled=True),
    "deit_base_distilled": ViTArch(768, 12, 12, distilled=True),
    # DeiT III and the authors' code: positions of patches only, LayerScale.
    "deit3_small": _deit3(384, 12, 6),
    "deit3_medium": _deit3(512, 12, 8),
    "deit3_base": _deit3(768, 12, 12),
    "deit3_large": _deit3(1024, 24, 16),
    "deit3_huge": _deit3(1280, 32, 16, patch_size=14),
    # CaiT ("Going deeper with Image Transformers") Table 3, as far as released.
    "cait_xxs24": _cait(192, 24, 4),
    "cait_xxs36": _cait(192, 36, 4),
    "cait_xs24": _cait(288, 24, 6),
    "cait_s24": _cait(384, 24, 8),
    "cait_s36": _cait(384, 36, 8, layer_scale=1e-6),
    "cait_m36": _cait(768, 36, 16, layer_scale=1e-6),
    "cait_m48": _cait(768, 48, 16, layer_scale=1e-6),
    **{f"dinov2_{size}": row for size, row in _DINOV2.items()},
    **{f"dinov2_{size}_reg": replace(row, registers=4, position_rule="antialias") for size, row in _DINOV2.items()},
    **{f"dinov3_{size}": row for size, row in _DINOV3.items()},
    "lingbot_giant": _dinov3(1536, 40, 24, qkv_bias="none", ffn="swiglu", ffn_dims=4096),  # LingBot-Vision
    "pe_spatial_tiny": _pe(192, 12, 3),
    "pe_spatial_small": _pe(384, 12, 6),
    "pe_spatial_base": _pe(768, 12, 12),
    "pe_spatial_large": _pe(1024, 24, 16, patch_size=14),
    "pe_spatial_giant": _pe(1536, 50, 16, patch_size=14, class_token=False, layer_scale=0.1, ffn_dims=8960),
    # SigLIP 2 (Tschannen et al., 2025), the models of one image size.
    "siglip2_base": _siglip2(768, 12, 12),
    "siglip2_large": _siglip2(1024, 24, 16),
    "siglip2_so400m": _siglip2(1152, 27, 16, ffn_dims=4304),
    "eva02_tiny": _eva02(192, 12, 3, ffn="swiglu", ffn_dims=512),
    "eva02_small": _eva02(384, 12, 6, ffn="swiglu", ffn_dims=1024),
    "eva02_base": _eva02(768, 12, 12, ffn="swiglu_norm", ffn_dims=2048),
    "eva02_large": _eva02(1024, 24, 16, ffn="swiglu_norm", ffn_dims=2730),
}


@dataclass(frozen=True)
class MixerArch:
    """Sizes of an isotropic mixer, the same in every block.

    Attributes:
        embed_dims: Channels.
        depth: Blocks.
        patch_size: Patch side and stride in pixels.
        block: ``'mixer'``, ``'resmlp'`` or ``'gmlp'``.
        mlp_ratio: Hidden width of the channel MLPs over `embed_dims`. (That of Mixer's token MLPs is 0.5.)
        layer_scale: Initial value of a learned factor per channel on every residual branch; ResMLP's alone.
    """

    embed_dims: int
    depth: int
    patch_size: int = 16
    block: str = "mixer"
    mlp_ratio: float = 4.0
    layer_scale: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "embed_dims", "depth", "patch_size")
        if self.block not in ("mixer", "resmlp", "gmlp"):
            raise ValueError(f"arch: block is {self.block!r}, expected one of mixer, resmlp, gmlp")
        if (self.block == "resmlp") != (self.layer_scale is not None):
            raise ValueError(
                f"arch: layer_scale is {self.layer_scale!r}, block {self.block!r}; expected a number for 'resmlp' alone"
            )


_resmlp = partial(MixerArch, block="resmlp")
_gmlp = partial(MixerArch, depth=30, block="gmlp", mlp_ratio=6.0)
MIXER = {
    # MLP-Mixer Table 1.
    "mixer_small_32": MixerArch(512, 8, patch_size=32),
    "mixer_small_16": MixerArch(512, 8),
    "mixer_base_32": MixerArch(768, 12, patch_size=32),
    "mixer_base_16": MixerArch(768, 12),
    "mixer_large_32": MixerArch(1024, 24, patch_size=32),
    "mixer_large_16": MixerArch(1024, 24),
    "mixer_huge_14": MixerArch(1280, 32, patch_size=14),
    # ResMLP Table 1 and the authors' code.
    "resmlp_small_12": _resmlp(384, 12, layer_scale=0.1),
    "resmlp_small_24": _resmlp(384, 24, layer_scale=1e-5),
    "resmlp_small_36": _resmlp(384, 36, layer_scale=1e-6),
    "resmlp_base_24": _resmlp(768, 24, patch_size=8, layer_scale=1e-6),
    # gMLP Table 1.
    "gmlp_tiny": _gmlp(128),
    "gmlp_small": _gmlp(256),
    "gmlp_base": _gmlp(512),
}


@dataclass(frozen=True)
class NATArch(SwinArch):
    """Sizes of a NAT: those of a Swin, and what else differs.

    Attributes:
        mlp_ratio: Hidden width of the MLPs over their input.
        layer_scale: Initial value of a learned factor per channel on every residual branch; None for no factors.
    """

    mlp_ratio: float
    layer_scale: float | None = None


# NAT Table 1 and the authors' code.
NAT = {
    "mini": NATArch(64, (3, 4, 6, 5), (2, 4, 8, 16), 3.0),
    "tiny": NATArch(64, (3, 4, 18, 5), (2, 4, 8, 16), 3.0),
    "small": NATArch(96, (3, 4, 18, 5), (3, 6, 12, 24), 2.0, layer_scale=1e-5),
    "base": NATArch(128, (3, 4, 18, 5), (4, 8, 16, 32), 2.0, layer_scale=1e-5),
}


@dataclass(frozen=True)
class ResNetArch:
    """Sizes of a ResNet, or of a "Stand-alone self-attention" network.

    Attributes:
        embed_dims: Width of the stem and of the 3x3 convolutions of the first stage; it doubles per stage.
        depths: Blocks per stage.
        bottleneck: Whether blocks are bottlenecks, whose output is four times as wide, or have two 3x3 convolutions.
        local_stages: Stages, counted from 0, whose bottlenecks have local self-attention in place of the convolution.
        kernel: Side of its neighbourhood.
        num_heads: Its heads.
    """

    embed_dims: int
    depths: tuple[int, ...]
    bottleneck: bool = True
    local_stages: tuple[int, ...] = ()
    kernel: int = 7
    num_heads: int = 8

    def __post_init__(self) -> None:
        check_sizes(self.embed_dims, self.depths)
        if not {*self.local_stages} <= {*range(len(self.depths))}:
            raise ValueError(
                f"arch: local_stages is {self.local_stages}, expected stages of {len(self.depths)}, from 0"
            )
        if self.local_stages and not self.bottleneck:
            raise ValueError("arch: local_stages is for bottlenecks, got bottleneck=False; leave one of them out")

    @property
    def dims(self) -> list[int]:
        """Channels of every stage."""
        return [self.embed_dims * 2**stage * (4 if self.bottleneck else 1) for stage in range(len(self.depths))]


RESNET = {
    # ResNet Table 1.
    "resnet18": ResNetArch(64, (2, 2, 2, 2), bottleneck=False),
    "resnet34": ResNetArch(64, (3, 4, 6, 3), bottleneck=False),
    "resnet50": ResNetArch(64, (3, 4, 6, 3)),
    "resnet101": ResNetArch(64, (3, 4, 23, 3)),
    "resnet152": ResNetArch(64, (3, 8, 36, 3)),
    # "Stand-alone self-attention in vision models" section 4.1, with the convolutional stem.
    "sasa26": ResNetArch(64, (1, 2, 4, 1), local_stages=(0, 1, 2, 3)),
    "sasa38": ResNetArch(64, (2, 3, 5, 2), local_stages=(0, 1, 2, 3)),
    "sasa50": ResNetArch(64, (3, 4, 6, 3), local_stages=(0, 1, 2, 3)),
}

# Every family: its class, and the name of its modules in `vitdense.backbones` and `vitdense.weights.families`.
FAMILIES = {
    "Swin": "swin",
    "SwinV2": "swin_v2",
    "MViT": "mvit",
    "ViT": "vit",
    "SwinMixer": "swin_mixer",
    "Mixer": "mixer",
    "NAT": "nat",
    "ResNet": "resnet",
    "ViTAdapter": "vit_adapter",
}

Arch = TypeVar("Arch")


def find_arch(arch: str | Mapping, table: Mapping[str, Arch]) -> Arch:
    """The row of `table` named `arch`, or a new row of the same type from a mapping of sizes.

    Raises:
        ValueError: The name is not in the table, or the mapping does not have exactly the row's fields (those with
            a default may be left out).
    """
    if isinstance(arch, str):
        if arch not in table:
            # timm's names contain ours: swin_tiny_patch4_window7_224.
            contained = sorted((name for name in table if name in arch), key=len)
            near = contained[-1:] or difflib.get_close_matches(arch, table, n=1)
            hint = f"; did you mean arch={near[0]!r}?" if near else ""
            raise ValueError(f"arch: got {arch!r}, expected one of {', '.join(table)} or a dict of sizes{hint}")
        return table[arch]
    row = type(next(iter(table.values())))
    needed = [field.name for field in fields(row) if field.default is MISSING]
    optional = [field.name for field in fields(row) if field.default is not MISSING]
    if not set(needed) <= set(arch) <= {*needed, *optional}:
        either = f" and, if wanted, {', '.join(optional)}" if optional else ""
        raise ValueError(f"arch: got the sizes {sorted(arch)}, expected exactly {', '.join(needed)}{either}")
    return row(**{name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in arch.items()})
