"""Every published size of every family, one row each, with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class SwinArch:
    """Sizes of a Swin: channels of stage 0 (they double per stage), blocks and heads per stage."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.num_heads):
            raise ValueError(
                f"arch: depths {self.depths} and num_heads {self.num_heads} must name the same number of stages"
            )
        for stage, heads in enumerate(self.num_heads):
            if (dim := self.embed_dims * 2**stage) % heads:
                raise ValueError(
                    f"arch: stage {stage} has {dim} channels, which {heads} heads do not divide; change num_heads"
                )


# Swin section 3.3, "Architecture Variants".
SWIN = {
    "tiny": SwinArch(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": SwinArch(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": SwinArch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": SwinArch(192, (2, 2, 18, 2), (6, 12, 24, 48)),
}

Arch = TypeVar("Arch")


def find_arch(arch: str | Mapping, table: Mapping[str, Arch]) -> Arch:
    """The row of `table` named `arch`, or a new row of the same type from a mapping of sizes.

    Raises:
        ValueError: The name is not in the table, or the mapping does not have exactly the row's fields.
    """
    if isinstance(arch, str):
        if arch not in table:
            raise ValueError(f"arch: got {arch!r}, expected one of {', '.join(table)} or a dict of sizes")
        return table[arch]
    row = type(next(iter(table.values())))
    fields = row.__dataclass_fields__
    if set(arch) != set(fields):
        raise ValueError(f"arch: got the sizes {sorted(arch)}, expected exactly {', '.join(fields)}")
    return row(**{name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in arch.items()})
