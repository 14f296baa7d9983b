"""Comparison of an exported program with its model; for results see `vitdense.runtime.compare_results`."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from vitdense.export.program import largest_error
from vitdense.runtime import Bounds, Output, counting


def compare_maps(got: Mapping, want: Mapping[str, Tensor], bounds: Bounds) -> tuple[bool, str]:
    """Whether the outputs of a program equal the model's within `bounds`, and the error as text."""
    error = largest_error(got, want)
    fits = error <= bounds.error  # NaN is not
    return fits, f"relative error {error:.1e}" + ("" if fits else f" to the model, expected at most {bounds.error:.0e}")


def can_compare(wanted: Sequence[Output], bounds: Bounds) -> bool:
    """Whether a model finds an object, or any pixel class, to compare a program with."""
    return any(want.semantic is not None or counting(want, bounds).any() for want in wanted)
