"""Sizes of Swin V2 and its published weights."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.families import RELEASES, Model
from vitdense.models.swin.sizes import SwinArch


@dataclass(frozen=True)
class SwinV2Arch(SwinArch):
    """Sizes of a Swin V2: the fields of a Swin, and after how many blocks of a stage an extra norm is (0: never)."""

    extra_norm_every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.extra_norm_every, int) or self.extra_norm_every < 0:
            raise OptionError(f"arch: extra_norm_every is {self.extra_norm_every!r}, expected a number of blocks or 0")


# Swin V2 section 3.6, "Model configurations". It names no heads; the heads of huge and giant, whose weights were never
# released, are mmpretrain's, which calls huge's uncertain (44 channels per head where all other sizes have 32).
SWIN_V2 = {
    "tiny": SwinV2Arch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": SwinV2Arch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": SwinV2Arch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": SwinV2Arch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
    "huge": SwinV2Arch(352, (2, 2, 18, 2), (8, 16, 32, 64), extra_norm_every=6),
    "giant": SwinV2Arch(512, (2, 2, 42, 4), (16, 32, 64, 128), extra_norm_every=6),
}


def rows() -> list[Model]:
    """Releases as for Swin. If the last stage's map in pretraining was smaller than the window, it was the window."""

    def row(size: str, window: int, data: str, image: int, weights: str, licence: str = "MIT") -> Model:
        trained = (window, window, window, min(window, image // 32))
        options = {"window_size": window, "pretrained_window_sizes": trained}
        options |= {"pretrain_img_size": image} if image != 256 else {}
        name = f"swinv2_{size}_w{window}.{data}"
        return Model(name, f"swinv2_{size}", "SwinV2", size, weights, licence, image, options)

    rows = [
        row(size, window, data, image, f"timm://swinv2_{size}_window{window}_{image}.{data}")
        for sizes, window, data, image in (
            (("tiny", "small", "base"), 8, "ms_in1k", 256),
            (("tiny", "small", "base"), 16, "ms_in1k", 256),
            (("base", "large"), 12, "ms_in22k", 192),
        )
        for size in sizes
    ]
    for size in ("tiny", "small", "base"):
        rows.append(row(size, 8, "tv_in1k", 256, f"torchvision://swin_v2_{size[0]}", "BSD-3-Clause"))
    for window in (8, 16):
        weights = f"{RELEASES}/v2.0.0/swinv2_tiny_patch4_window{window}_256.pth"
        rows.append(row("tiny", window, "official_in1k", 256, weights))
    # Never released: the names build the models without weights.
    return [*rows, *(Model(f"swinv2_{size}", f"swinv2_{size}", "SwinV2", size) for size in ("huge", "giant"))]
