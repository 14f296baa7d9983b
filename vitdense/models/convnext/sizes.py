"""Sizes of ConvNeXt and ConvNeXt V2, and their published weights."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.families import Model, check_sizes


@dataclass(frozen=True)
class ConvNeXtArch:
    """Sizes of a ConvNeXt."""

    embed_dims: int  # channels of the first stage; each one after it has twice as many
    depths: tuple[int, ...]  # blocks per stage
    grn: bool = False  # whether MLPs have a global response normalisation (V2), in place of LayerScale

    def __post_init__(self) -> None:
        check_sizes(self)
        if not isinstance(self.grn, bool):
            raise OptionError(f"arch: grn is {self.grn!r}, expected True or False")


_DEPTHS = {"small": (3, 3, 27, 3), "tiny": (3, 3, 9, 3), "nano": (2, 2, 8, 2), "atto": (2, 2, 6, 2)}
CONVNEXT = {
    # ConvNeXt (Liu et al., CVPR 2022) section 3.
    "tiny": ConvNeXtArch(96, _DEPTHS["tiny"]),
    "small": ConvNeXtArch(96, _DEPTHS["small"]),
    "base": ConvNeXtArch(128, _DEPTHS["small"]),
    "large": ConvNeXtArch(192, _DEPTHS["small"]),
    "xlarge": ConvNeXtArch(256, _DEPTHS["small"]),
    # ConvNeXt V2 (Woo et al., CVPR 2023) appendix, "model configurations".
    "v2_atto": ConvNeXtArch(40, _DEPTHS["atto"], grn=True),
    "v2_femto": ConvNeXtArch(48, _DEPTHS["atto"], grn=True),
    "v2_pico": ConvNeXtArch(64, _DEPTHS["atto"], grn=True),
    "v2_nano": ConvNeXtArch(80, _DEPTHS["nano"], grn=True),
    "v2_tiny": ConvNeXtArch(96, _DEPTHS["tiny"], grn=True),
    "v2_base": ConvNeXtArch(128, _DEPTHS["small"], grn=True),
    "v2_large": ConvNeXtArch(192, _DEPTHS["small"], grn=True),
    "v2_huge": ConvNeXtArch(352, _DEPTHS["small"], grn=True),
}


_GATE = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"


def rows() -> list[Model]:
    """The authors' releases, and DINOv3's, as timm hosts them."""
    v1, v2 = ([size for size in CONVNEXT if size.startswith("v2_") == is_v2] for is_v2 in (False, True))
    found = [(size, data, "Apache-2.0") for data in ("fb_in1k", "fb_in22k") for size in v1]
    found += [(size, data, "CC-BY-NC-4.0") for data in ("fcmae_ft_in1k", "fcmae") for size in v2]
    found.remove(("xlarge", "fb_in1k", "Apache-2.0"))  # which was not published
    rows = []
    for size, data, licence in found:
        model = f"convnext{size}" if size in v2 else f"convnext_{size}"
        rows.append(Model(f"{model}.{data}", model, "ConvNeXt", size, f"timm://{model}.{data}", licence))
    for size in ("tiny", "small", "base", "large"):
        model, weights = f"dinov3_convnext_{size}", f"timm://convnext_{size}.dinov3_lvd1689m"
        rows.append(Model(f"{model}.fb_lvd1689m", model, "ConvNeXt", size, weights, "DINOv3-License", gate=_GATE))
    return rows
