"""ViT-Adapter: the contract of backbones, the authors' golden files, the definition, freezing, loading."""

import copy
import itertools
import logging
import math
import re

import contract_rows
import pytest
import torch
import torch.nn.functional as F
from conftest import add_row, assert_same_tensors, of_prefix, relative_error
from contract_rows import ADAPTER, ADAPTERS, TRUNK
from test_vit import by_hand
from torch import nn

from vitdense import ViT, ViTAdapter
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.flops import num_params

NO_TOKENS = TRUNK | {"class_token": False}
every = pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS.keys())


def adapter(trunk=TRUNK, **options):
    return contract_rows.adapter(trunk)(**options)


def of_golden(config):
    arch = {"embed_dims": config["embed_dim"], "depth": config["depth"], "num_heads": config["num_heads"]}
    trunk = {
        "arch": arch | {"layer_scale": 1.0 if config["layer_scale"] else None},
        "pretrain_img_size": config["pretrain_size"],
        "class_token": False,
        "out_indices": [last for _, last in config["interaction_indexes"]],
    }
    if windows := [size for size in config["window_size"] if size]:
        trunk |= {"window_size": windows[0], "window_padding": "qkv"}
        trunk["global_indices"] = [i for i, windowed in enumerate(config["window_attn"]) if not windowed]
    assert (config["n_points"], config["cffn_ratio"], config["use_extra_extractor"]) == (4, 0.25, True)
    return ViTAdapter(trunk, **{key: config[key] for key in ("conv_inplane", "deform_num_heads", "deform_ratio")})


@pytest.mark.parametrize("name", ["global", "windowed"])
@torch.no_grad()
def test_outputs_and_weights_equal_the_golden_files(name, golden_file):
    config, tensors = golden_file(f"vit_adapter_{name}")
    state = of_prefix(tensors, "weight/")
    model = of_golden(config).eval()
    report = load_pretrained(model, {"state_dict": state})
    assert (report.scheme, report.share, report.resized) == ("official", 1, {})
    assert report.ignored == ["trunk.tokens.cls_position"]
    errors = [
        relative_error(out, tensors[f"output/{case}/f{i + 1}"])
        for case, x in of_prefix(tensors, "input/").items()
        for i, out in enumerate(model(x))
    ]
    assert max(errors) < 1e-5, errors
    here = convert(state, "vitdense").state
    assert here.keys() - {"trunk.tokens.cls_position"} == model.state_dict().keys()
    assert_same_tensors(convert(here, "official").backbone, state)
    add_row("vit_adapter", "official", f"golden vit_adapter_{name}, large", errors, report.share, "bit-equal")


def attention_by_hand(attn, queries, centres, maps):
    """Sample by sample, of queries ``[Q, C]`` at pixels (x, y), in values ``[h, w, C]`` with their stride by level."""
    heads = attn.shape[0]
    maps = [(attn.value_proj(values).unflatten(-1, (heads, -1)), stride) for values, stride in maps]
    out = queries.new_zeros(len(queries), *maps[0][0].shape[2:])  # [Q, heads, d]
    for n, query in enumerate(queries):
        offsets = attn.sampling_offsets(query).view(*attn.shape, 2)
        shares = attn.attention_weights(query).view(heads, -1).softmax(-1).view(attn.shape)
        for head, level, point in itertools.product(*map(range, attn.shape)):
            values, stride = maps[level]
            # In positions: the centre of position 0 is 0.
            x, y = (centres[n][a] / stride - 0.5 + offsets[head, level, point, a].item() for a in (0, 1))
            for row, column in itertools.product(*((math.floor(a), math.floor(a) + 1) for a in (y, x))):
                if 0 <= row < values.shape[0] and 0 <= column < values.shape[1]:
                    near = (1 - abs(y - row)) * (1 - abs(x - column))
                    out[n, head] += shares[head, level, point] * near * values[row, column, head]
    return attn.output_proj(out.flatten(1))


@torch.no_grad()
def test_injector_and_extractor_are_the_definition():
    """For patches of 14 pixels and an image of 41x53: no size is a multiple of another. In float64."""
    options = {"arch": {**TRUNK["arch"], "embed_dims": 8, "patch_size": 14}, "out_indices": (3,), "class_token": False}
    model = adapter(TRUNK | options, deform_num_heads=2, deform_ratio=0.5).double().eval()
    for parameter in model.interactions.parameters():
        nn.init.normal_(parameter, std=0.5)
    injector, extractor = (model.interactions[0][name] for name in ("injector", "extractor"))
    calls = []
    for module in (injector, extractor):
        module.register_forward_hook(lambda module, args, out: calls.append((args, out)))
    model(torch.randn(1, 3, 41, 53, dtype=torch.float64))
    ((x, c, _), injected), ((before, after, _, sizes), extracted) = calls
    assert sizes == [(6, 7), (3, 4), (2, 2)]
    assert torch.equal(c, before)
    parts, trunk = [h * w for h, w in sizes], (3, 4)

    def maps_of(norm, tokens):
        return [part.unflatten(0, size) for part, size in zip(by_hand(norm, tokens).split(parts), sizes)]

    def centres_of(size, stride):
        return [((column + 0.5) * stride, (row + 0.5) * stride) for row in range(size[0]) for column in range(size[1])]

    query, maps = by_hand(injector.query_norm, x[0]), zip(maps_of(injector.feat_norm, c[0]), (8, 16, 32))
    want = x[0] + injector.gamma * attention_by_hand(injector.attn, query, centres_of(trunk, 14), list(maps))
    torch.testing.assert_close(injected[0], want)

    centres = [centre for size, stride in zip(sizes, (8, 16, 32)) for centre in centres_of(size, stride)]
    values = by_hand(extractor.feat_norm, after[0]).unflatten(0, trunk)
    query = by_hand(extractor.query_norm, c[0])
    read = c[0] + attention_by_hand(extractor.attn, query, centres, [(values, 14)])
    ffn, wants = extractor.ffn, []
    kernel, bias = ffn.dwconv["dwconv"].weight[:, 0], ffn.dwconv["dwconv"].bias
    for part, (h, w) in zip(ffn.fc1(by_hand(extractor.ffn_norm, read)).split(parts), sizes):
        part = F.pad(part.view(h, w, -1), (0, 0, 1, 1, 1, 1))
        mixed = sum(part[i : i + h, j : j + w] * kernel[:, i, j] for i in range(3) for j in range(3)) + bias
        wants.append(ffn.fc2(mixed * 0.5 * (1 + torch.erf(mixed / math.sqrt(2)))).flatten(0, 1))
    torch.testing.assert_close(extracted[0], read + torch.cat(wants))


@torch.no_grad()
@pytest.mark.parametrize("vit_feature", ["last", "each"])
def test_outputs_are_sums_of_adapter_and_trunk(vit_feature):
    """Sides are multiples of 32 pixels, where torch's resizing by a factor is the authors'."""
    model = adapter(vit_feature=vit_feature).eval()
    tokens, sums, levels = [], [], []
    for block in model.trunk.blocks:  # every block is an interaction
        block.register_forward_hook(lambda module, args, out: tokens.append(out[:, 1:]))  # after the class token
    for i in range(4):
        model.output_norm(i).register_forward_hook(lambda module, args, out: sums.append(args[0]))
    model.interactions[-1]["extra_extractors"][1].register_forward_hook(lambda module, args, out: levels.append(out))
    model.spm.register_forward_hook(lambda module, args, out: levels.append(out[0]))
    model(torch.randn(1, 3, 64, 96))
    finest, c = levels
    parts = [x.transpose(1, 2).unflatten(2, s) for x, s in zip(c.split([96, 24, 6], 1), [(8, 12), (4, 6), (2, 3)])]
    wants = [finest + model.up(parts[0]), *parts]
    for i, (want, factor) in enumerate(zip(wants, (4, 2, 1, 0.5))):
        x = tokens[i if vit_feature == "each" else -1].transpose(1, 2).unflatten(2, (4, 6))
        torch.testing.assert_close(sums[i], want + F.interpolate(x, scale_factor=factor, mode="bilinear"))


def test_initialisation_is_the_authors():
    model = ViTAdapter(TRUNK, conv_inplane=64, deform_num_heads=8)
    for interaction in model.interactions:
        assert not interaction["injector"].gamma.any()
    convs = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    for conv in convs[1:]:  # not the patch embedding
        fan_out = math.prod(conv.kernel_size) * conv.out_channels / conv.groups
        tolerance = 4 / conv.weight.numel() ** 0.5  # more than five sigma
        assert conv.weight.std().item() * math.sqrt(fan_out / 2) == pytest.approx(1, abs=tolerance)
        assert conv.bias is None or not conv.bias.any()
    attn = model.interactions[0]["injector"].attn
    assert attn.shape == (8, 3, 4)
    assert not any(p.any() for p in (attn.sampling_offsets.weight, *attn.attention_weights.parameters()))
    offsets = attn.sampling_offsets.bias.view(8, 3, 4, 2)
    for head, direction in enumerate([(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]):
        want = torch.tensor(direction) * torch.arange(1.0, 5)[:, None]
        torch.testing.assert_close(offsets[head], want.expand(3, 4, 2), atol=1e-5, rtol=0)
    for layer in (attn.value_proj, attn.output_proj):
        assert layer.weight.abs().max() < math.sqrt(6 / 64)
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.1)
    ffn = model.interactions[0]["extractor"].ffn
    assert ffn.fc1.weight.std().item() == pytest.approx(0.02, rel=0.3)
    assert model.level_embed.std().item() == pytest.approx(1, rel=0.4)
    with torch.no_grad():  # so the trunk sees nothing of the adapter
        x = torch.randn(1, 3, 72, 104)
        tokens = []
        model.trunk.blocks[-1].register_forward_hook(lambda module, args, out: tokens.append(out))
        model.eval()(x)
        model.trunk(x)
    assert torch.equal(*tokens)


def test_stochastic_depth_of_extractors_but_not_of_extra_ones():
    model = ViTAdapter(TRUNK, deform_num_heads=4, drop_path_rate=0.5)
    rates = {name: module.drop_prob for name, module in model.named_modules() if hasattr(module, "drop_prob")}
    assert rates == {f"interactions.{i}.extractor.drop_path": 0.5 for i in range(4)}


@every
def test_every_parameter_gets_a_gradient(make):
    model = make().train()
    sum(out.square().mean() for out in model(torch.randn(2, 3, 40, 56))).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@every
def test_a_frozen_trunk_is_unchanged_and_passes_gradients_to_the_injectors(make):
    model = adapter({**make.arch, "frozen_stages": "all", "drop_path_rate": 0.5}).train()
    assert not any(m.training for block in model.trunk.blocks for m in block.modules())
    assert model.spm.training
    x = torch.randn(2, 3, 40, 56)
    sum(out.square().mean() for out in model(x)).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("trunk."), name
    injectors = [interaction["injector"] for interaction in model.interactions]
    assert all(injector.gamma.grad.any() for injector in injectors)  # also of the first, through all blocks


@pytest.mark.parametrize("of_trunk", [False, True])
def test_checkpointing_changes_nothing(of_trunk):
    plain, saving = (adapter({**TRUNK, "with_cp": cp and of_trunk}, with_cp=cp).train() for cp in (False, True))
    saving.load_state_dict(plain.state_dict())
    x, calls = torch.randn(2, 3, 72, 104), []
    saving.interactions[0]["injector"].register_forward_pre_hook(lambda *_: calls.append("injector"))
    saving.interactions[-1]["extra_extractors"][0].register_forward_pre_hook(lambda *_: calls.append("extractor"))
    saving.trunk.blocks[2].register_forward_pre_hook(lambda *_: calls.append("block"))
    for model in (plain, saving):
        sum(out.square().mean() for out in model(x)).backward()
    assert {name: calls.count(name) for name in calls} == {"injector": 2, "extractor": 2, "block": 1 + of_trunk}
    for (name, p), q in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, msg=name)


def test_layers_for_decay_are_the_trunks():
    pytest.importorskip("mmengine")
    from vitdense.mm.train.optim import layer_factors

    model = adapter()
    factors = layer_factors(model, 0.5)
    assert {name.partition(".")[0] for name, p in model.named_parameters() if id(p) in factors} == {"trunk"}
    assert factors[id(model.trunk.blocks[3].attn.proj.weight)] == ("block 3", 0.5)
    assert factors[id(model.trunk.patch_embed.proj.weight)] == ("stem", 0.5**5)


def plain_file(path, **options):
    state = ViT(TRUNK["arch"], pretrain_img_size=64, out_norm="final", out_indices=(3,), **options).state_dict()
    torch.save({"state_dict": state}, path)
    return state


@pytest.mark.parametrize("trunk", [TRUNK, NO_TOKENS], ids=["class token", "none"])
def test_init_cfg_of_the_trunk_loads_exactly(trunk, tmp_path, caplog):
    state = plain_file(tmp_path / "vit.pth")
    model = adapter({**trunk, "type": "vitdense.ViT", "init_cfg": str(tmp_path / "vit.pth")})
    image = torch.randn(2, 3, 40, 56)
    with caplog.at_level(logging.WARNING):
        model(image)
        model(image)
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # its weights are not loaded yet
    copy.deepcopy(model).init_weights()
    model.init_weights()
    loaded = dict(model.trunk.named_parameters())
    assert model.trunk.load_report.share == 1
    assert all(torch.equal(p, state[name]) for name, p in loaded.items())
    fresh = adapter({**trunk, "init_cfg": str(tmp_path / "vit.pth")})
    fresh.init_weights()
    caplog.clear()
    fresh(image)
    assert not caplog.records


def test_low_rank_updates_of_the_trunk():
    whole, model = adapter(), adapter({**TRUNK, "finetune": "lora"})
    report = load_pretrained(model, whole.state_dict())
    assert len(report.kept_at_init) == 4 * 2 * 3  # A, B and scale of two layers of every block
    trained = {name for name, p in model.trunk.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in model.trunk.named_parameters() if re.search(r"\.lora\.[AB]$", name)}
    assert convert(model.state_dict(), "vitdense", merge=True).state.keys() == whole.state_dict().keys()


def test_init_cfg_of_the_whole_model_overrides_the_trunks(tmp_path):
    plain_file(tmp_path / "vit.pth")
    want = adapter()
    torch.save({"state_dict": want.state_dict()}, tmp_path / "whole.pth")
    got = adapter({**TRUNK, "init_cfg": str(tmp_path / "vit.pth")}, init_cfg=str(tmp_path / "whole.pth"))
    got.init_weights()
    assert got.load_report.share == 1
    assert_same_tensors(got.state_dict(), want.state_dict())


def test_checkpoint_of_another_image_size_has_its_positions_resized():
    """With the slot of a class token, which the authors' code skips."""
    state = convert(adapter(NO_TOKENS).state_dict(), "official").state
    assert state["backbone.pos_embed"].shape == (1, 17, 32)
    assert not state["backbone.pos_embed"][:, 0].any()
    report = load_pretrained(adapter(NO_TOKENS | {"pretrain_img_size": 96}), {"state_dict": state})
    assert report.resized == {"trunk.absolute_pos_embed.table": ((1, 4, 4, 32), (1, 6, 6, 32))}


def test_whole_detectors_load_from_the_authors_names():
    detector = nn.Module()
    detector.backbone, detector.head = adapter(NO_TOKENS), nn.Linear(2, 2)
    theirs = {f"head.{key}": value for key, value in detector.head.state_dict().items()}
    theirs |= convert(detector.backbone.state_dict(), "official").state  # with the prefix
    theirs["backbone.pos_embed"][:, 0] = 1  # trained, and never read
    state, report = fit_whole(detector, {"state_dict": theirs})
    assert (report.scheme, report.share) == ("official", 1)
    assert report.ignored == ["backbone.trunk.tokens.cls_position"]
    assert_same_tensors(state, detector.state_dict())
    detector.load_state_dict(dict(theirs))  # as mmengine's runner does


def test_trunk_may_be_a_module_and_is_not_changed(tmp_path, caplog):
    plain_file(tmp_path / "vit.pth")
    trunk = ViT(TRUNK["arch"], pretrain_img_size=64, out_norm="none", init_cfg=str(tmp_path / "vit.pth"))
    trunk.init_weights()
    before = copy.deepcopy(trunk.state_dict())
    model = ViTAdapter(trunk, **ADAPTER)
    assert model.trunk is trunk
    assert_same_tensors(trunk.state_dict(), before)
    caplog.clear()
    model(torch.randn(2, 3, 32, 32))
    assert not caplog.records  # its weights are loaded


def test_image_channels_match_the_trunk():
    model = adapter({**TRUNK, "in_channels": 5}).eval()
    with torch.no_grad():
        assert len(model(torch.randn(1, 5, 32, 32))) == 4


HEADS = {"tiny": (192, 6, 1.0), "small": (384, 6, 1.0), "base": (768, 12, 0.5), "large": (1024, 16, 0.5)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "size", "params_m"),
    [
        pytest.param("upernet_adapter_deit_b_ade20k", "tiny", 36.06, marks=pytest.mark.slow),
        ("upernet_adapter_deit_b_ade20k", "small", 57.61),
        pytest.param("upernet_adapter_deit_b_ade20k", "base", 133.62, marks=pytest.mark.slow),
        pytest.param("upernet_adapter_deit_b_ade20k", "large", 363.75, marks=pytest.mark.slow),
        ("cascade_adapter_deit_s_coco", "small", 85.63),
        pytest.param("cascade_adapter_deit_s_coco", "base", 158.00, marks=pytest.mark.slow),
    ],
)
def test_published_totals(config, size, params_m):
    """Published: 36, 58, 134, 364 M with UPerNet; 86, 158 M with Cascade Mask R-CNN."""
    pytest.importorskip("mmdet")
    pytest.importorskip("mmseg")
    from vitdense.mm.config.base import build_model
    from vitdense.mm.config.load import load_config

    cfg = load_config(config)
    dim, cfg.model.backbone.deform_num_heads, cfg.model.backbone.deform_ratio = HEADS[size]
    cfg.model.backbone.trunk.arch = "vit_large" if size == "large" else f"deit_{size}"
    cfg.model.backbone.trunk.pretrain_img_size = 384 if size == "large" else 224
    for part in {"decode_head", "neck"} & cfg.model.keys():
        cfg.model[part].in_channels = [dim] * 4
    if "auxiliary_head" in cfg.model:
        cfg.model.auxiliary_head.in_channels = dim
    with torch.device("meta"):
        model = build_model(cfg)
    assert num_params(model) / 1e6 == pytest.approx(params_m, abs=0.01)
