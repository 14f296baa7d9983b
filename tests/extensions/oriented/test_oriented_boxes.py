"""The convention of oriented boxes: every door leads to the same rectangle."""

import pytest
import torch

from vitdense.extensions.oriented.boxes import corners, enclosing, from_corners, from_le90, regular, to_le90

DEGREES = torch.tensor([-90.0, -89.99999, -45, -1e-6, 0, 1e-6, 30, 45, 89.99999])


def random_boxes(count, dtype=torch.float64):
    places, sides, angle = torch.rand(count, 2) * 900 - 100, torch.rand(count, 2) * 200 + 1, torch.rand(count, 1)
    return torch.cat([places, sides.sort(-1, descending=True)[0], angle * 180 - 90], -1).to(dtype)


def same_rectangle(one, other, tolerance=1e-9):
    """Each corner of one is a corner of the other."""
    apart = torch.cdist(corners(one), corners(other))  # [..., 4, 4]
    assert apart.amin(-1).amax() <= tolerance
    assert apart.amin(-2).amax() <= tolerance


def in_convention(boxes):
    w, h, angle = boxes[..., 2:].unbind(-1)
    limit = torch.where(w == h, 45, 90)
    return bool(((w >= h) & (angle >= -limit) & (angle < limit)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_boxes_in_the_convention_stay_to_the_bit(dtype):
    boxes = random_boxes(200, dtype)
    boxes[: len(DEGREES), 4] = DEGREES
    assert torch.equal(regular(boxes), boxes)
    assert torch.equal(regular(boxes[None, :, None]), boxes[None, :, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_sides_and_angles_become_regular(dtype):
    boxes = random_boxes(2000, dtype)
    boxes[::2, 2:4] = boxes[::2, [3, 2]]
    boxes[::3, 3] = boxes[::3, 2]  # squares
    boxes[:, 4] = boxes[:, 4] * 9
    turns = torch.arange(-8, 9, dtype=dtype) * 45
    half = torch.tensor(90, dtype=dtype)
    nearly = torch.stack([half, -half, torch.nextafter(half, half * 0), torch.nextafter(-half, -half * 2)])
    boxes[: len(turns), 4] = turns
    boxes[20:24, 4] = nearly
    boxes[24:28] = boxes[20:24]
    boxes[24:28, 2:4] = 7
    got = regular(boxes)
    assert in_convention(got)
    same_rectangle(got, boxes, 1e-9 if dtype == torch.float64 else 2e-2)
    assert torch.equal(regular(got), got)


def test_corners_have_a_fixed_order():
    box = torch.tensor([10.0, 20, 8, 4, 0])
    assert corners(box).tolist() == [[6, 18], [14, 18], [14, 22], [6, 22]]
    box[4] = -90  # the side w points up
    torch.testing.assert_close(corners(box), torch.tensor([[8.0, 24], [8, 16], [12, 16], [12, 24]]))
    down = corners(torch.tensor([0.0, 0, 8, 4, 30]))
    assert (down[1] - down[0])[1] > 0  # positive angles turn clockwise in the image


def test_corners_in_any_order_and_place_give_the_rectangle():
    boxes = random_boxes(500)
    boxes[:9, 4] = DEGREES
    boxes[100:150, 3] = boxes[100:150, 2]  # squares
    boxes[150:200, 3] = 1e-3  # slivers
    boxes[200:250, :2] += 1e6
    for order in ([0, 1, 2, 3], [2, 3, 0, 1], [3, 2, 1, 0], [0, 2, 1, 3]):
        got = from_corners(corners(boxes)[:, order])
        assert in_convention(got)
        same_rectangle(got, boxes, 1e-8)
    sides = boxes[:, 2] > boxes[:, 3] * 1.001
    torch.testing.assert_close(got[sides, 2:4], boxes[sides, 2:4], atol=1e-8, rtol=0)


def test_smallest_rectangle_around_points():
    points = torch.randn(60, 7, 2, dtype=torch.float64) * torch.tensor([4, 1]) + 50
    box = from_corners(points)
    angle = torch.linspace(0, torch.pi / 2, 4001, dtype=torch.float64)
    axes = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).unflatten(0, (2, 2))  # [2, 2, angles]
    turned = torch.einsum("npc,xca->xnap", points, axes)
    least = (turned.amax(-1) - turned.amin(-1)).prod(0).amin(-1)
    area = box[:, 2] * box[:, 3]
    assert (area <= least + 1e-9).all()
    assert (area >= least * 0.99).all()
    centre, side = box[:, None, :2], box[:, None, 4] * torch.pi / 180
    along = ((points - centre) * torch.stack([side.cos(), side.sin()], -1)).sum(-1)
    across = ((points - centre) * torch.stack([-side.sin(), side.cos()], -1)).sum(-1)
    assert (along.abs() <= box[:, None, 2] / 2 + 1e-9).all()
    assert (across.abs() <= box[:, None, 3] / 2 + 1e-9).all()


def test_points_without_area():
    assert from_corners(torch.full((4, 2), 3.0)).tolist() == [3, 3, 0, 0, 0]
    line = from_corners(torch.tensor([[0.0, 0], [3, 3], [1, 1], [2, 2]], dtype=torch.float64))
    expected = torch.tensor([1.5, 1.5, 18**0.5, 0, 45], dtype=torch.float64)
    torch.testing.assert_close(line, expected)


def test_le90_and_straight_boxes():
    boxes = random_boxes(300)
    same_rectangle(from_le90(to_le90(boxes)), boxes)
    assert from_le90(torch.tensor([1.0, 2, 4, 9, torch.pi / 4])).tolist() == pytest.approx([1, 2, 9, 4, -45])
    straight = enclosing(torch.tensor([[10.0, 20, 8, 4, 0], [10, 20, 8, 4, -90], [0, 0, 2, 2, -45]]))
    reach = 2**0.5
    expected = torch.tensor([[6.0, 18, 14, 22], [8, 16, 12, 24], [-reach, -reach, reach, reach]])
    torch.testing.assert_close(straight, expected)
