"""Sizes of the plain ViTs and their published weights."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vitdense.errors import OptionError
from vitdense.families import CLIP, HALF, IMAGENET, SATELLITE, UNIT, Model, check_heads, check_positive


@dataclass(frozen=True)
class ViTArch:
    """Sizes of a plain ViT, the same in every block."""

    embed_dims: int  # channels
    depth: int  # blocks
    num_heads: int  # attention heads
    patch_size: int = 16  # patch side and stride in pixels
    distilled: bool = False  # whether there is a distillation token in addition to the class token (DeiT section 4)
    token_position: bool = True  # whether these tokens have position embeddings
    layer_scale: float | None = None  # initial factor per channel on each residual branch; None: no factors
    constant_drop_path: bool = False  # whether all blocks have the same stochastic depth; else it grows linearly from 0
    class_token: bool = True  # whether there is a class token
    registers: int = 0  # register tokens after the class token, without positions (Darcet et al., ICLR 2024)
    norm_eps: float = 1e-6  # epsilon of every LayerNorm
    absolute_position: bool = True  # whether there are learned positions of the patches
    position_rule: str = "bicubic"  # rule to resize positions to a map, see `layers.position`
    rope: str | None = None  # rotary positions, one of `vitdense.layers.rope.ROPES`; None for none
    qkv_bias: str = "all"  # which of queries, keys and values have a bias: 'all', 'no_key' or 'none'
    ffn: str = "mlp"  # 'mlp', with 'mlp_tanh' approximate GELU, 'swiglu', or with a norm inside 'swiglu_norm'
    ffn_dims: int | None = None  # hidden channels; None for `mlp_ratio` times `embed_dims`
    pre_norm: bool = False  # whether the tokens have a norm before the first block
    taps: tuple[int, ...] | None = None  # blocks whose maps the authors use; None for the last of every quarter

    def __post_init__(self) -> None:
        if (self.distilled or self.registers) and not self.class_token:
            raise OptionError("arch: distilled and registers need a class_token")
        check_positive(self, "embed_dims", "depth", "patch_size")
        check_heads(self.embed_dims, self.num_heads)


# DINOv2 (Oquab et al.) Table 16 and the authors' code: at other sizes those with registers resize by another rule.
_dinov2 = partial(ViTArch, patch_size=14, layer_scale=1e-5, position_rule="dinov2")
_DINOV2 = {
    "small": _dinov2(384, 12, 6),
    "base": _dinov2(768, 12, 12),
    "large": _dinov2(1024, 24, 16, taps=(4, 11, 17, 23)),
    "giant": _dinov2(1536, 40, 24, ffn="swiglu", ffn_dims=4096),
}
# TIPSv2 (arXiv 2604.12012), sizes as in timm and transformers: the trunk of DINOv2 with one register.
_TIPSV2 = {
    "base": _dinov2(768, 12, 12),
    "large": _dinov2(1024, 24, 16),
    "so400m": _dinov2(1152, 27, 16, ffn_dims=4304),
    "giant": _DINOV2["giant"],
}
# DINOv3 (Simeoni et al.) Tables 2 and 3. The authors tap 24 blocks not at the ends of quarters.
_dinov3 = partial(
    ViTArch, layer_scale=1e-5, registers=4, norm_eps=1e-5, absolute_position=False, rope="dinov3", qkv_bias="no_key"
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
# C-RADIO (arXiv 2412.07679 and 2601.17237), as in timm: a class token for every teacher, then registers.
_radio = partial(ViTArch, token_position=False, position_rule="bilinear_square")
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
    **{f"dinov2_{size}": row for size, row in _DINOV2.items()},
    **{f"dinov2_{size}_reg": replace(row, registers=4, position_rule="antialias") for size, row in _DINOV2.items()},
    **{
        f"tipsv2_{size}": replace(row, registers=1, position_rule="bilinear_antialias", layer_scale=1.0)
        for size, row in _TIPSV2.items()
    },
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
    "cradio_v3_base": _radio(768, 12, 12, layer_scale=1e-5, registers=7, position_rule="bilinear_square_corners"),
    "cradio_v4_so400m": _radio(1152, 27, 16, ffn_dims=4304, registers=9),
    "cradio_v4_huge": _radio(1280, 32, 16, registers=9),
    "eva02_tiny": _eva02(192, 12, 3, ffn="swiglu", ffn_dims=512),
    "eva02_small": _eva02(384, 12, 6, ffn="swiglu", ffn_dims=1024),
    "eva02_base": _eva02(768, 12, 12, ffn="swiglu_norm", ffn_dims=2048),
    "eva02_large": _eva02(1024, 24, 16, ffn="swiglu_norm", ffn_dims=2730),
}


def rows() -> list[Model]:
    """All models."""
    found = [*_vit(), *_foundation()]
    return [replace(row, patch_size=row.options.get("patch_size", VIT[row.arch].patch_size)) for row in found]


def timm_vit(
    model: str,
    data: str,
    image: int = 224,
    patch: str = "",
    arch: str | None = None,
    licence: str = "Apache-2.0",
    stats: tuple = IMAGENET,
    family: str = "ViT",
    **options: Any,
) -> Model:
    """A ViT whose weights timm hosts, as ``<model><patch>_<image>.<data>``. Its arch is `model` unless given."""
    name = f"{model}{f'_{image}' * (image != 224)}.{data}"
    weights = f"timm://{model}{patch}_{image}.{data}"
    options["pretrain_img_size"] = image
    return Model(name, model, family, arch or model, weights, licence, image, options, *stats)


def _vit() -> list[Model]:
    """The authors' releases: DeiT, DeiT III, "How to train your ViT?", MAE's pretraining."""

    def row(model: str, data: str, image: int = 224, **others: Any) -> Model:
        return timm_vit(model, data, image, "_patch14" if model.endswith("huge") else "_patch16", **others)

    rows = [row(f"deit_{size}", "fb_in1k") for size in ("tiny", "small", "base")]
    rows += [row(f"deit_{size}_distilled", "fb_in1k") for size in ("tiny", "small", "base")]
    rows += [row(model, "fb_in1k", 384) for model in ("deit_base", "deit_base_distilled")]
    for image, sizes in ((224, ("small", "medium", "base", "large", "huge")), (384, ("small", "base", "large"))):
        for size in sizes:
            rows += [row(f"deit3_{size}", data, image) for data in ("fb_in1k", "fb_in22k_ft_in1k")]
    for data, image, sizes in (
        ("augreg_in21k", 224, ("tiny", "small", "base", "large")),
        ("augreg_in21k_ft_in1k", 224, ("tiny", "small", "base", "large")),
        ("augreg_in21k_ft_in1k", 384, ("tiny", "small", "base", "large")),
        ("augreg_in1k", 224, ("small", "base")),
    ):
        rows += [row(f"vit_{size}", data, image, stats=HALF) for size in sizes]
    rows += [row(f"vit_{size}", "mae", licence="CC-BY-NC-4.0") for size in ("base", "large", "huge")]
    return rows


def _foundation() -> list[Model]:
    """DINOv2 from its authors; the others from timm. LingBot-Vision has DINOv3's architecture.

    timm's files of DINOv3 have biases of queries and values (``_qkvb``), as the authors' have except 7B, and periods
    that are not rounded.
    """
    rows = []
    for registers in ("", "_reg"):
        for size in ("small", "base", "large", "giant"):
            model, file = f"dinov2_{size}{registers}", f"dinov2_vit{size[0]}14"
            url = f"https://dl.fbaipublicfiles.com/dinov2/{file}/{file}{registers and '_reg4'}_pretrain.pth"
            options = {"pretrain_img_size": 518, "out_norm": "shared"}
            rows.append(Model(f"{model}.fb_lvd142m", model, "ViT", model, url, "Apache-2.0", 518, options))
    shared = {"out_norm": "shared"}
    gate = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"
    for data, stats, sizes in (
        ("lvd1689m", IMAGENET, ("small", "small_plus", "base", "large", "huge_plus", "7b")),
        ("sat493m", SATELLITE, ("large", "7b")),
    ):
        for size in sizes:
            model, biases = f"dinov3_{size}", "_qkvb" * (size != "7b")
            weights = f"timm://vit_{size}_patch16_dinov3{biases}.{data}"
            details = (weights, "DINOv3-License", 256, shared, *stats, None, gate)
            rows.append(Model(f"{model}.fb_{data}", model, "ViT", model, *details))
    rows.append(Model("dinov3_large_plus", "dinov3_large_plus", "ViT", "dinov3_large_plus", options=shared))  # no file
    for size in ("small", "base", "large", "giant"):
        model, arch = f"lingbot_{size}", "lingbot_giant" if size == "giant" else f"dinov3_{size}"
        weights = f"timm://vit_{size}_patch16_lingbot.robbyant"
        rows.append(Model(f"{model}.robbyant", model, "ViT", arch, weights, "Apache-2.0", 512, shared))
    for size in ("tiny", "small", "base", "large", "giant"):
        model = f"pe_spatial_{size}"
        patch, image = VIT[model].patch_size, 32 * VIT[model].patch_size
        options = {"pretrain_img_size": image}
        weights = f"timm://vit_pe_spatial_{size.replace('giant', 'gigantic')}_patch{patch}_{image}.fb"
        rows.append(Model(f"{model}.fb", model, "ViT", model, weights, "Apache-2.0", image, options, *HALF))
    for size, image in (("base", 512), ("base", 224), ("large", 512), ("so400m", 512)):
        model, options = f"siglip2_{size}", {"pretrain_img_size": image, "out_norm": "shared"}
        file = f"vit_{size}_patch16_siglip_{image}.v2_webli"
        # timm's model of this size has the exact GELU, unlike the authors'.
        weights = f"hf://timm/{file}/model.safetensors" if size == "base" else f"timm://{file}"
        name = f"{model}{f'_{image}' * (image != 512)}.webli"
        rows.append(Model(name, model, "ViT", model, weights, "Apache-2.0", image, options, *HALF))
    for size in ("base", "large", "so400m", "giant"):  # of images that are not normalised
        model, options = f"tipsv2_{size}", {"pretrain_img_size": 448, "out_norm": "shared"}
        weights = f"timm://vit_{size}_patch14_reg1_tipsv2.webli"
        rows.append(Model(f"{model}.webli", model, "ViT", model, weights, "Apache-2.0", 448, options, *UNIT))
    for model in ("cradio_v3_base", "cradio_v4_so400m", "cradio_v4_huge"):  # with their whole table of positions
        _, version, size = model.split("_")
        weights = f"timm://naflexvit_{size}_patch16_radio_{version}.c_radio"
        details = (weights, "NVIDIA-Open-Model-License", 512, {"pretrain_img_size": 2048, "out_norm": "none"}, *CLIP)
        rows.append(Model(f"{model}.c_radio", model, "ViT", model, *details))
    for size, image, data in (
        *((size, 224, "mim_in22k") for size in ("tiny", "small", "base", "large")),
        *((size, 336, "mim_in22k_ft_in1k") for size in ("tiny", "small")),
        *((size, 448, "mim_in22k_ft_in22k_in1k") for size in ("base", "large")),
        *(("large", 224, "mim_m38m"), ("large", 448, "mim_m38m_ft_in22k_in1k")),
    ):
        rows.append(timm_vit(f"eva02_{size}", data, image, "_patch14", licence="MIT", stats=CLIP))
    return rows
