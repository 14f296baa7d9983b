"""`python -m vitdense verify`: whether an engine computes what the trained model did; see `vitdense.runtime.verify`."""

from collections.abc import Sequence

from vitdense import runtime


def main(argv: Sequence[str]) -> int:
    """The command; its exit status: 0 the same, 1 other, 2 where it cannot be told."""
    return runtime.main(argv, command="vitdense verify")
