"""Sizes of Hiera, as SAM 2 has it, and its published weights."""

from dataclasses import dataclass

from vitdense.errors import OptionError
from vitdense.families import Model, check_heads, check_sizes, is_whole


@dataclass(frozen=True)
class HieraArch:
    """Sizes of a Hiera: channels and heads of the first stage (both double per stage), blocks per stage."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: int
    window_sizes: tuple[int, ...] = (8, 4, 14, 7)  # window side of every stage in tokens
    global_indices: tuple[int, ...] = ()  # blocks without windows, counted from 0 over all stages
    position_grid: tuple[int, int] = (7, 7)  # (h, w) of the position embedding that is resized to the map

    def __post_init__(self) -> None:
        check_sizes(self)
        check_heads(self.embed_dims, self.num_heads)
        sides, grid, number = self.window_sizes, self.position_grid, sum(self.depths)
        if not _are_sizes(sides, len(self.depths)) or any(side % 2 for side in sides[:-1]):
            raise OptionError(f"arch: window_sizes is {sides!r}, expected one per stage, even where the next pools")
        if not _are_sizes(grid, 2):
            raise OptionError(f"arch: position_grid is {grid!r}, expected a pair (h, w) of numbers above 0")
        if not isinstance(self.global_indices, tuple) or not set(self.global_indices) <= set(range(number)):
            raise OptionError(f"arch: global_indices is {self.global_indices!r}, expected blocks below {number}")


def _are_sizes(values: object, number: int) -> bool:
    return isinstance(values, tuple) and len(values) == number and all(map(is_whole, values))


# SAM 2 (Ravi et al., 2024) and its authors' configs; 2.1 has the same.
HIERA = {
    "tiny": HieraArch(96, (1, 2, 7, 2), 1, global_indices=(5, 7, 9)),
    "small": HieraArch(96, (1, 2, 11, 2), 1, global_indices=(7, 10, 13)),
    "base_plus": HieraArch(112, (2, 3, 16, 3), 2, global_indices=(12, 16, 20), position_grid=(14, 14)),
    "large": HieraArch(144, (2, 6, 36, 4), 2, (8, 4, 16, 8), (23, 33, 43)),
}


def rows() -> list[Model]:
    """The trunks of SAM 2.1 and SAM 2, as timm hosts them."""
    rows = []
    for size in HIERA:
        model, pixels = f"sam2_hiera_{size}", 1024 if size == "large" else 896
        for release in ("_2pt1", ""):
            name = f"{model}.fb_r{pixels}{release}"
            rows.append(Model(name, model, "Hiera", size, f"timm://{name}", "Apache-2.0", pixels))
    return rows
