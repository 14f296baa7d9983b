"""Trunks of timm and transformers: maps are where their strides say, and what all backbones have works on them."""

import json
import random
from importlib.util import find_spec

import pytest
import timm
import torch
from conftest import timm_since
from torch import nn

import vitdense
from vitdense import TimmTrunk, TransformersTrunk
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.errors import OptionError
from vitdense.export.program import export_program
from vitdense.families import find_model, row_of

# One of an architecture: plain, with windows of several kinds, convolutions that round a stride up, down or not at all.
FEW = ("test_vit", "test_convnext", "test_resnet")
QUICK = (*FEW[1:], "test_vit2", "test_byobnet", "test_efficientnet", "test_mambaout")
LARGER = (
    *("swin_tiny_patch4_window7_224", "mvitv2_tiny", "hieradet_small", "maxvit_rmlp_pico_rw_256", "davit_tiny"),
    *("pvt_v2_b0", "edgenext_xx_small", "mobilenetv4_conv_small_035", "xcit_nano_12_p16_224", "efficientvit_b0"),
)
LATER = pytest.param("test_nfnet", marks=timm_since("1.0.31"))
every = pytest.mark.parametrize(
    "name", [*QUICK, LATER, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)]
)
few = pytest.mark.parametrize("name", FEW)


def with_noise(model):
    """Norms and factors that start at 0 or 1 would hide what is exchanged or left out."""
    for parameter in model.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@every
@torch.no_grad()
def test_every_map_reacts_where_the_image_changed(name):
    model, image, reach = TimmTrunk(name).eval(), torch.randn(1, 3, 180, 140), 3  # cells of the coarsest map
    before = model(image)
    assert [x.shape[1] for x in before] == list(model.out_channels)
    assert len(before) == 4
    for y, x in ((24, 100), (150, 20)):
        changed = image.clone()
        changed[..., y - 4 : y + 4, x - 4 : x + 4] += 3
        for stride, old, new in zip(model.out_strides, before, model(changed)):
            assert old.shape[2:] == (-(-180 // stride), -(-140 // stride))
            row, column = divmod((new - old).square().sum(1).argmax().item(), old.shape[3])
            assert max(abs((row + 0.5) * stride - y), abs((column + 0.5) * stride - x)) < reach * 32, stride
            assert max(abs(row + 0.5 - y / stride), abs(column + 0.5 - x / stride)) < reach, stride


@every
@torch.no_grad()
def test_maps_equal_timm_at_its_own_size(name):
    model, theirs = with_noise(TimmTrunk(name)), timm.create_model(name, num_classes=0).eval()
    theirs.load_state_dict(model.trunk.state_dict())
    image = torch.randn(1, *timm.get_pretrained_cfg(name).input_size)
    wanted = theirs.forward_intermediates(image, [*model.out_indices], intermediates_only=True)
    assert all(torch.equal(ours, x) for ours, x in zip(model(image), wanted, strict=True))


@few
def test_what_is_frozen_and_what_trains(name):
    whole = trained(TimmTrunk(name, out_indices=(1,)))
    for stages in (-1, 0, 1, "all"):
        model = TimmTrunk(name, out_indices=(1,), frozen_stages=stages).train()
        if stages == "all":
            assert not trained(model)
            assert not any(module.training for module in model.trunk.modules())
            continue
        model(torch.randn(2, 3, 64, 64))[0].square().sum().backward()
        got = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert got == trained(model), stages  # neither unused ones nor frozen ones
        assert trained(model) < whole if stages >= 0 else trained(model) == whole


@few
def test_layers_have_every_parameter_once_from_the_stem_on(name):
    model = TimmTrunk(name)
    layers = [[id(p) for part in layer for p in part.parameters()] for layer in model.layers()]
    names = {id(p): key for key, p in model.named_parameters()}
    flat = [p for layer in layers for p in layer]
    assert len(layers) > 4
    assert len(set(flat)) == len(flat)
    assert {names[p] for p in flat} == trained(model)
    assert any(part in names[layers[0][0]] for part in ("stem", "patch_embed", "conv1", "cls_token"))


def test_lora_trains_only_updates_and_is_refused_without_effect():
    model = TimmTrunk("test_vit", finetune="lora").train()
    model(torch.randn(1, 3, 48, 48))[-1].sum().backward()
    assert {name.rpartition(".")[2] for name in trained(model)} == {"A", "B"}
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    with torch.device("meta"), pytest.raises(OptionError, match=r"finetune.*blocks.0.attn.qkv"):
        TimmTrunk("eva02_tiny_patch14_224", finetune="lora")


@pytest.mark.parametrize("name", [*FEW[:2], pytest.param(FEW[2], marks=timm_since("1.0.31"))])
def test_activation_checkpointing_keeps_less_and_gives_the_same_gradients(name):
    kept, grads = [], []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model, bytes_ = TimmTrunk(name, with_cp=with_cp).train(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, b=bytes_: b.append(x.numel()) or x, lambda x: x):
            out = sum(x.square().mean() for x in model(torch.randn(2, 3, 64, 64)))
        kept.append(sum(bytes_))
        grads.append(torch.autograd.grad(out, [p for p in model.parameters() if p.requires_grad]))
    assert kept[1] < kept[0]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads))


@few
def test_a_file_of_timm_and_a_file_of_ours_load_exactly(name, tmp_path):
    theirs = with_noise(timm.create_model(name))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    model = vitdense.create(f"timm://{name}", pretrained=tmp_path / "theirs.pth")
    assert all(torch.equal(x, theirs.state_dict()[key]) for key, x in model.trunk.state_dict().items())
    assert model.load_report.ignored
    assert all(".head" in k or ".fc" in k for k in model.load_report.ignored)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "ours.pth")
    image = torch.randn(1, 3, 50, 70)
    again = TimmTrunk(name, init_cfg=str(tmp_path / "ours.pth"))
    again.init_weights()
    assert all(torch.equal(a, b) for a, b in zip(again.eval()(image), model(image)))
    state = model.state_dict()
    state.pop(next(key for key in state if key.endswith("weight")))
    torch.save(state, tmp_path / "cut.pth")
    for file, arch in (("cut.pth", name), ("theirs.pth", "test_vit3")):
        with pytest.raises(CheckpointMismatchError):
            vitdense.create(f"timm://{arch}", pretrained=tmp_path / file)


@few
def test_statistics_and_licence_match_timm(name):
    row, cfg = find_model(f"timm://{name}"), timm.get_pretrained_cfg(name)
    assert (row.mean, row.std, row.licence) == (cfg.mean, cfg.std, cfg.license)
    assert vitdense.create(f"timm://{name}").cfg.mean == cfg.mean
    assert row_of(f"timm://{name}") == row


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("vit_bass_patch16_224", {}, "vit_base_patch16_224"),  # did you mean
        ("resnet18.nope", {}, "resnet18"),
        ("crossvit_tiny_240", {}, "no strides"),  # resizes images to its own size
        ("levit_128s", {}, "images of any size"),
        ("vgg11", {"drop_path_rate": 0.1}, "drop_path_rate"),
        ("test_resnet", {"out_indices": (5,)}, "out_indices"),
        ("test_resnet", {"finetune": "lora"}, "finetune"),
    ],
)
def test_what_a_trunk_cannot_is_refused_in_one_line(name, options, match):
    with torch.device("meta"), pytest.raises(OptionError, match=match) as error:
        vitdense.create(f"timm://{name}", **options)
    assert "\n" not in str(error.value)


class WithNeck(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.convs = trunk, nn.ModuleList(nn.Conv2d(c, 4, 3, padding=1) for c in trunk.out_channels)

    def forward(self, image):
        return [conv(x) for conv, x in zip(self.convs, self.trunk(image))]


@pytest.mark.long
@pytest.mark.parametrize(("name", "dynamic"), [("test_vit", False), ("test_convnext", True), ("test_resnet", False)])
def test_exports(name, dynamic):
    model, shape = WithNeck(with_noise(TimmTrunk(name))).eval(), (1, 3, 97, 131)
    program = export_program(model, torch.randn(2, 3, 64, 96) if dynamic else torch.randn(shape), dynamic).module()
    image = torch.randn(shape)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(program(image), model(image)))


@pytest.fixture(params=["dinov2", "swin", "convnext", "resnet"])
def folder(request, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "dinov2": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 56},
        "swin": {"embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8], "window_size": 4},
        "convnext": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
        "resnet": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "embedding_size": 8},
    }
    config = transformers.AutoConfig.for_model(request.param, **sizes[request.param])
    config.out_features = list(config.stage_names[1:])
    with_noise(transformers.AutoBackbone.from_config(config)).save_pretrained(tmp_path / "net")
    facts = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 255}
    (tmp_path / "net/preprocessor_config.json").write_text(json.dumps(facts))
    (tmp_path / "net/README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return tmp_path / "net"


@torch.no_grad()
def test_a_folder_of_transformers_is_a_trunk(folder):
    model = vitdense.create(f"hf://{folder}", pretrained=True)
    assert (model.cfg.mean, model.cfg.std, model.cfg.licence) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "apache-2.0")
    assert not model.load_report.kept_at_init
    side = 2 * max(model.facts.multiple, 32) * 7
    theirs, image = type(model.trunk).from_pretrained(str(folder)).eval(), torch.randn(1, 3, side, side)
    wanted = theirs(image).feature_maps
    assert all(torch.equal(x, wanted[i]) for i, x in zip(model.out_indices, model(image), strict=True))
    for stride, out in zip(model.out_strides, model(torch.randn(1, 3, 101, 75))):
        assert out.shape[2:] == (-(-101 // stride), -(-75 // stride))


def test_training_of_a_folder_of_transformers(folder):
    model = TransformersTrunk(str(folder), frozen_stages=1).train()
    sum(x.square().mean() for x in model(torch.randn(2, 3, 64, 64))).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained(model)
    assert {id(p) for layer in model.layers() for part in layer for p in part.parameters()} >= {
        id(p) for p in model.parameters() if p.requires_grad
    }
    if json.loads((folder / "config.json").read_text())["model_type"] == "dinov2":
        model = TransformersTrunk(str(folder), finetune={"type": "lora", "targets": ("q_proj", "v_proj")})
        model(torch.randn(1, 3, 64, 64))[-1].sum().backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        assert {name.rpartition(".")[2] for name in trained(model)} == {"A", "B"}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForImageClassification"])
def test_other_models_of_transformers_lack_only_the_norms_of_backbones(folder, kind):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    theirs = with_noise(getattr(transformers, kind).from_config(config)).eval()
    theirs.save_pretrained(folder)
    model = vitdense.create(f"hf://{folder}", pretrained=True)
    assert all(key.startswith("trunk.hidden_states_norms.") for key in model.load_report.kept_at_init)
    names = {key.rpartition(".")[2] for key in model.load_report.ignored}
    assert names <= {"weight", "bias"}


def test_a_model_of_transformers_that_is_no_backbone_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="is a vit"):
        TransformersTrunk(str(tmp_path))


def test_a_folder_without_statistics_is_refused(folder):
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(OptionError, match="mean"):
        vitdense.create(f"hf://{folder}")


@pytest.mark.skipif(find_spec("transformers") is not None, reason="it is installed")
def test_without_transformers_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="pip install transformers"):
        TransformersTrunk("owner/repo")


@pytest.mark.slow
def test_all_models_of_timm():
    """Maps of 500x375 pixels by the declared channels and strides, or one line; no stated stride is contradicted."""
    names, four, refused = timm.list_models(), 0, {}
    random.Random(0).shuffle(names)
    for name in names:
        row, cfg = find_model(f"timm://{name}"), timm.get_pretrained_cfg(name)
        assert (row.mean, row.std) == (cfg.mean, cfg.std), name
        with torch.device("meta"), torch.no_grad():
            try:
                model = TimmTrunk(name).eval()
            except OptionError as error:
                refused[name] = str(error)
                continue
            outs = model(torch.empty(1, model.in_channels, 500, 375))
        four += len(outs) == 4
        for out, channels, stride in zip(outs, model.out_channels, model.out_strides, strict=True):
            assert out.shape[1:] == (channels, -(-500 // stride), -(-375 // stride)), name
    print(f"{len(names)} models: {four} with four maps, {len(refused)} refused", *refused.items(), sep="\n")
    assert all("\n" not in line for line in refused.values())
    assert four + len(refused) >= 0.9 * len(names)
