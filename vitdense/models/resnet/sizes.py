"""Sizes of ResNet and its published weights."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.models.rows import Model, check_sizes


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
            raise OptionError(
                f"arch: local_stages is {self.local_stages}, expected stages of {len(self.depths)}, from 0"
            )
        if self.local_stages and not self.bottleneck:
            raise OptionError("arch: local_stages is for bottlenecks, got bottleneck=False; leave one of them out")

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


def rows() -> list[Model]:
    """torchvision's trainings: V1, with which the baselines of mmdet start, and the longer V2. Those of "Stand-alone
    self-attention" were never released."""
    rows = [
        Model(f"{model}.{data}", model, "ResNet", model, f"torchvision://{model}.{version}", "BSD-3-Clause")
        for data, version, depths in (
            ("tv_in1k", "IMAGENET1K_V1", (18, 34, 50, 101, 152)),
            ("tv2_in1k", "IMAGENET1K_V2", (50, 101, 152)),
        )
        for model in (f"resnet{depth}" for depth in depths)
    ]
    return [*rows, *(Model(model, model, "ResNet", model) for model in ("sasa26", "sasa38", "sasa50"))]
