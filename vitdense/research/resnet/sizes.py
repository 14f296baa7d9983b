"""Sizes of ResNet and its published weights."""

from dataclasses import dataclass

from vitdense.families import Model, check_sizes


@dataclass(frozen=True)
class ResNetArch:
    """Sizes of a ResNet."""

    embed_dims: int  # width of the stem and of the 3x3 convolutions of the first stage; it doubles per stage
    depths: tuple[int, ...]  # blocks per stage
    bottleneck: bool = True  # bottlenecks, whose output is four times as wide, or blocks of two 3x3 convolutions

    def __post_init__(self) -> None:
        check_sizes(self)

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
}


def rows() -> list[Model]:
    """torchvision's trainings: V1, with which the baselines of mmdet start, and the longer V2."""
    return [
        Model(f"{model}.{data}", model, "ResNet", model, f"torchvision://{model}.{version}", "BSD-3-Clause")
        for data, version, depths in (
            ("tv_in1k", "IMAGENET1K_V1", (18, 34, 50, 101, 152)),
            ("tv2_in1k", "IMAGENET1K_V2", (50, 101, 152)),
        )
        for model in (f"resnet{depth}" for depth in depths)
    ]
