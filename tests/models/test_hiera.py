"""Hiera: maps of timm and of transformers, a definition written out for odd sizes, whole files of SAM 2."""

import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import assert_same_tensors, relative_error, without_output_norms
from contract_rows import MODELS as ROWS

from peers import PEERS, PeerSpec
from vitdense import Hiera
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.models.hiera.model import WindowPosition
from vitdense.models.hiera.sizes import HIERA, HieraArch

NANO = ROWS["hiera"].arch
# Windows of 14 pad maps of 10 and 20, with the next ones of 7.
ARCH = HieraArch(16, (1, 2, 4, 2), 2, global_indices=(4, 5))


def randomised(model):
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5 if name.endswith("qkv.weight") else 0.1)
    return model.eval()


def in_timm(arch):
    return PEERS["hiera"]["timm"].build(PeerSpec(arch, (64, 64)))


def in_transformers(arch):
    transformers = pytest.importorskip("transformers")
    stages = range(len(arch.depths))
    config = transformers.AutoConfig.for_model(
        "sam2_hiera_det_model",
        hidden_size=arch.embed_dims,
        num_attention_heads=arch.num_heads,
        window_positional_embedding_background_size=list(arch.position_grid),
        blocks_per_stage=list(arch.depths),
        embed_dim_per_stage=[arch.embed_dims * 2**i for i in stages],
        num_attention_heads_per_stage=[arch.num_heads * 2**i for i in stages],
        window_size_per_stage=list(arch.window_sizes),
        global_attention_blocks=list(arch.global_indices),
    )
    return transformers.AutoModel.from_config(config)


@pytest.mark.parametrize(
    ("build", "scheme"), [(in_timm, "timm"), (in_transformers, "transformers")], ids=["timm", "transformers"]
)
@torch.no_grad()
def test_maps_equal_other_projects_at_sizes_of_whole_windows(build, scheme):
    theirs = randomised(build(ARCH))
    ours = without_output_norms(Hiera(vars(ARCH)))
    report = load_pretrained(ours, theirs.state_dict())
    assert (report.scheme, report.share) == (scheme, 1)
    for h, w in ((64, 64), (160, 96), (288, 320)):
        x = torch.randn(2, 3, h, w)
        if scheme == "timm":
            maps = theirs.forward_intermediates(x, intermediates_only=True)
        else:
            maps = [y.permute(0, 3, 1, 2) for y in theirs(x).intermediate_hidden_states]
        errors = [relative_error(*pair) for pair in zip(ours(x), maps, strict=True)]
        assert max(errors) < 1e-6, errors
    back = convert(ours.state_dict(), scheme).state
    prefix = "" if scheme == "timm" else "vision_encoder.backbone."  # as in the whole model
    trunk = {prefix + key: x for key, x in theirs.state_dict().items() if not key.startswith("head.")}
    assert_same_tensors(back, trunk)


@pytest.mark.parametrize("size", HIERA)
def test_blocks_of_published_sizes_are_timms(size):
    with torch.device("meta"):
        theirs, ours = timm.create_model(f"sam2_hiera_{size}"), Hiera(size)
    blocks = [block for stage in ours.stages for block in stage.blocks]
    got = [(b.norm1.normalized_shape[0], b.norm2.normalized_shape[0], b.attn) for b in blocks]
    assert [(dim, out, a.num_heads, a.pools, a.window) for dim, out, a in got] == [
        (b.dim, b.dim_out, b.attn.num_heads, b.q_stride is not None, b.window_size[0] or None) for b in theirs.blocks
    ]
    assert ours.absolute_pos_embed.table.shape[1:3] == theirs.pos_embed.shape[2:]


def by_definition(block, x):
    """The block, window by window: keys and values of padding are the bias, and it is no pixel of a pooled query."""
    attn = block.attn
    b, h, w, dim = x.shape
    dim_out = attn.proj.out_features
    y = F.layer_norm(x, (dim,), block.norm1.weight, block.norm1.bias, 1e-6)
    qkv = y @ attn.qkv.weight.T + attn.qkv.bias  # [B, H, W, 3*C]
    q, k, v = qkv.chunk(3, dim=-1)
    _, bias_k, bias_v = attn.qkv.bias.chunk(3)
    step = 2 if attn.pools else 1
    skip = y @ block.proj.weight.T + block.proj.bias if attn.pools else x
    out_h, out_w = (h + step - 1) // step, (w + step - 1) // step
    out = x.new_empty(b, out_h, out_w, dim_out)
    height, width = (attn.window, attn.window) if attn.window else (h, w)
    for image in range(b):
        for i in range(out_h):
            for j in range(out_w):
                pixels = (image, slice(step * i, step * i + step), slice(step * j, step * j + step))
                query = q[pixels].flatten(0, 1).amax(0)
                top, left = step * i // height * height, step * j // width * width
                places = [(r, c) for r in range(top, top + height) for c in range(left, left + width)]
                keys = torch.stack([k[image, r, c] if r < h and c < w else bias_k for r, c in places])
                values = torch.stack([v[image, r, c] if r < h and c < w else bias_v for r, c in places])
                heads = [t.unflatten(-1, (attn.num_heads, -1)) for t in (query, keys, values)]
                share = (torch.einsum("hd,nhd->hn", *heads[:2]) / heads[0].shape[-1] ** 0.5).softmax(-1)
                attended = torch.einsum("hn,nhd->hd", share, heads[2]).flatten()
                place = skip[pixels].flatten(0, 1).amax(0)
                out[image, i, j] = place + attn.proj.weight @ attended + attn.proj.bias
    return out + block.mlp(F.layer_norm(out, (dim_out,), block.norm2.weight, block.norm2.bias, 1e-6))


@pytest.mark.parametrize(
    ("number", "pools", "window", "size"),
    [
        (0, False, 4, (5, 7)),
        (1, True, None, (5, 7)),
        (2, False, 2, (5, 7)),
        (3, True, 2, (5, 3)),
        (4, False, None, (5, 7)),
    ],
)
@torch.no_grad()
def test_a_block_at_odd_sizes_is_the_definition(number, pools, window, size):
    block = randomised([block for stage in Hiera(NANO).stages for block in stage.blocks][number]).double()
    assert (block.attn.pools, block.attn.window) == (pools, window)
    x = torch.randn(2, *size, block.norm1.normalized_shape[0], dtype=torch.float64)
    torch.testing.assert_close(block(x), by_definition(block, x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_window_position_is_repeated_from_the_top_left():
    position = WindowPosition((3, 5), 4, 16).double()
    table = F.interpolate(position.table.permute(0, 3, 1, 2), size=(9, 6), mode="bicubic")[0]
    got = position(torch.zeros(1, 9, 6, 16, dtype=torch.float64))[0]
    for i in range(9):
        for j in range(6):
            torch.testing.assert_close(got[i, j], table[:, i, j] + position.window[0, i % 4, j % 4])


def test_the_trunk_of_a_whole_sam_2_file_is_loaded():
    model = randomised(Hiera(NANO))
    done = convert(model.state_dict(), "official", drop_output_norms=True)
    trunk = dict(done.state)
    assert "image_encoder.trunk.blocks.3.mlp.layers.1.weight" in trunk
    others = ("image_encoder.neck.convs.0.conv.weight", "sam_mask_decoder.iou_token.weight", "no_mem_embed")
    file = {"model": trunk | {key: torch.randn(2, 2) for key in others}}
    report = load_pretrained(again := Hiera(NANO), file)
    assert report.scheme == "official"
    assert {key.split(".")[0] for key in report.kept_at_init} == {f"norm{i}" for i in range(4)}
    state = again.state_dict()
    assert all(torch.equal(state[k], x) for k, x in model.state_dict().items() if not k.startswith("norm"))
    del file["model"]["image_encoder.trunk.pos_embed_window"]  # without it the names are an MViT's
    with pytest.raises(CheckpointMismatchError, match=r"as one of hiera it lacks absolute_pos_embed.+window"):
        load_pretrained(again, file)
