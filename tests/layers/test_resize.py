import pytest
import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table
from timm.layers.patch_embed import resample_patch_embed

from vitdense.layers.position import POSITION_RULES, SQUARE_RULES, AbsolutePosition
from vitdense.layers.resize import (
    resize_bias_table,
    resize_grid,
    resize_patch,
    resize_relative_position,
    resize_to_stride,
)

WINDOWS = [((7, 7), (12, 12)), ((12, 12), (7, 7)), ((7, 7), (8, 12)), ((4, 6), (6, 4))]


def sides(window):
    return 2 * window[0] - 1, 2 * window[1] - 1


@pytest.mark.parametrize(("old", "new"), WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bias_table_is_plain_bicubic(old, new, dtype):
    table = torch.randn(*sides(old), 3, dtype=dtype)
    want = F.interpolate(table.permute(2, 0, 1)[None], size=sides(new), mode="bicubic")[0].permute(1, 2, 0)
    assert torch.equal(resize_bias_table(table, new), want)


def test_the_same_window_is_unchanged_and_half_precision_kept():
    table = torch.randn(9, 13, 2)
    assert resize_bias_table(table, (5, 7)) is table
    half = torch.full((13, 13, 3), 0.75, dtype=torch.bfloat16)
    assert torch.equal(resize_bias_table(half, (12, 12)), torch.full((23, 23, 3), 0.75, dtype=torch.bfloat16))


@pytest.mark.parametrize(("old", "new"), WINDOWS)
def test_rule_of_timm_is_timms(old, new):
    table = torch.randn(*sides(old), 3)
    shape = (3, *sides(new))
    want = resize_rel_pos_bias_table(table.permute(2, 0, 1), new, shape).reshape(shape).permute(1, 2, 0)
    torch.testing.assert_close(resize_bias_table(table, new, "timm"), want, rtol=0, atol=1e-5)
    grid = torch.randn(1, *old, 5)
    want = resample_abs_pos_embed(grid.flatten(1, 2), list(new), list(old), num_prefix_tokens=0)
    assert torch.equal(resize_grid(grid, new, "timm").flatten(1, 2), want)


@pytest.mark.parametrize(("old", "new"), [(27, 55), (55, 27), (27, 99), (13, 1), (1, 5)])
def test_relative_position_of_one_axis_is_plain_linear(old, new):
    table = torch.randn(old, 3)
    want = F.interpolate(table.T[None], size=new, mode="linear", align_corners=False)[0].T
    assert torch.equal(resize_relative_position(table, new), want)
    constant = resize_relative_position(torch.full((old, 3), 0.75), new)
    torch.testing.assert_close(constant, torch.full((new, 3), 0.75))
    assert resize_relative_position(table, old) is table
    half = resize_relative_position(table.bfloat16(), new)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, resize_relative_position(table.bfloat16().float(), new).bfloat16())


@pytest.mark.parametrize(
    ("stride", "new"), [(16, 4), (16, 8), (16, 16), (16, 32), (14, 4), (14, 16), (14, 32), (32, 8)]
)
@pytest.mark.parametrize("image", [(97, 61), (64, 96)])
def test_a_map_of_another_stride_is_read_at_the_same_pixels(stride, new, image):
    """A map that holds the row and the column of its pixels still does, but near the border, which goes on."""

    def pixels(stride):
        rows, columns = ((torch.arange(-(-n // stride)) + 0.5) * stride for n in image)
        return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None]  # [1, 2, h, w]

    x, want = pixels(stride), pixels(new)
    got = resize_to_stride(x, stride, new, tuple(want.shape[2:]))
    low, high = (x.amin((0, 2, 3)).view(1, 2, 1, 1), x.amax((0, 2, 3)).view(1, 2, 1, 1))
    if new <= stride:
        want = want.clamp(low, high)
    inside = (want >= low) & (want <= high) & (want + new / 2 <= high + stride / 2)
    assert inside.any()
    torch.testing.assert_close(got[inside], want[inside])
    assert ((got > low - 1e-4) & (got < high + 1e-4)).all()


@pytest.mark.parametrize(("new", "factor"), [(4, 4), (8, 2), (32, 0.5)])
def test_a_map_of_whole_strides_is_resized_by_a_factor(new, factor):
    x = torch.randn(2, 3, 4, 6)
    want = F.interpolate(x, scale_factor=factor, mode="bilinear")
    assert torch.equal(resize_to_stride(x, 16, new, tuple(want.shape[2:])), want)


@pytest.mark.parametrize(("rule", "antialias"), [("bicubic", False), ("timm", True)])
def test_a_grid_in_float64_is_not_rounded_to_float32(rule, antialias):
    grid = torch.randn(1, 13, 13, 3, dtype=torch.float64)
    want = F.interpolate(grid.permute(0, 3, 1, 2), size=(23, 9), mode="bicubic", antialias=antialias)
    torch.testing.assert_close(resize_grid(grid, (23, 9), rule).permute(0, 3, 1, 2), want, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", POSITION_RULES)
@pytest.mark.parametrize("size", [(7, 9), (3, 4), (4, 6), (6, 4), (10, 13), (2, 12)])
def test_position_rules_are_torchs(rule, size):
    """In the dtype of the table: float64 is not rounded. A map of another shape with as many tokens is resized too; the
    grid itself is not. Under autocast tables are resized in float32."""
    grid = (6, 6) if rule in SQUARE_RULES else (4, 6)
    position = AbsolutePosition(grid, 5, rule).double()
    table = position.table.detach().permute(0, 3, 1, 2)  # [1, C, h, w]
    options = {"mode": "bilinear" if "bilinear" in rule else "bicubic", "antialias": "antialias" in rule}
    if rule in SQUARE_RULES:
        options["align_corners"] = rule.endswith("_corners")
        want = F.interpolate(table, size=(max(size),) * 2, **options)[..., : size[0], : size[1]]
    elif rule == "dinov2" and size != (4, 6):
        scale = [(new + 0.1) / old for new, old in zip(size, (4, 6))]
        want = F.interpolate(table, scale_factor=scale, **options)
    else:
        want = F.interpolate(table, size=size, **options)
    got = position(torch.zeros(1, *size, 5, dtype=torch.float64)).permute(0, 3, 1, 2)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=0, atol=1e-15)
    with torch.autocast("cpu", torch.bfloat16):
        got = position.float()(torch.zeros(1, *size, 5)).permute(0, 3, 1, 2)
    torch.testing.assert_close(got, want.float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (16, 16)), ((16, 16), (14, 14)), ((8, 8), (16, 12)), ((5, 7), (6, 3))]
)
def test_patch_embedding_is_resized_as_timm_does(old, new):
    weight = torch.randn(6, 3, *old)
    found = resize_patch(weight, new)
    assert (found - resample_patch_embed(weight, list(new))).abs().max() < 1e-5 * weight.abs().max()
    if min(a >= b for a, b in zip(new, old)):  # a larger patch gives what the smaller one gave
        image = torch.randn(1, 3, *old)
        larger = F.interpolate(image, size=new, mode="bicubic", antialias=True)
        was, now = ((x * w).sum((1, 2, 3)) for x, w in ((image, weight), (larger, found)))
        torch.testing.assert_close(now, was, atol=1e-4, rtol=1e-4)
