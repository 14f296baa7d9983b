"""Where the targets of RepPoints V2 lie; test_reppoints_v2.py compares them with the authors'."""

import pytest
import torch

pytest.importorskip("mmdet")
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator

from vitdense.research.reppoints_v2 import targets

STRIDES = (8, 16, 32, 64, 128)


def grid(height, width, pad_shape=None):
    """Points of a batch of this size, their numbers by level, and those in an image of `pad_shape`."""
    generator = MlvlPointGenerator(STRIDES, offset=0)
    sizes = [(-(-height // stride), -(-width // stride)) for stride in STRIDES]
    points = generator.grid_priors(sizes, device="cpu", with_stride=True)
    inside = generator.valid_flags(sizes, pad_shape or (height, width), "cpu")
    return torch.cat(points), [len(x) for x in points], torch.cat(inside)


@pytest.mark.parametrize(
    ("size", "stride"),
    [((4, 4), 8), ((31, 31), 8), ((32, 32), 8), ((63, 63), 8), ((64, 64), 16), ((16, 257), 16), ((2000, 1900), 128)],
)
def test_level_of_a_box_follows_its_size(size, stride):
    points, _, inside = grid(2048, 2048)
    assigned = targets.assign_init(points, inside, torch.tensor([[10.0, 20.0, 10.0 + size[0], 20.0 + size[1]]]))
    assert points[assigned == 1, 2].tolist() == [stride]


def predictions(points, seed=0):
    """Boxes around the points, some inverted."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(points), 4, generator=generator)
    corners = torch.tensor([-2.0, -2.0, 2.0, 2.0]) + 1.5 * noise
    return points[:, :2].repeat(1, 2) + corners * points[:, 2:3]


def test_points_outside_the_image_get_no_targets():
    points, counts, inside = grid(192, 256, pad_shape=(96, 128))
    boxes = torch.tensor([[70.0, 60.0, 128.0, 96.0], [100.0, 20.0, 127.0, 90.0]])  # nearer to points outside
    radii = torch.tensor([30.0, 30.0])
    heatmap, _ = targets.corner_targets(points, counts, inside, boxes[:, 2:], radii)
    found = [targets.assign_init(points, inside, boxes), heatmap]
    found.append(targets.assign_atss(predictions(points), counts, inside, boxes, 9))
    found.append(targets.semantic_weights(points[: counts[0]], inside[: counts[0]], boxes, torch.tensor([0, 1]), 2))
    for values in found:
        assert values.any()
        assert not values[~inside[: len(values)]].any()
