import pytest
import torch

from vitdense.layers.windows import Windows, pad_to, shift_mask

CPU = torch.device("cpu")

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
    windows = Windows.plan(size, window, shift, CPU)
    assert torch.equal(windows.partition(x), brute_force_windows(x, window, shift))
    assert torch.equal(windows.unpartition(windows.partition(x)), x)


@pytest.mark.long
@pytest.mark.parametrize(("size", "window", "shift"), CASES)
def test_gradients_of_partition_and_unpartition(size, window, shift):
    windows = Windows.plan(size, window, shift, CPU)
    x = torch.randn(2, *size, 2, dtype=torch.float64, requires_grad=True)
    cut = windows.partition(x).detach().requires_grad_()
    assert torch.autograd.gradcheck(windows.partition, x)
    assert torch.autograd.gradcheck(windows.unpartition, cut)
    assert torch.autograd.gradgradcheck(windows.partition, x)


@pytest.mark.parametrize(("size", "window", "shift"), [case for case in CASES if any(case[2])])
def test_shift_mask_blocks_pairs_that_only_the_roll_made_adjacent(size, window, shift):
    """Two tokens of a window may meet iff they were as far apart before the roll, on the padded map, as after it."""
    mask = shift_mask(size, window, shift, torch.float32, CPU)
    (wh, ww), (hp, wp) = window, pad_to(size, window)
    for n in range(mask.shape[0]):
        i, j = divmod(n, wp // ww)
        # Original (unrolled) coordinates of the tokens of this window.
        at = [((i * wh + r + shift[0]) % hp, (j * ww + c + shift[1]) % wp) for r in range(wh) for c in range(ww)]
        for p, (py, px) in enumerate(at):
            for q, (qy, qx) in enumerate(at):
                together = (py - qy, px - qx) == (p // ww - q // ww, p % ww - q % ww)
                assert mask[n, 0, p, q] == (0 if together else -100)


def test_shift_mask_of_different_sizes_with_equal_area_differ():
    a, b = (shift_mask(s, (4, 4), (2, 2), torch.float32, CPU) for s in ((8, 16), (16, 8)))
    assert a.shape == b.shape
    assert not torch.equal(a, b)
