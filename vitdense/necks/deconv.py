"""From the single stride of a plain ViT to the strides 4, 8, 16 and 32 that FPN and UperNet take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.layers.blocks import LayerNorm2d, SyncBatchNorm, max_pool
from vitdense.module import Module

STEPS = (2, 1, 0, -1)  # log2 of the input's stride over a level's: strides 4, 8, 16, 32 from 16


@dataclass(frozen=True)
class Design:
    """How a map is enlarged."""

    width: float  # output channels of an enlargement over its input channels
    depthwise: bool  # whether the convolutions are depthwise
    norm: Callable[[int], nn.Module]  # channels -> norm before the GELU between two enlargements


DESIGNS = {
    "vitdet": Design(0.5, False, LayerNorm2d),
    "beit": Design(1, False, SyncBatchNorm),
    "light": Design(1, True, SyncBatchNorm),
}


class DeconvPyramid(Module):
    """Four maps of strides 4, 8, 16 and 32 from one of stride 16, or from four of them, a level from each.

    Stride 4 has two transposed convolutions of 2x2 with stride 2, with a norm and GELU between them; stride 8 has one;
    stride 16 is the input; stride 32 is a max pooling by 2 (`ceil_mode` for odd sizes). From patches of another size p
    the strides are p/4, p/2, p and 2p. With D input channels the designs have

    | design | widths | layers | source | cost, D = 384 |
    |---|---|---|---|---|
    | ``'vitdet'`` | D/4, D/2, D, D | dense, LayerNorm | ViTDet section 3, simple feature pyramid | 0.66 M, 3.5 G |
    | ``'beit'`` | D, D, D, D | dense, SyncBN | BEiT and XCiT, segmentation code | 1.77 M, 14.2 G |
    | ``'light'`` | D, D, D, D | depthwise, SyncBN | this project | 0.01 M, 0.0 G |

    (parameters and multiply-adds at 800x1280). Swin's Tables 2 and 3 compare with a DeiT-S whose deconvolution layers
    were never released. ``'light'`` is a reconstruction: the only design of several tried that matches the four
    published totals (Cascade Mask R-CNN 80 M and 889 G, UperNet 52 M and 1099 G). Nothing else is known.

    Args:
        in_channels: Channels of every map, one int or one per map, all the same.
        design: See above.
        out_channels: Bring every level to this many channels by 1x1 and 3x3 convolutions, each with a LayerNorm and
            without an activation, as ViTDet, which has no FPN; None leaves the widths above for an FPN or UperNet.
        num_outs: Levels. More than four need `out_channels`; each is every second pixel of the level before it, as in
            FPN.
        init_cfg: See `Module`.

    Attributes:
        out_channels: Channels of every output.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        design: str = "vitdet",
        out_channels: int | None = None,
        num_outs: int = 4,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        channels = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
        positive = all(isinstance(n, int) and n > 0 for n in (*channels, 1 if out_channels is None else out_channels))
        if len(channels) not in (1, len(STEPS)) or len(set(channels)) != 1 or not positive:
            raise OptionError(
                f"in_channels, out_channels: got {in_channels}, {out_channels}; expected numbers above 0, in_channels "
                f"one, or four that are the same, out_channels one or None"
            )
        check_choice("design", design, DESIGNS)
        if num_outs < len(STEPS) or (num_outs > len(STEPS) and out_channels is None):
            raise OptionError(f"num_outs: got {num_outs}, expected 4, or more together with out_channels")
        self.num_maps, self.num_outs, self.in_channels = len(channels), num_outs, channels[0]
        dim, kind = channels[0], DESIGNS[design]
        if design == "vitdet" and dim % 4:
            raise OptionError(f"in_channels: got {dim}, expected a multiple of 4, for 'vitdet' halves them twice")
        self.levels = nn.ModuleList(_level(dim, step, kind) for step in STEPS)
        widths = [int(dim * kind.width ** max(step, 0)) for step in STEPS]
        self.convs = nn.ModuleList(_to_width(width, out_channels) for width in widths) if out_channels else None
        self.out_channels = (out_channels,) * num_outs if out_channels else tuple(widths)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps ``[B, D, h, w]``, one or four, to ``[B, C_i, h_i, w_i]`` of sizes 4, 2, 1 and 1/2 (rounded up) times
        the input's.
        """
        if len(maps) != self.num_maps:
            raise OptionError(
                f"DeconvPyramid: got {len(maps)} maps, expected {self.num_maps}: as many as in_channels; set the "
                f"backbone's out_indices to that number"
            )
        if wrong := [x for x in maps if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] != self.in_channels]:
            got = tuple(wrong[0].shape) if isinstance(wrong[0], Tensor) else f"a {type(wrong[0]).__name__}"
            raise OptionError(
                f"DeconvPyramid: got {got}, expected maps [B, {self.in_channels}, h, w]; set in_channels to the "
                f"backbone's out_channels, and leave its output_cls_token False"
            )
        maps = tuple(maps) * (len(STEPS) // self.num_maps)
        outs = [level(x) for level, x in zip(self.levels, maps)]
        if self.convs is not None:
            outs = [conv(x) for conv, x in zip(self.convs, outs)]
        for _ in range(self.num_outs - len(STEPS)):
            outs.append(outs[-1][..., ::2, ::2])  # [B, C, ceil(h/2), ceil(w/2)]
        return tuple(outs)


class MaxPool(nn.Module):
    """Max pooling by 2 with `ceil_mode`."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C, ceil(H / 2), ceil(W / 2)]``."""
        return max_pool(x, 2, 2)  # [B, C, h, w]


def _level(dim: int, step: int, design: Design) -> nn.Module:
    if step < 0:
        return MaxPool()
    layers: list[nn.Module] = []
    for n in range(step):
        width = int(dim * design.width)
        groups = dim if design.depthwise else 1
        layers += [design.norm(dim), nn.GELU()] * (n > 0)
        layers += [nn.ConvTranspose2d(dim, width, 2, stride=2, groups=groups)]
        dim = width
    return nn.Sequential(*layers)


def _to_width(dim: int, width: int) -> nn.Module:
    conv = partial(nn.Conv2d, bias=False)
    return nn.Sequential(
        conv(dim, width, 1), LayerNorm2d(width), conv(width, width, 3, padding=1), LayerNorm2d(width)
    )  # [B, width, h, w]
