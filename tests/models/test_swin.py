from functools import partial

import pytest
import timm
import torch
from conftest import brute_force_attention, relative_error
from test_swin_v2 import randomise

from peers import PEERS, PeerSpec
from vitdense import Swin, SwinV2
from vitdense.checkpoint.load import load_pretrained
from vitdense.flops import num_params
from vitdense.layers.layout import window_layout
from vitdense.models.swin.model import BlockSpec, WindowAttention, plan
from vitdense.models.swin.sizes import SWIN, SwinArch
from vitdense.models.swin_v2.sizes import SwinV2Arch

NANO = {"embed_dims": 16, "depths": (2, 2, 4, 2), "num_heads": (1, 2, 4, 8)}


V2, PRETRAINED = {**NANO, "depths": (2, 2, 2, 2)}, (6, 6, 6, 3)
IN_MM = {  # whose rule is ours: maps pad, windows never shrink, odd blocks always shift
    "swin": (partial(Swin, NANO), "mmdet", PeerSpec(SwinArch(**NANO), (224, 224), 7)),
    "swin, tiny": (partial(Swin, "tiny"), "mmdet", PeerSpec(SWIN["tiny"], (224, 224), 7)),
    **{
        f"swin_v2, extra norm every {n}": (
            partial(SwinV2, {**V2, "extra_norm_every": n}, window_size=4, pretrained_window_sizes=PRETRAINED),
            "mmpretrain",
            PeerSpec(SwinV2Arch(**V2, extra_norm_every=n), (256, 256), 4, PRETRAINED),
        )
        for n in (0, 2)
    },
}
SIZES = [(name, size) for name in IN_MM if "tiny" not in name for size in ((128, 192), (97, 131), (31, 33))]
SIZES += [("swin", (256, 320)), pytest.param("swin, tiny", (799, 1333), marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "size"), SIZES)
@torch.no_grad()
def test_parity_with_mm_at_any_size(name, size):
    make, scheme, spec = IN_MM[name]
    ours = make().eval()
    peer = PEERS[ours.family][scheme]
    pytest.importorskip(peer.package)
    theirs = peer.build(spec)
    randomise(theirs)
    report = load_pretrained(ours, {f"backbone.{key}": value for key, value in theirs.state_dict().items()})
    assert (report.scheme, report.share) == (scheme, 1)
    x = torch.randn(2, 3, *size)
    errors = [relative_error(*pair) for pair in zip(ours(x), theirs(x), strict=True)]
    assert max(errors) < 1e-5, errors


@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize("size", [(6, 6), (5, 7), (3, 3)])
def test_window_attention_is_the_definition(size, shift):
    spec = BlockSpec(stage=0, dim=4, num_heads=2, window=(3, 3), shift=shift, drop_path=0.0)
    attention = WindowAttention(spec, qkv_bias=True, relative_bias=True).double()
    torch.nn.init.normal_(attention.qkv.bias)  # what padded keys consist of
    torch.nn.init.normal_(attention.bias.relative_position_bias_table)
    x = torch.randn(1, *size, 4, dtype=torch.float64)
    with torch.no_grad():
        windows = window_layout(x, (3, 3), shift)
        got = windows.unpartition(attention(windows.partition(x), windows))
        torch.testing.assert_close(got[0], brute_force_attention(attention, x, size))


def test_plan_is_the_table_of_the_paper():
    blocks = plan(SWIN["tiny"], (7, 7), drop_path_rate=0.2)
    assert [b.dim for b in blocks] == [96] * 2 + [192] * 2 + [384] * 6 + [768] * 2
    assert {b.dim // b.num_heads for b in blocks} == {32}
    assert [b.shift for b in blocks] == [(0, 0), (3, 3)] * 6
    assert [b.drop_path for b in blocks] == pytest.approx(torch.linspace(0, 0.2, 12).tolist())
    assert plan(SWIN["tiny"], (12, 12), 0.2)[1].shift == (6, 6)
    assert not any(any(b.shift) for b in plan(SWIN["tiny"], (7, 7), 0.2, shift=False))


@pytest.mark.parametrize(
    ("arch", "millions"), [("tiny", 27.521), ("small", 48.839), ("base", 86.745), ("large", 194.998)]
)
def test_published_parameter_counts(arch, millions):
    with torch.device("meta"):
        assert num_params(Swin(arch)) / 1e6 == pytest.approx(millions, abs=5e-4)


def test_ablations_of_table_4():
    x = torch.randn(1, 3, 70, 100)
    keys = {name: set(Swin(NANO, **options).state_dict()) for name, options in {
        "plain": {}, "no bias": {"relative_bias": False}, "absolute": {"absolute_position": True},
    }.items()}  # fmt: skip
    assert keys["absolute"] - keys["plain"] == {"absolute_pos_embed.table"}
    assert all("bias_table" in key for key in keys["plain"] - keys["no bias"])
    torch.manual_seed(1)
    with torch.no_grad():
        plain = Swin(NANO).eval()
        still = Swin(NANO, shift=False).eval()
        still.load_state_dict(plain.state_dict())
        assert not torch.equal(plain(x)[3], still(x)[3])
        assert Swin(NANO, relative_bias=False).eval()(x)[3].isfinite().all()
        assert Swin(NANO, absolute_position=True, pretrain_img_size=(64, 96)).eval()(x)[3].isfinite().all()


@pytest.mark.parametrize(
    ("name", "image", "window", "options"),
    [
        ("swin_tiny_patch4_window7_224", 224, 7, {}),
        ("swin_tiny_patch4_window7_224", (224, 448), 7, {}),  # the last map is a window high, and two wide
        ("swinv2_tiny_window8_256", 256, 8, {}),
        ("swinv2_tiny_window16_256", 256, 16, {"pretrained_window_sizes": (16, 16, 16, 8)}),
    ],
)
def test_classifier_windows_equal_timm(name, image, window, options):
    sizes = {"embed_dim": 16, "depths": NANO["depths"], "num_heads": NANO["num_heads"]}
    theirs = timm.create_model(name, img_size=image, num_classes=0, **sizes).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    family = SwinV2 if "v2" in name else Swin
    options = {"window_size": window, "pretrain_img_size": image, "out_indices": (3,), **options}
    x = torch.randn(1, 3, *((image,) * 2 if isinstance(image, int) else image))
    for classifier_windows in (True, False):
        ours = family(NANO, classifier_windows=classifier_windows, **options).eval()
        load_pretrained(ours, theirs.state_dict())
        ours.norm3.load_state_dict(theirs.norm.state_dict())
        with torch.no_grad():
            error = relative_error(ours(x)[0], theirs.forward_features(x).permute(0, 3, 1, 2))  # [1, C, H/32, W/32]
        assert (error < 1e-5) is classifier_windows
