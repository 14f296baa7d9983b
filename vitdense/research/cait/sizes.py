"""Sizes of CaiT and their published weights."""

from dataclasses import dataclass, replace

from vitdense.families import Model
from vitdense.models.vit.sizes import ViTArch, timm_vit


@dataclass(frozen=True)
class CaiTArch(ViTArch):
    """Sizes of a CaiT: the fields of `ViTArch`, with other defaults, and one more."""

    class_token: bool = False
    layer_scale: float = 1e-5
    constant_drop_path: bool = True
    class_blocks: int = 2  # blocks of class attention after the others


CAIT = {  # Table 3, as far as released
    "cait_xxs24": CaiTArch(192, 24, 4),
    "cait_xxs36": CaiTArch(192, 36, 4),
    "cait_xs24": CaiTArch(288, 24, 6),
    "cait_s24": CaiTArch(384, 24, 8),
    "cait_s36": CaiTArch(384, 36, 8, layer_scale=1e-6),
    "cait_m36": CaiTArch(768, 36, 16, layer_scale=1e-6),
    "cait_m48": CaiTArch(768, 48, 16, layer_scale=1e-6),
}


def rows() -> list[Model]:
    """The authors' releases, distilled on ImageNet-1K, as timm hosts them."""
    small, all_at_384 = ("xxs24", "xxs36", "s24"), ("xxs24", "xxs36", "xs24", "s24", "s36", "m36")
    found = [(size, image) for image, sizes in ((224, small), (384, all_at_384)) for size in sizes]
    rows = [timm_vit(f"cait_{size}", "fb_dist_in1k", image, family="CaiT") for size, image in (*found, ("m48", 448))]
    return [replace(row, patch_size=CAIT[row.arch].patch_size) for row in rows]
