"""Sizes of NAT and its published weights."""

from dataclasses import dataclass

from vitdense.families import Model
from vitdense.models.swin.sizes import SwinArch


@dataclass(frozen=True)
class NATArch(SwinArch):
    """Sizes of a NAT: the fields of a Swin, and two more."""

    mlp_ratio: float  # hidden width of the MLPs over their input
    layer_scale: float | None = None  # initial factor per channel on each residual branch; None: no factors


# NAT Table 1 and the authors' code.
NAT = {
    "mini": NATArch(64, (3, 4, 6, 5), (2, 4, 8, 16), 3.0),
    "tiny": NATArch(64, (3, 4, 18, 5), (2, 4, 8, 16), 3.0),
    "small": NATArch(96, (3, 4, 18, 5), (3, 6, 12, 24), 2.0, layer_scale=1e-5),
    "base": NATArch(128, (3, 4, 18, 5), (4, 8, 16, 32), 2.0, layer_scale=1e-5),
}


def rows() -> list[Model]:
    """The authors' releases."""
    address = "https://shi-labs.com/projects/nat/checkpoints/CLS/nat_{}.pth"
    return [
        Model(f"nat_{size}.shi_in1k", f"nat_{size}", "NAT", size, address.format(size), "MIT")
        for size in ("mini", "tiny", "small", "base")
    ]
