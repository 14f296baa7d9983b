"""Sizes of MLP-Mixer, ResMLP and gMLP, and their published weights."""

from dataclasses import dataclass
from functools import partial

from vitdense.errors import OptionError, check_choice
from vitdense.families import HALF, IMAGENET, UNIT, Model, check_positive


@dataclass(frozen=True)
class MixerArch:
    """Sizes of an isotropic mixer, the same in every block."""

    embed_dims: int  # channels
    depth: int  # blocks
    patch_size: int = 16  # patch side and stride in pixels
    block: str = "mixer"  # 'mixer', 'resmlp' or 'gmlp'
    mlp_ratio: float = 4.0  # hidden width of the channel MLPs over `embed_dims` (token MLPs of Mixer: 0.5)
    layer_scale: float | None = None  # initial factor per channel on each residual branch, for ResMLP only

    def __post_init__(self) -> None:
        check_positive(self, "embed_dims", "depth", "patch_size")
        check_choice("arch: block", self.block, ("mixer", "resmlp", "gmlp"))
        if (self.block == "resmlp") != (self.layer_scale is not None):
            raise OptionError(
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


def rows() -> list[Model]:
    """Weights on timm: from Google (flax), Alibaba ("miil"), the ResMLP authors, and timm's own gMLP."""
    rows = []
    for model, timm, stats, data in (
        ("mixer_base_16", "mixer_b16_224", HALF, ("goog_in21k", "goog_in21k_ft_in1k")),
        ("mixer_base_16", "mixer_b16_224", UNIT, ("miil_in21k", "miil_in21k_ft_in1k")),
        ("mixer_large_16", "mixer_l16_224", HALF, ("goog_in21k", "goog_in21k_ft_in1k")),
        ("resmlp_small_12", "resmlp_12_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
        ("resmlp_small_24", "resmlp_24_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
        ("resmlp_small_36", "resmlp_36_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k")),
        ("resmlp_base_24", "resmlp_big_24_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_in22k_ft_in1k")),
        ("gmlp_small", "gmlp_s16_224", HALF, ("ra3_in1k",)),
    ):
        for name in data:
            weights = f"timm://{timm}.{name}"
            rows.append(Model(f"{model}.{name}", model, "Mixer", model, weights, "Apache-2.0", 224, {}, *stats))
    # Never released, or not for torch.
    mixers = (f"mixer_{size}" for size in ("small_32", "small_16", "base_32", "large_32", "huge_14"))
    return [*rows, *(Model(model, model, "Mixer", model) for model in (*mixers, "gmlp_tiny", "gmlp_base"))]
