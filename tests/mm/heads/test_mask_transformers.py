"""EoMT and PMT against golden tensors of the authors' code, and against transformers."""

import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import REPO, relative_error
from safetensors.torch import load_file
from torch import nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.whole_models import fit_whole, load_base
from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead
from vitdense.mm.train.hooks import ExactLoadHook
from vitdense.models.vit.model import ViT
from vitdense.models.vit.tokens import JointViT, TokenViT

NORMALISE = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
DINOV2 = {"layer_scale": 1e-5, "registers": 4, "position_rule": "antialias"}
DINOV3 = {"layer_scale": 1e-5, "registers": 4, "norm_eps": 1e-5, "absolute_position": False}
DINOV3 |= {"rope": "dinov3", "qkv_bias": "no_key"}
TRUNK = "network.encoder.backbone."


class Whole(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.panoptic_head = backbone, head

    def predictions(self, image, masked):
        probabilities = self.panoptic_head.mask_probabilities if masked else None
        return self.panoptic_head.predict_all(self.backbone(image), probabilities)


def make(kind, trunk, dim=48, heads=3, depth=4, patch_size=16, ffn_dims=192, num_queries=7, num_classes=5, ffn="mlp"):
    sizes = {"embed_dims": dim, "depth": depth, "num_heads": heads, "patch_size": patch_size, "ffn_dims": ffn_dims}
    sizes |= {"ffn": ffn} | (DINOV2 if trunk == "dinov2" else DINOV3)
    options = {"num_queries": num_queries, "num_things_classes": num_classes, "num_stuff_classes": 0, "num_blocks": 2}
    options |= {"patch_size": patch_size}
    if kind == "eomt":
        return Whole(JointViT(arch=sizes, num_joint_blocks=2, pretrain_img_size=64), EoMTHead([dim], **options)).eval()
    taps = {"out_indices": range(depth), "out_norm": "shared", "frozen_stages": "all"}
    return Whole(TokenViT(sizes, pretrain_img_size=64, **taps), PMTHead([dim] * depth, heads, **options)).eval()


@pytest.fixture
def golden(shared_data):
    def read(name):
        tensors = load_file(shared_data / f"golden/{name}.safetensors")
        state = {key.removeprefix("weight/"): x for key, x in tensors.items() if key.startswith("weight/")}
        copies = [key for key in state if ".backbone.model." in key]  # transformers 5 holds its blocks twice
        for key in copies:
            assert state.pop(key).equal(state[key.replace(".model.layer.", ".blocks.")])
        return state, tensors

    return read


def load_golden(model, state, base=None):
    """Through the production loader. The published files have square maps, these 4x6."""
    table = state.get(f"{TRUNK}pos_embed")
    if table is not None:
        state = {**state, f"{TRUNK}pos_embed": table[:, :16]}
    found, report = fit_whole(model, state, source="golden", load=base and partial(load_base, model, base, "golden"))
    model.load_state_dict(found, strict=True)
    if table is not None:
        model.backbone.absolute_pos_embed.table = nn.Parameter(table.unflatten(1, (4, 6)))
    return report


def assert_masks_of_the_authors(model, tensors):
    image = (tensors["input/image"] - NORMALISE[0]) / NORMALISE[1]
    found = model.requires_grad_(False).predictions(image, False)[0]
    assert relative_error(found.masks, tensors["output/plain/mask/0"]) < 1e-5


def trunk_of(state):
    return {key.removeprefix(TRUNK): x for key, x in state.items() if key.startswith(TRUNK)}


def as_difference(state, tmp_path):
    base = {
        key: x - 0.01 * torch.randn_like(x) if "norm" in key else torch.randn_like(x)
        for key, x in trunk_of(state).items()
    }
    torch.save(base, tmp_path / "base.pth")
    return {key: x - base.get(key.removeprefix(TRUNK), 0) for key, x in state.items()}, tmp_path / "base.pth"


@pytest.mark.parametrize("trunk", ["dinov2", "dinov3"])
@pytest.mark.parametrize("kind", ["eomt", "pmt"])
def test_outputs_and_gradients_of_the_authors(kind, trunk, golden, tmp_path):
    state, tensors = golden(f"{kind}_{trunk}")
    model, base = make(kind, trunk), None
    if trunk == "dinov3":
        state, base = as_difference(state, tmp_path)
    load_golden(model, state, base)
    image = (tensors["input/image"] - NORMALISE[0]) / NORMALISE[1]
    for masked, count in ((True, 3), (False, 1)):
        found = model.predictions(image, masked)
        assert len(found) == count
        for i, (classes, masks) in enumerate(found):
            start = f"output/{'masked' if masked else 'plain'}"
            assert relative_error(masks.detach(), tensors[f"{start}/mask/{i}"]) < 1e-5
            assert relative_error(classes.detach(), tensors[f"{start}/class/{i}"]) < 1e-5
        if masked and kind == "eomt":
            sum(one.masks.square().mean() + one.classes.square().mean() for one in found).backward()
    if kind == "eomt":
        predictor = model.panoptic_head.predictor
        rows = {
            "q.weight": predictor.queries,
            "class_head.weight": predictor.class_head,
            "mask_head.0.weight": predictor.mask_head[0],
            "upscale.0.conv1.weight": predictor.upscale[0].conv1,
        }
        assert {f"grad/{key}" for key in rows} == {key for key in tensors if key.startswith("grad/")}
        for key, module in rows.items():
            assert relative_error(module.weight.grad, tensors[f"grad/{key}"]) < 1e-5, key


@pytest.mark.parametrize("drop", [True, False])
def test_files_without_a_whole_trunk_need_a_base(drop, golden, tmp_path):
    state, _ = as_difference(golden("pmt_dinov3")[0], tmp_path)
    state = {key: x for key, x in state.items() if not (drop and key.startswith(TRUNK))}
    with pytest.raises(CheckpointMismatchError, match="base"):
        fit_whole(make("pmt", "dinov3"), state)


@pytest.mark.parametrize("kind", ["eomt", "pmt"])
def test_whole_files_on_dinov3_are_told_from_differences_by_their_norms(kind, golden):
    state, tensors = golden(f"{kind}_dinov3")
    model = make(kind, "dinov3")
    load_golden(model, state)
    assert_masks_of_the_authors(model, tensors)
    with pytest.raises(CheckpointMismatchError, match="base"):
        load_golden(model, state, "dinov3_small")  # not downloaded
    norms = [key for key in state if key.startswith(TRUNK) and "norm" in key and key.endswith("weight")]
    for scaled, factor in ((norms, 0.3), (norms[:1], 0.01), (norms[1:], 0.01), (norms, 5.0)):
        with pytest.raises(CheckpointMismatchError, match="norms"):
            load_golden(model, state | {key: factor * state[key] for key in scaled})


def test_pmt_head_with_the_trunk_of_another_file(golden, tmp_path):
    state, tensors = golden("pmt_dinov3")
    trunk = trunk_of(state)
    torch.save(trunk, tmp_path / "trunk.pth")
    head = {key: x for key, x in state.items() if key.startswith(("network.decoder.", "network.bn."))}
    model = make("pmt", "dinov3")
    report = load_golden(model, head, tmp_path / "trunk.pth")
    assert "trunk.pth" in report.scheme
    other = make("pmt", "dinov3")
    load_pretrained(other.backbone, trunk)
    torch.save(head, tmp_path / "head.pth")
    options = {"checkpoint": str(tmp_path / "head.pth"), "prefix": "network."}
    other.panoptic_head.init_cfg = {"type": "Pretrained", **options}
    other.panoptic_head.init_weights()
    for one in (model, other):
        assert_masks_of_the_authors(one, tensors)


@pytest.mark.parametrize("trunk", ["dinov2", "dinov3"])
@pytest.mark.parametrize("grid", [(8, 8), (6, 10)])
def test_transformers_computes_the_same(trunk, grid):
    """Files of scripts/golden_eomt.py."""
    tensors = load_file(REPO / f"tests/data/golden/eomt_transformers_{trunk}.safetensors")
    sizes = {"dim": 24, "heads": 2, "depth": 3, "patch_size": 8, "ffn_dims": 48, "num_queries": 5, "num_classes": 3}
    model = make("eomt", trunk, **sizes)
    state = {key.removeprefix("weight/"): x for key, x in tensors.items() if key.startswith("weight/")}
    found, report = fit_whole(model, state)
    assert report.scheme == "transformers_eomt"
    model.load_state_dict(found, strict=True)
    at = f"{grid[0]}x{grid[1]}"
    if trunk == "dinov2":
        model.backbone.absolute_pos_embed.table = nn.Parameter(tensors[f"position/{at}"].view(1, *grid, 24))
    last = {}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for mode in ("plain", "masked"):
        last[mode] = model.predictions(tensors[f"input/{at}"], mode == "masked")[-1]
        assert relative_error(last[mode].masks, tensors[f"output/{at}/{mode}/mask"]) < 1e-5
        assert relative_error(last[mode].classes, tensors[f"output/{at}/{mode}/class"]) < 1e-5
    assert relative_error(last["plain"].masks, last["masked"].masks) > 1e-3  # the masks do something


@torch.no_grad()
def test_transformers_computes_the_same_with_a_gated_mlp():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "patch_size": 16, "image_size": 64}
    options = {"num_blocks": 2, "num_queries": 7, "num_labels": 5, "num_upscale_blocks": 2, "use_swiglu_ffn": True}
    theirs = transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**sizes, **options)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    model = make("eomt", "dinov2", ffn="swiglu", ffn_dims=128)
    found, report = fit_whole(model, theirs.state_dict())
    assert report.scheme == "transformers_eomt"
    model.load_state_dict(found, strict=True)
    image = torch.randn(1, 3, 64, 64)
    ours, theirs = model.predictions(image, False)[-1], theirs(image)
    assert relative_error(ours.masks, theirs.masks_queries_logits) < 1e-5
    assert relative_error(ours.classes, theirs.class_queries_logits) < 1e-5


def test_a_trunk_with_patches_of_14_pixels_starts_one_with_16_as_timm_does():
    from timm.layers import resample_abs_pos_embed
    from timm.layers.patch_embed import resample_patch_embed

    sizes = {"embed_dims": 16, "depth": 2, "num_heads": 2, **DINOV2}
    saved = ViT({**sizes, "patch_size": 14}, pretrain_img_size=14 * 9, out_norm="shared").state_dict()
    options = {"num_joint_blocks": 1, "pretrain_img_size": 16 * 5}
    model = JointViT(arch={**sizes, "patch_size": 14}, patch_size=16, **options)
    report = load_pretrained(model, saved, resize="timm")
    assert report.resized.keys() == {"patch_embed.proj.weight", "absolute_pos_embed.table"}
    weight = resample_patch_embed(saved["patch_embed.proj.weight"], [16, 16])
    torch.testing.assert_close(model.patch_embed.proj.weight.detach(), weight, atol=1e-5, rtol=1e-4)
    table = saved["absolute_pos_embed.table"].flatten(1, 2)
    table = resample_abs_pos_embed(table, [5, 5], [9, 9], num_prefix_tokens=0).unflatten(1, (5, 5))
    torch.testing.assert_close(model.absolute_pos_embed.table.detach(), table, atol=1e-6, rtol=1e-5)
    with pytest.raises(CheckpointMismatchError):
        load_pretrained(model, saved)


@pytest.mark.parametrize("kind", ["eomt", "pmt"])
def test_a_mask_depends_only_on_the_patches(kind):
    """Any size divisible by the patch; the queries of an image do not depend on the batch."""
    model = make(kind, "dinov3").requires_grad_(False)
    images = torch.randn(2, 3, 48, 80)
    both = model.predictions(images, True)[-1]
    assert both.masks.shape == (2, 7, 12, 20)
    alone = model.predictions(images[1:], True)[-1]
    torch.testing.assert_close(both.masks[1:], alone.masks, atol=1e-5, rtol=1e-4)


def test_windows_are_refused():
    sizes = {"embed_dims": 16, "depth": 2, "num_heads": 2}
    trunk = JointViT(arch=sizes, num_joint_blocks=1, window_size=2, global_indices=(0,), pretrain_img_size=64)
    with pytest.raises(ValueError, match="window_size"):
        trunk(torch.randn(1, 3, 64, 64))[0].join(3)
    with pytest.raises(ValueError, match="num_joint_blocks"):
        JointViT(arch=sizes, num_joint_blocks=2)


def test_two_heads_on_one_pass_of_a_frozen_trunk():
    sizes = {"embed_dims": 48, "depth": 2, "num_heads": 3, **DINOV3}
    trunk = TokenViT(sizes, out_indices=(0, 1), out_norm="shared", frozen_stages="all")
    features = trunk(torch.randn(1, 3, 64, 64))
    assert not any(x.requires_grad for tap in features for x in tap)
    for queries, classes, blocks in ((7, 5, 2), (4, 2, 1)):
        options = {"num_queries": queries, "num_things_classes": classes, "num_stuff_classes": 0, "num_blocks": blocks}
        head = PMTHead([48] * 2, 3, **options).eval()
        (found,) = head.predict_all(features, None)
        (found.masks.square().mean() + found.classes.square().mean()).backward()
        assert all(p.grad is not None for p in head.parameters())
    assert all(p.grad is None for p in trunk.parameters())


@pytest.mark.parametrize("key", ["network.bn_prefix.0.weight", "network.decoder.pe.weight", "network.surprise"])
def test_keys_of_old_files_are_refused(key, golden, tmp_path):
    state, _ = golden("pmt_dinov2")
    with pytest.raises(CheckpointMismatchError, match=r"expected|fit|unexpected"):
        load_golden(make("pmt", "dinov2"), {**state, key: torch.ones(48)})


def test_the_hook_of_a_run_adds_a_difference_to_its_base(golden, tmp_path):
    state, tensors = golden("eomt_dinov3")
    model, (difference, base) = make("eomt", "dinov3"), as_difference(state, tmp_path)
    hook, checkpoint = ExactLoadHook(base=str(base)), {"state_dict": difference}
    runner = SimpleNamespace(_resume=False, _train_loop=None, _test_loop=None, _load_from="eomt.bin", model=model)
    runner.logger = logging.getLogger()
    hook.after_load_checkpoint(runner, checkpoint)
    model.load_state_dict(checkpoint["state_dict"], strict=True)
    assert "base.pth" in str(hook.reports[0])
    assert_masks_of_the_authors(model, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["dinov2", "dinov3"])
@pytest.mark.parametrize("kind", ["eomt", "pmt"])
def test_trunk_and_head_compile_as_one_graph(kind, trunk):
    model = make(kind, trunk)
    compiled = torch.compile(model.predictions, fullgraph=True, dynamic=True, backend="eager")
    for size, masked in (((64, 96), False), ((96, 48), False), ((64, 96), True)):
        x = torch.randn(1, 3, *size)
        for got, want in zip(compiled(x, masked), model.predictions(x, masked), strict=True):
            torch.testing.assert_close(got, want)
