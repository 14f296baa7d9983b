"""Sizes of MViT and its published weights."""

from dataclasses import dataclass
from functools import partial

from vitdense.errors import check_choice
from vitdense.families import Model, check_heads, check_sizes


@dataclass(frozen=True)
class MViTArch:
    """Sizes of an MViT: channels and heads of the first stage (both double per stage), blocks per stage."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: int
    growth: str = "attention"  # where channels double: a stage's first attention, or the last 'mlp' before it
    pool: str = "conv"  # 'conv' (depthwise, with a norm) or 'max'
    pool_all_queries: bool = True  # whether queries are pooled in every block, or only where the map shrinks
    relative_position: bool = True  # decomposed relative positions
    absolute_position: bool = False  # an absolute position embedding after the patch embedding
    residual_pooling: bool = True  # whether the pooled queries are added to the attention's result

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self.embed_dims, self.num_heads)
        check_choice("arch: growth", self.growth, ("attention", "mlp"))
        check_choice("arch: pool", self.pool, ("conv", "max"))


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


def rows() -> list[Model]:
    """The authors' releases on timm: ImageNet-1K, or 21K of winter 2021 with a class token, which is ignored."""

    def row(size: str, data: str, timm: str, arch: str | None = None) -> Model:
        model = f"mvitv2_{size}"
        return Model(f"{model}.{data}", model, "MViT", arch or f"v2_{size}", f"timm://{timm}.{data}", "Apache-2.0")

    return [
        *(row(size, "fb_in1k", f"mvitv2_{size}") for size in ("tiny", "small", "base")),
        *(row(size, "fb_inw21k", f"mvitv2_{size}_cls") for size in ("base", "large", "huge")),
        row("large_mlp", "fb_in1k", "mvitv2_large", "v2_large_in1k"),  # another architecture than the 21K release
        # The authors' page does not allow automatic downloads: users must give the file.
        *(Model(f"mvit{arch}", f"mvit{arch}", "MViT", arch) for arch in ("v1_base", "v1_base_max")),
    ]
