import pytest
import torch

from vitdense.layers.windows import Grid, partition, shift_mask, unpartition

CASES = [
    ((7, 7), (7, 7), (3, 3)),  # a map that is one window still shifts
    ((8, 13), (4, 4), (2, 2)),
    ((5, 9), (4, 3), (2, 1)),  # window and padding differ by axis
    ((6, 6), (3, 3), (0, 0)),
    ((2, 3), (7, 7), (3, 3)),  # smaller than the window
]


def brute_force_windows(x, window, shift):
    """Token by token: where position (r, c) of window (i, j) comes from, or zero in the padding."""
    b, h, w, c = x.shape
    (wh, ww), (sh, sw) = window, shift
    hp, wp = -(-h // wh) * wh, -(-w // ww) * ww
    out = torch.zeros(b, (hp // wh) * (wp // ww), wh * ww, c)
    for y in range(hp):
        for z in range(wp):
            sy, sz = (y + sh) % hp, (z + sw) % wp
            if sy < h and sz < w:
                out[:, (y // wh) * (wp // ww) + z // ww, (y % wh) * ww + z % ww] = x[:, sy, sz]
    return out.flatten(0, 1)


@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_partition_is_the_definition_and_unpartition_its_inverse(size, window, shift):
    x = torch.randn(2, *size, 3)
    windows, grid = partition(x, window, shift)
    assert torch.equal(windows, brute_force_windows(x, window, shift))
    assert torch.equal(unpartition(windows, grid), x)


@pytest.mark.parametrize(("size", "window", "shift"), [case for case in CASES if any(case[2])])
def test_shift_mask_parts_what_only_the_roll_joined(size, window, shift):
    """Two tokens of a window may meet iff they were as far apart before the roll, on the padded map, as after it."""
    mask = shift_mask(Grid(size, window, shift), torch.float32, torch.device("cpu"))
    (wh, ww), (hp, wp) = window, Grid(size, window, shift).padded
    for n in range(mask.shape[0]):
        i, j = divmod(n, wp // ww)
        # Original (unrolled) coordinates of the tokens of this window.
        at = [((i * wh + r + shift[0]) % hp, (j * ww + c + shift[1]) % wp) for r in range(wh) for c in range(ww)]
        for p, (py, px) in enumerate(at):
            for q, (qy, qx) in enumerate(at):
                together = (py - qy, px - qx) == (p // ww - q // ww, p % ww - q % ww)
                assert mask[n, 0, p, q] == (0 if together else -100)


def test_shift_mask_of_different_sizes_with_equal_area_differ():
    a, b = (shift_mask(Grid(s, (4, 4), (2, 2)), torch.float32, torch.device("cpu")) for s in ((8, 16), (16, 8)))
    assert a.shape == b.shape
    assert not torch.equal(a, b)
