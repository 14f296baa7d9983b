"""Sizes of Swin and its published weights."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.families import RELEASES, Model, check_heads, check_sizes


@dataclass(frozen=True)
class SwinArch:
    """Sizes of a Swin: channels of stage 0 (they double per stage), blocks and heads per stage."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]

    def __post_init__(self) -> None:
        check_sizes(self)
        if len(self.depths) != len(self.num_heads):
            raise OptionError(
                f"arch: depths {self.depths} and num_heads {self.num_heads} must name the same number of stages"
            )
        for stage, heads in enumerate(self.num_heads):
            check_heads(self.embed_dims * 2**stage, heads)


# Swin section 3.3, "Architecture Variants".
SWIN = {
    "tiny": SwinArch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": SwinArch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": SwinArch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": SwinArch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


def rows() -> list[Model]:
    """The authors' releases, on timm (MIT) or from the authors ("official"), and torchvision's own trainings."""

    def row(size: str, image: int, data: str, window: int) -> Model:
        of_image = f"_{image}" * (image != 224)
        weights = f"timm://swin_{size}_patch4_window{window}_{image}.{data}"
        name = f"swin_{size}{of_image}.{data}"
        options = {"window_size": window, **({"pretrain_img_size": image} if image != 224 else {})}
        return Model(name, f"swin_{size}", "Swin", size, weights, "MIT", image, options)

    rows = [row(size, 224, "ms_in1k", 7) for size in ("tiny", "small", "base")]
    rows += [row(size, 224, "ms_in22k", 7) for size in ("tiny", "small", "base", "large")]
    rows += [row(size, 384, "ms_in22k", 12) for size in ("base", "large")]
    for size in ("tiny", "small", "base"):
        weights = f"torchvision://swin_{size[0]}"
        model = f"swin_{size}"
        rows.append(Model(f"{model}.tv_in1k", model, "Swin", size, weights, "BSD-3-Clause", 224, {"window_size": 7}))
        weights = f"{RELEASES}/v1.0.0/swin_{size}_patch4_window7_224.pth"
        rows.append(Model(f"{model}.official_in1k", model, "Swin", size, weights, "MIT", 224, {"window_size": 7}))
    return rows
