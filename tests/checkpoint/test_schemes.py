"""Every naming scheme, proved by running the model it belongs to: random weights of each, through the production
loader, give the features of that model, and convert back bit by bit. The module prints the table (`pytest -s`)."""

import copy
import re
from dataclasses import asdict, replace

import pytest
import timm
import torch
from conftest import HAS_RESEARCH, add_row, without_output_norms
from torch import nn

from peers import PEERS, PeerSpec, raw_maps, relative_errors
from vitdense import ConvNeXt, Hiera, MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.detect import detect
from vitdense.checkpoint.load import load_pretrained
from vitdense.families import MODELS as TABLE
from vitdense.flops import num_params
from vitdense.hub import create
from vitdense.models.convnext.sizes import CONVNEXT
from vitdense.models.hiera.sizes import HIERA
from vitdense.models.mvit.sizes import MVIT, MViTArch
from vitdense.models.swin.sizes import SwinArch
from vitdense.models.swin_v2.sizes import SwinV2Arch
from vitdense.models.vit.sizes import VIT

pytestmark = pytest.mark.long

NANO = {"embed_dims": 16, "depths": (1, 2, 3, 2), "num_heads": 1}
SHALLOW = {"embed_dims": 96, "depths": (2, 2, 2, 2), "num_heads": (3, 6, 12, 24)}  # a Swin-T but for stage 2


def shrunk(row):
    dim = 2 * row.embed_dims // row.num_heads
    ffn_dims = row.ffn_dims and row.ffn_dims * dim // row.embed_dims
    return replace(row, embed_dims=dim, depth=2, num_heads=2, ffn_dims=ffn_dims, taps=None)


# Our model by family and size, and what its peers are built from. At 256 pixels, with windows of 4,
# every map of a Swin is of several whole windows: there all agree, also the classification codes, which do not shift on
# a map that is one window. MViT's codes for classification attend globally, at the size of pretraining only. ViTs agree
# at any size of whole patches, but for how they resize their positions to it.
MODELS = {
    ("swin", "shallow"): (lambda: Swin(SHALLOW, window_size=4), PeerSpec(SwinArch(**SHALLOW), (256, 256), 4)),
    ("swin_v2", "shallow"): (lambda: SwinV2(SHALLOW, window_size=4), PeerSpec(SwinV2Arch(**SHALLOW), (256, 256), 4)),
    ("mvit", "v2_tiny"): (lambda: MViT("v2_tiny", window="global"), PeerSpec(MVIT["v2_tiny"], (224, 224))),
    ("mvit", "v2_small"): (lambda: MViT("v2_small", window="global"), PeerSpec(MVIT["v2_small"], (224, 224))),
    ("mvit", "mlp growth"): (
        lambda: MViT({**NANO, "growth": "mlp"}, window="global", pretrain_img_size=96),
        PeerSpec(MViTArch(**NANO, growth="mlp"), (96, 96)),
    ),
    **{
        ("vit", name): (
            lambda name=name, **options: ViT(name, out_norm="none", **options),
            PeerSpec(VIT[name], (224, 224)),
        )
        for name in ("deit_tiny", "deit_small_distilled", "deit3_small", "vit_base")
    },
    **{
        ("vit", name): (
            lambda name=name, **options: ViT(asdict(shrunk(VIT[name])), out_norm="none", **options),
            PeerSpec(shrunk(VIT[name]), (224, 224)),
        )
        for name in (
            *("dinov2_small", "dinov2_small_reg", "dinov2_giant", "dinov3_small", "dinov3_small_plus", "dinov3_7b"),
            *("pe_spatial_base", "pe_spatial_giant", "siglip2_base", "eva02_small", "eva02_base"),
        )
    },
    **{
        ("convnext", name): (lambda name=name: ConvNeXt(name), PeerSpec(CONVNEXT[name], (96, 160)))
        for name in ("tiny", "v2_atto")
    },
    ("hiera", "tiny"): (lambda: Hiera("tiny"), PeerSpec(HIERA["tiny"], (128, 160))),
}
if HAS_RESEARCH:
    from research_parity import MODELS as OF_RESEARCH

    MODELS |= OF_RESEARCH
# Names of a scheme that another scheme has, too, which is found first.
SAME_NAMES = {
    ("vit", "timm"): "official",
    ("cait", "timm"): "official",
    ("resnet", "timm"): "torchvision",
    ("resnet", "mmdet"): "vitdense",
}
ROWS = [
    (family, size, scheme)
    for family, size in MODELS
    for scheme, peer in PEERS[family].items()
    # The largest is run once: it differs from others in numbers only.
    if not peer.unsupported_features(MODELS[family, size][1]) and (size != "vit_base" or scheme == "timm")
]


def randomise(model):
    for name, parameter in model.named_parameters():  # norms and biases too: 1 and 0 would hide a swap
        # With smaller ones attention would be so even that neither they nor queries and keys were seen in the maps.
        # Gates of gMLP likewise.
        is_seen = (
            re.search(r"rel_pos|pool_|norm_[qkv]|(qkv\.|[qkv]_proj\.|in_proj_|gate\.norm\.|proj_[lw]\.)weight$", name)
            is not None
        )
        # LayerScale and factors near 0 would hide their branch.
        is_factor = re.search(r"gamma|\.ls\d|\.alpha$|gate\.proj\.bias$", name) is not None
        mean = 2.3 if name.endswith("logit_scale") else 1.0 if is_factor else 0.0
        # Talking heads add the bias after the softmax to the weight of each of hundreds of keys.
        small = 0.001 if name.endswith("proj_w.bias") else 0.05
        nn.init.normal_(parameter, mean, std=1.0 if is_seen else small)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.05)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        if hasattr(module, "logit_scale") and getattr(module.qkv, "bias", None) is not None:
            # torchvision keeps a bias for keys that it never uses: the one thing that comes back as zero.
            module.qkv.bias.data.chunk(3)[1].zero_()
    model.eval()  # returns None in mmdet
    return model


@torch.no_grad()
def without_keys(model):
    """Every query meets the same key. (MViT adds its queries to the result as well.) Tokens of a mixer do not meet."""
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        if name.endswith((".qkv.weight", ".qkv.bias")):
            parameter.chunk(3)[1].zero_()
        elif name.endswith(("mlp_tokens.fc1.weight", "linear_tokens.weight")):
            parameter.zero_()
    return model


def state_of(peer, family, scheme):
    prefix = "backbone." if scheme in ("mmdet", "mmpretrain") else ""
    state = {prefix + key: value for key, value in peer.state_dict().items()}
    if scheme != "mmpretrain":
        return state
    heads = ["fc"]  # of a classifier, outside the backbone
    if family == "vit":
        heads = ["layers.head", *["layers.head_dist"] * ("backbone.dist_token" in state)]
    if family not in ("vit", "mixer", "resnet"):  # its norm is the last output norm
        state = {key: value for key, value in state.items() if not re.match(r"backbone\.norm[012]\.", key)}
    state |= {f"head.{head}.weight": torch.randn(10, 8) for head in heads}
    return state | {f"head.{head}.bias": torch.randn(10) for head in heads}


def errors_at_another_size(make, ours, theirs, peer, state):
    """Positions are resized as the image comes: mm's codes do it as ours, timm's as our loader by timm's rule."""
    shape = (154, 252) if ours.arch.patch_size == 14 else (160, 256)
    if peer.package == "timm":
        ours = make(pretrain_img_size=shape).eval()
        report = load_pretrained(ours, state, resize="timm")
        assert list(report.resized) == ["absolute_pos_embed.table"] * ours.arch.absolute_position
    x = torch.randn(1, 3, *shape)
    with torch.no_grad():
        return relative_errors(raw_maps(ours, x)[-1:], peer.maps(theirs, x)[-1:])


def is_repeated(size):
    return size in ("vit_base", "v2_small") or size.startswith("vit_small, R")


@pytest.mark.parametrize(
    ("family", "size", "scheme"),
    [pytest.param(*row, marks=pytest.mark.slow) if is_repeated(row[1]) else row for row in ROWS],
)
def test_features_equal_the_peer_and_conversion_round_trips(family, size, scheme):
    peer = PEERS[family][scheme]
    pytest.importorskip(peer.package)
    make, spec = MODELS[family, size]
    theirs = randomise(peer.build(spec))
    state = state_of(theirs, family, scheme)
    ours = without_output_norms(make())
    report = load_pretrained(ours, {"state_dict": state})
    assert report.scheme in (scheme, SAME_NAMES.get((family, scheme)))  # timm's ViTs: without LayerScale
    # timm computes the periods of DINOv3.
    assert report.share == 1 or report.kept_at_init == ["rope.periods"]
    x = torch.randn(1, 3, *spec.shape)
    with torch.no_grad():
        errors = relative_errors(raw_maps(ours, x), peer.maps(theirs, x))
        even = relative_errors(raw_maps(without_keys(ours), x), peer.maps(theirs, x))
    assert max(errors) < 1e-5, errors
    # A fault of queries or keys would be seen in every map.
    assert min(even) > 1e-3 or family in ("resnet", "convnext"), even
    here = convert(state, "vitdense")
    back = convert(here.state, scheme, windows=[spec.window]).state
    assert back.keys() == state.keys()
    for key, value in state.items():
        same = torch.allclose if key.endswith("relative_coords_table") else torch.equal  # computed again, in float64
        assert same(back[key], value), key
    if family in ("vit", "three_things", "hybrid_vit"):
        errors += errors_at_another_size(make, ours, theirs, peer, state)
        assert max(errors) < 1e-5, errors
    add_row(family, scheme, f"{size}, {num_params(theirs) / 1e6:.1f} M random", errors, report.share, "bit-equal")


def timm_entry(row):
    if row.model.startswith("dinov2"):  # whose row has the authors' file
        size, *registers = row.model.split("_")[1:]
        return f"vit_{size}_patch14_{'reg4_' if registers else ''}dinov2"
    return re.sub(r"timm://|hf://timm/", "", row.weights).partition(".")[0]


FOUNDATION = re.compile("dinov|lingbot|eva02|pe_|siglip|tipsv2")
VITS = [row for row in TABLE.values() if row.family == "ViT" and row.weights]
ENTRIES = {timm_entry(row): row for row in VITS if FOUNDATION.match(row.model)}


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_rows_equal_timms_entries(entry):
    """Every tensor of timm's model has its place in ours; a small one with the parts of the entry, not of our row, has
    our features: at the size of pretraining, and at another one, not square, where positions are resized as timm does.
    """
    row = ENTRIES[entry]
    # timm's model of this size has the exact GELU, the authors' has not.
    options = {"num_classes": 0, **({"act_layer": "gelu_tanh"} if row.model == "siglip2_base" else {})}
    with torch.device("meta"):
        theirs, ours = timm.create_model(entry, **options), create(row.name, out_norm="none")
        state = detect(theirs.state_dict(), ["vit"]).ours
    assert ours.arch.num_heads == theirs.blocks[0].attn.num_heads  # which no shape shows
    assert ours.state_dict().keys() - state.keys() <= {"rope.periods"}
    for key, x in state.items():
        assert key.startswith(("norm.", "fc_norm.", "attn_pool.")) or ours.state_dict()[key].shape == x.shape, key
    arch = shrunk(ours.arch)
    sizes = {"embed_dim": arch.embed_dims, "depth": arch.depth, "num_heads": arch.num_heads}
    theirs = randomise(timm.create_model(entry, dynamic_img_size=True, **sizes, **options))
    arch = replace(arch, ffn_dims=theirs.blocks[0].mlp.fc2.in_features)
    for block in theirs.blocks:
        nn.init.normal_(block.norm2.weight, 1.0, 0.05)  # the approximation of the GELU is seen in large values only
    errors = []
    for shape in ((row.image_size, row.image_size), (11 * arch.patch_size, 18 * arch.patch_size)):
        table = row.options.get("pretrain_img_size", row.image_size) if shape[0] == shape[1] else shape
        ours = ViT(asdict(arch), out_norm="none", pretrain_img_size=table).eval()
        report = load_pretrained(ours, theirs.state_dict(), resize="timm")
        x = 0.1 * torch.randn(1, 3, *shape)  # tokens of a small variance, which show the epsilon of norms
        with torch.no_grad():
            errors += relative_errors(raw_maps(ours, x), theirs.forward_intermediates(x, intermediates_only=True))
        if arch.rope == "pe":  # timm scales other maps to 32x32 tokens, the authors count tokens
            theirs.rope.ref_feat_shape = None
    assert max(errors) < 1e-5, errors
    add_row("vit", report.scheme, f"{entry}, small", errors, report.share, "")
