"""Sizes of "Stand-alone self-attention in vision models". Its weights were never released."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.families import Model
from vitdense.research.resnet.sizes import ResNetArch


@dataclass(frozen=True)
class SASAArch(ResNetArch):
    """Sizes of a ResNet of bottlenecks with local self-attention."""

    local_stages: tuple[int, ...] = (0, 1, 2, 3)  # stages, from 0, with attention in place of 3x3 convolutions
    kernel: int = 7  # side of the neighbourhood
    num_heads: int = 8  # attention heads

    def __post_init__(self) -> None:
        super().__post_init__()
        stages = range(len(self.depths))
        if not self.bottleneck or not self.local_stages or not {*self.local_stages} <= {*stages}:
            raise OptionError(
                f"arch: got local_stages={self.local_stages}, bottleneck={self.bottleneck}; expected stages of "
                f"{len(stages)}, from 0, and bottlenecks"
            )


SASA = {  # section 4.1, with the convolutional stem
    "sasa26": SASAArch(64, (1, 2, 4, 1)),
    "sasa38": SASAArch(64, (2, 3, 5, 2)),
    "sasa50": SASAArch(64, (3, 4, 6, 3)),
}


def rows() -> list[Model]:
    """The models, without weights."""
    return [Model(name, name, "SASA", name) for name in SASA]
