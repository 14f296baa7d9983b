import pytest
import torch
from conftest import brute_force_attention, relative_error
from test_local import definition

from vitdense import PerformerSwin, PositionSwin, SlidingSwin, Swin
from vitdense.layers.layout import window_layout
from vitdense.models.swin.model import BlockSpec
from vitdense.research.swin_ablations.model import PositionAttention, SlidingAttention

NANO = {"embed_dims": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}


@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize("size", [(6, 6), (5, 7), (3, 3), (12, 9)])  # the last has windows without a mask
def test_attention_without_content_is_the_definition(size, shift):
    """Table 4, "w/o app.": the softmax of the bias alone. Padded keys count; pairs of the shift's mask do not."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(3, 3), shift=shift, drop_path=0.0)
    attention = PositionAttention(spec, qkv_bias=True, relative_bias=True).double()
    assert [name for name, _ in attention.named_children()] == ["bias", "proj", "v"]
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, *size, 4, dtype=torch.float64)
    with torch.no_grad():
        windows = window_layout(x, (3, 3), shift)
        got = windows.unpartition(attention(windows.partition(x), windows))
        for i in range(2):
            torch.testing.assert_close(got[i], brute_force_attention(attention, x[i : i + 1], size))


def test_windows_of_images_repeat_their_biases():
    """As a compiled model calls it: biases of one image's windows, for the windows of all images."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(1, 3), shift=(0, 0), drop_path=0.0)
    attention = PositionAttention(spec, qkv_bias=True, relative_bias=True)
    bias, v = torch.randn(2, 2, 3, 3), torch.randn(6, 3, 4)  # of 2 windows; 3 images
    got = attention.weighted(bias, v)
    for i in range(6):
        for head in (0, 1):
            channels = slice(2 * head, 2 * head + 2)
            torch.testing.assert_close(got[i, :, channels], bias[i % 2, head].softmax(-1) @ v[i, :, channels])


@pytest.mark.parametrize("size", [(6, 10), (2, 3)])
@pytest.mark.parametrize("relative_bias", [True, False])
def test_sliding_attention_is_the_definition(size, relative_bias):
    """In float64: the bias of a window, for the keys at most half a window away."""
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(5, 5), shift=(0, 0), drop_path=0.0)
    attention = SlidingAttention(spec, qkv_bias=True, relative_bias=relative_bias).double()
    table = torch.zeros(9, 9, 2, dtype=torch.float64)
    if relative_bias:
        torch.nn.init.normal_(attention.bias.relative_position_bias_table)
        table = attention.bias.relative_position_bias_table.detach()
    x = torch.randn(1, *size, 4, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 2)).unbind(3)
    want = definition(q, k, v, 5, "mask", table.permute(2, 0, 1), 0.5**0.5)
    torch.testing.assert_close(attention(x), attention.proj(want))


def test_sliding_windows_have_the_weights_of_a_swin():
    """A position whose window is whole, and in which the window is centred, sees the same keys with the same bias."""
    plain, sliding = Swin(NANO, shift=False).eval(), SlidingSwin(NANO).eval()
    assert sliding.load_state_dict(plain.state_dict(), strict=True)
    assert not any(any(block.spec.shift) for stage in sliding.stages for block in stage.blocks)
    blocks = [model.stages[1].blocks[1] for model in (plain, sliding)]
    for block in blocks:
        torch.nn.init.normal_(block.attn.bias.relative_position_bias_table, generator=torch.manual_seed(0))
    x = torch.randn(1, 28, 35, 32)
    with torch.no_grad():
        in_windows, slid = (block.mix(x, block.layout(x)) for block in blocks)
    torch.testing.assert_close(slid[:, 3::7, 3::7], in_windows[:, 3::7, 3::7])
    assert relative_error(slid, in_windows) > 0.1


def test_sliding_window_of_even_sides_is_one_row_and_column_less():
    model = SlidingSwin(NANO, window_size=8)
    assert model.stages[0].blocks[0].attn.kernel == 7


def test_parameters_differ_from_swin_only_in_the_attention():
    plain, content = set(Swin(NANO).state_dict()), set(PositionSwin(NANO).state_dict())
    assert all(".attn.qkv." in key for key in plain - content)
    assert all(".attn.v." in key for key in content - plain)
    features = set(PerformerSwin(NANO).state_dict())
    assert all(".attn.features" in key for key in features - plain)
    assert all(".attn.bias." in key for key in plain - features)
