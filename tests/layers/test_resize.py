import pytest
import torch
import torch.nn.functional as F

from vitdense.layers.position import AbsolutePosition
from vitdense.layers.resize import (
    resize_bias_table,
    resize_grid,
    resize_position_embedding,
    resize_relative_position,
)

WINDOWS = [((7, 7), (12, 12)), ((12, 12), (7, 7)), ((7, 7), (8, 12)), ((4, 6), (6, 4))]


def sides(window):
    return 2 * window[0] - 1, 2 * window[1] - 1


@pytest.mark.parametrize(("old", "new"), WINDOWS)
def test_bias_table_is_plain_bicubic(old, new):
    table = torch.randn(*sides(old), 3)
    want = F.interpolate(table.permute(2, 0, 1)[None], size=sides(new), mode="bicubic")[0].permute(1, 2, 0)
    assert torch.equal(resize_bias_table(table, new), want)


@pytest.mark.parametrize(("old", "new"), [((14, 14), (24, 40)), ((24, 40), (14, 14)), ((6, 10), (10, 6))])
@pytest.mark.parametrize("num_extra", [0, 1, 2])
def test_absolute_position_is_plain_bicubic_and_extra_tokens_stay(old, new, num_extra):
    """Image 224 to 384x640 at patches of 16, and back."""
    embedding = torch.randn(1, num_extra + old[0] * old[1], 5)
    grid = embedding[:, num_extra:].transpose(1, 2).reshape(1, 5, *old)
    want = F.interpolate(grid, size=new, mode="bicubic").flatten(2).transpose(1, 2)
    got = resize_position_embedding(embedding, old, new, num_extra)
    assert torch.equal(got[:, num_extra:], want)
    assert torch.equal(got[:, :num_extra], embedding[:, :num_extra])
    assert torch.equal(resize_position_embedding(embedding, old, old, num_extra), embedding)


@pytest.mark.parametrize("rule", ["bicubic", "timm", "mmpretrain"])
@pytest.mark.parametrize(("old", "new"), WINDOWS)
def test_constants_are_preserved_and_a_transposed_table_comes_out_transposed(old, new, rule):
    constant = resize_bias_table(torch.full((*sides(old), 3), 0.75), new, rule)
    torch.testing.assert_close(constant, torch.full((*sides(new), 3), 0.75))
    table = torch.randn(*sides(old), 3)
    turned = resize_bias_table(table.transpose(0, 1), new[::-1], rule)
    torch.testing.assert_close(resize_bias_table(table, new, rule), turned.transpose(0, 1), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rule", ["bicubic", "timm"])
def test_constant_and_transposed_positions(rule):
    grid = torch.randn(1, 14, 14, 3)
    turned = resize_grid(grid.transpose(1, 2), (40, 24), rule)
    torch.testing.assert_close(resize_grid(grid, (24, 40), rule), turned.transpose(1, 2), rtol=0, atol=1e-6)
    constant = resize_grid(torch.full((1, 14, 14, 3), 0.75), (24, 40), rule)
    torch.testing.assert_close(constant, torch.full((1, 24, 40, 3), 0.75))


def test_the_same_window_is_untouched_and_half_precision_stays_half():
    table = torch.randn(9, 13, 2)
    assert resize_bias_table(table, (5, 7)) is table
    half = torch.full((13, 13, 3), 0.75, dtype=torch.bfloat16)
    assert torch.equal(resize_bias_table(half, (12, 12)), torch.full((23, 23, 3), 0.75, dtype=torch.bfloat16))


def share_of_norm(grid, mode):
    """Mean L2 norm of the vectors of a 14x14 grid resized to 24x24, over that before."""
    if mode == "bicubic":
        resized = resize_grid(grid, (24, 24))
    else:
        resized = F.interpolate(grid.permute(0, 3, 1, 2), size=(24, 24), mode=mode).permute(0, 2, 3, 1)
    return float(resized.norm(dim=-1).mean() / grid.norm(dim=-1).mean())


def test_bicubic_keeps_the_norm_of_positions_better_than_bilinear():
    """The reason for bicubic (DeiT section 6): a bilinear average of neighbours is shorter than they are."""
    grid = torch.randn(1, 14, 14, 192)
    bicubic, bilinear = share_of_norm(grid, "bicubic"), share_of_norm(grid, "bilinear")
    print(f"independent positions, 14x14 to 24x24: share of the norm {bicubic:.3f} bicubic, {bilinear:.3f} bilinear")
    assert 1 - bicubic < (1 - bilinear) / 2


def test_bicubic_keeps_the_norm_of_trained_positions(shared_data):
    from safetensors.torch import load_file

    positions = load_file(shared_data / "weights/deit_tiny_patch16_224.safetensors")["pos_embed"]
    grid = positions[:, 1:].unflatten(1, (14, 14))
    bicubic, bilinear = share_of_norm(grid, "bicubic"), share_of_norm(grid, "bilinear")
    print(f"DeiT-Ti's positions, 14x14 to 24x24: share of the norm {bicubic:.4f} bicubic, {bilinear:.4f} bilinear")
    assert abs(1 - bicubic) < abs(1 - bilinear) / 2


@pytest.mark.parametrize(("old", "new"), WINDOWS)
def test_rule_of_timm_is_timms(old, new):
    from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table

    table = torch.randn(*sides(old), 3)
    want = resize_rel_pos_bias_table(table.permute(2, 0, 1), new, (3, *sides(new))).permute(1, 2, 0)
    torch.testing.assert_close(resize_bias_table(table, new, "timm"), want, rtol=0, atol=1e-5)
    embedding = torch.randn(1, 1 + old[0] * old[1], 5)
    want = resample_abs_pos_embed(embedding, list(new), list(old), num_prefix_tokens=1)
    assert torch.equal(resize_position_embedding(embedding, old, new, 1, "timm"), want)


@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 7), (8, 16)])
def test_rule_of_mmpretrain_is_a_spline_through_geometric_positions(old, new):
    """mmpretrain calls scipy's interp2d, which scipy has removed and names RectBivariateSpline in its place."""
    interpolate = pytest.importorskip("scipy.interpolate")
    table = torch.randn(2 * old - 1, 2 * old - 1, 2)
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if sum(q**i for i in range(old - 1)) > new - 1 else (q, high)
    right = [sum(q**j for j in range(i + 1)) for i in range(old - 1)]
    x = [-v for v in reversed(right)] + [0.0, *right]
    wanted = torch.arange(2 * new - 1) - (new - 1.0)
    want = [
        interpolate.RectBivariateSpline(x, x, table[..., c].numpy(), kx=3, ky=3, s=0)(wanted, wanted) for c in (0, 1)
    ]
    want = torch.stack([torch.from_numpy(w) for w in want], -1).float()
    torch.testing.assert_close(resize_bias_table(table, (new, new), "mmpretrain"), want, rtol=0, atol=1e-4)


def test_the_rules_differ_and_an_unknown_one_is_refused():
    table = torch.linspace(-1, 1, 13)[:, None, None].expand(13, 13, 1).contiguous()
    plain, timm, mmpretrain = (resize_bias_table(table, (12, 12), rule) for rule in ("bicubic", "timm", "mmpretrain"))
    assert (plain - timm).norm() / plain.norm() > 0.1
    assert (timm - mmpretrain).norm() / plain.norm() > 1e-3
    with pytest.raises(ValueError, match="got 'cubic', expected one of bicubic, timm, mmpretrain"):
        resize_bias_table(table, (12, 12), "cubic")


def test_an_embedding_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="197 tokens, but a grid of 14x14 with 2 extra tokens has 198"):
        resize_position_embedding(torch.zeros(1, 197, 3), (14, 14), (7, 7), num_extra=2)


def test_absolute_position_is_resized_to_the_map_it_meets():
    position = AbsolutePosition((4, 6), 5)
    x = torch.zeros(2, 4, 6, 5)
    assert torch.equal(position(x)[1], position.table[0])
    want = F.interpolate(position.table.permute(0, 3, 1, 2), size=(7, 3), mode="bicubic").permute(0, 2, 3, 1)
    assert torch.equal(position(torch.zeros(1, 7, 3, 5)), want)
    assert resize_grid(position.table, (4, 6)) is position.table


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


def test_relative_position_of_a_ramp():
    """Row centres of both tables are spread over the same length, and the ends are held: no cubic overshoots them."""
    ramp = torch.arange(9.0)[:, None]
    want = ((torch.arange(27.0) + 0.5) / 3 - 0.5).clamp(0, 8)
    torch.testing.assert_close(resize_relative_position(ramp, 27)[:, 0], want)
