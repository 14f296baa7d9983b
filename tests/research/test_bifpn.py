import pytest
import torch
import torch.nn.functional as F
from conftest import of_prefix
from torch import nn

from vitdense.flops import num_params
from vitdense.research.reppoints_v2.bifpn import BiFPN


@pytest.mark.parametrize("name", ["reppoints_v2_bifpn", "reppoints_v2_bifpn_identity"])
def test_outputs_equal_the_golden_files(golden_file, name):
    config, tensors = golden_file(name)
    options = {key: config["constructor"][key] for key in ("in_channels", "out_channels", "num_outs", "num_repeat")}
    neck = BiFPN(**options)
    neck.load_state_dict(of_prefix(tensors, "sd."), strict=True)
    with torch.no_grad():
        outs = neck([tensors[f"in.{i}"] for i in range(3)])
    assert len(outs) == 5
    for i, out in enumerate(outs):
        torch.testing.assert_close(out, tensors[f"out.{i}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(13, 19), (16, 8), (1, 5)])
def test_outputs_have_the_sizes_of_the_maps_and_then_halves(size):
    sizes = [size]
    for _ in range(4):
        sizes.append(tuple((side + 1) // 2 for side in sizes[-1]))
    neck = BiFPN([8, 16, 32], out_channels=32, num_repeat=2)
    with torch.no_grad():
        outs = neck([torch.randn(2, width, *size) for width, size in zip((8, 16, 32), sizes)])
    assert [tuple(out.shape) for out in outs] == [(2, 32, *size) for size in sizes]
    assert neck.out_channels == (32,) * 5


def test_parameters_for_swin_t():
    with torch.device("meta"):
        neck = BiFPN([192, 384, 768])
    assert num_params(neck) == 10_185_254
    assert len(neck.state_dict()) == 79
    assert "bi_fpn.1.out_combine.3.weights" in neck.state_dict()


def test_fusion_starts_as_a_mean_and_ignores_negative_weights():
    neck = BiFPN([32], out_channels=32, num_outs=2, num_repeat=1)
    fuse = neck.bi_fpn[0].lateral_combine[0]
    x, y = torch.randn(2, 1, 32, 3, 3)
    torch.testing.assert_close(fuse(x, y), F.silu((x + y) / 2), rtol=1e-4, atol=1e-4)
    nn.init.constant_(fuse.weights, -1.0)
    assert not fuse(x, y).any()


def test_maps_that_do_not_fit_are_an_error():
    neck = BiFPN([8, 16], out_channels=32)
    for widths in ((8,), (8, 8), (8, 16, 16)):
        with pytest.raises(ValueError, match="in_channels"):
            neck([torch.zeros(1, width, 4, 4) for width in widths])
