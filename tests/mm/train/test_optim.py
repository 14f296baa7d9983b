import pytest
from commands import forget
from conftest import REPO
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import nn

from vitdense import MViT, Swin, SwinV2, ViT

SIZES = {"embed_dims": 8, "depths": (1, 2)}
MAKE = {
    "swin": lambda **options: Swin({**SIZES, "num_heads": (1, 2)}, out_indices=(0, 1), **options),
    "swin_v2": lambda **options: SwinV2({**SIZES, "num_heads": (1, 2)}, out_indices=(0, 1), **options),
    "mvit": lambda **options: MViT({**SIZES, "num_heads": 1}, out_indices=(0, 1), pretrain_img_size=64, **options),
}
every = pytest.mark.parametrize("family", MAKE)


class Detector(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.neck = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))


ADAMW = {"type": "AdamW", "lr": 0.1, "weight_decay": 0.5}


def build(model, optimizer=ADAMW, constructor="vitdense.LayerDecayOptimWrapperConstructor", **paramwise):
    cfg = {"type": "OptimWrapper", "optimizer": optimizer, "constructor": constructor, "paramwise_cfg": paramwise}
    groups = build_optim_wrapper(model, cfg).optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    settings = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(settings)  # each once
    return settings, groups


@every
def test_layer_wise_decay_of_every_family(family):
    model = Detector(MAKE[family]())
    settings, _ = build(model, layer_decay_rate=0.5)
    assert settings.keys() == {name for name, _ in model.named_parameters()}
    powers = {"stages.0.blocks.0.": 3, "stages.1.blocks.0.": 2, "stages.1.blocks.1.": 1, "patch_embed.": 4}
    for name, (lr, decay) in settings.items():
        power = next((n for start, n in powers.items() if name.startswith(f"backbone.{start}")), 0)
        power = 3 if "stages.0.downsample" in name else power  # with the block before it
        assert lr == pytest.approx(0.1 * 0.5**power), name
        assert decay == 0.5
    assert settings["backbone.norm0.weight"][0] == settings["neck.0.weight"][0] == 0.1


@every
def test_factors_of_the_default_constructor_multiply(family):
    model = Detector(MAKE[family](frozen_stages=0))
    keys = {"neck.0": {"lr_mult": 10.0}, "blocks.1.mlp": {"lr_mult": 2.0, "decay_mult": 0.1}}
    settings, groups = build(model, layer_decay_rate=0.5, norm_decay_mult=0.0, custom_keys=keys)
    assert not any(name.startswith("backbone.patch_embed") for name in settings)  # frozen: not in the optimiser
    assert settings["neck.0.weight"] == (pytest.approx(1.0), 0.5)
    assert settings["neck.1.weight"] == (0.1, 0.0)
    assert settings["backbone.stages.1.blocks.1.mlp.fc1.weight"] == (pytest.approx(0.1), pytest.approx(0.05))
    assert settings["backbone.stages.1.blocks.0.norm1.weight"] == (pytest.approx(0.025), 0.0)
    norms = {name for name, _ in settings.items() if ".norm" in name and "attn" not in name}
    assert all(settings[name][1] == 0 for name in norms)
    assert len({(g["part"], g["lr"], g["weight_decay"]) for g in groups}) == len(groups)  # no duplicates


@every
def test_stages_after_the_last_output_do_not_count(family):
    backbone = {"swin": Swin, "swin_v2": SwinV2, "mvit": MViT}[family]
    heads = 1 if family == "mvit" else (1, 2, 4)
    options = {"pretrain_img_size": 64} if family == "mvit" else {}
    arch = {"embed_dims": 8, "depths": (1, 2, 2), "num_heads": heads}
    settings, _ = build(Detector(backbone(arch, out_indices=(0, 1), **options)), layer_decay_rate=0.5)
    assert settings["backbone.stages.1.blocks.1.mlp.fc1.weight"][0] == pytest.approx(0.05)
    assert settings["backbone.patch_embed.proj.weight"][0] == pytest.approx(0.1 * 0.5**4)
    assert not any(name.startswith("backbone.stages.2") for name in settings)


def test_layer_wise_decay_of_vit_equals_detectron2():
    """Factor ``rate ** (L + 1 - id)`` with id 0 for the stem, i + 1 for block i, L + 1 for the rest."""
    vit = ViT({"embed_dims": 8, "depth": 12, "num_heads": 2, "distilled": True}, out_norm="final")
    settings, _ = build(Detector(vit), layer_decay_rate=0.7, norm_decay_mult=0.0)

    def layer(name):
        if name.startswith(("backbone.patch_embed.", "backbone.absolute_pos_embed.", "backbone.tokens.")):
            return 0
        return int(name.split(".")[2]) + 1 if name.startswith("backbone.blocks.") else 13

    assert {layer(name) for name in settings} == set(range(14))
    for name, (lr, decay) in settings.items():
        assert lr == pytest.approx(0.1 * 0.7 ** (13 - layer(name))), name
        assert decay == (0.0 if ".norm" in name or name.startswith("backbone.norm") or "neck.1" in name else 0.5), name


@pytest.mark.parametrize("kind", ["vitdense.LayerDecay", "Default"])
def test_parameters_frozen_by_finetune_are_not_optimised(kind):
    model = Detector(ViT({"embed_dims": 8, "depth": 2, "num_heads": 2}, finetune="attention"))
    settings, _ = build(model, constructor=f"{kind}OptimWrapperConstructor", norm_decay_mult=0.0)
    assert settings.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(settings) < len(list(model.parameters()))


@pytest.mark.parametrize("schedule", sorted((REPO / "configs" / "_base_").glob("schedule_*.py")), ids=lambda p: p.stem)
def test_without_decay_parameters_are_set_as_by_the_default_constructor(schedule):
    cfg = Config.fromfile(schedule).optim_wrapper
    paramwise = {"norm_decay_mult": 0.0, "bias_lr_mult": 2.0, **cfg.get("paramwise_cfg", {})}
    paramwise.pop("layer_decay_rate", None)
    model = Detector(MAKE["swin"](frozen_stages=0))
    ours, groups = build(model, **paramwise)
    theirs, _ = build(model, constructor="DefaultOptimWrapperConstructor", **paramwise)
    assert ours == theirs
    assert len(set(ours.values())) > 1
    assert len(groups) < 10


def test_without_any_option_all_parameters_have_the_values_of_the_optimiser():
    assert set(build(Detector(MAKE["swin"]()))[0].values()) == {(0.1, 0.5)}
    assert set(build(nn.Linear(2, 2))[0].values()) == {(0.1, 0.5)}  # any model
    settings, _ = build(nn.Linear(2, 2), {"type": "AdamW"})  # torch's defaults
    assert set(settings.values()) == {(0.001, 0.01)}


def test_groups_are_logged_as_one_table(capsys):
    forget()  # loggers of other tests
    model = Detector(MAKE["swin"]())
    build(model, layer_decay_rate=0.5, norm_decay_mult=0.0)
    said = capsys.readouterr().out
    assert "paramwise_options" not in said  # no line per parameter
    header, first, *_, last = rows = said[said.index("part ") :].splitlines()
    assert header.split()[:4] == ["part", "lr", "weight", "decay"]
    assert first.split()[:8] == ["backbone", "stem", "0.00625", "(x", "0.0625)", "0.5", "(x", "1)"]
    assert last.split()[:7] == ["neck", "0.1", "(x", "1)", "0", "(x", "0)"]
    assert sum(int(line.split()[-2]) for line in rows[1:]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("model", "optimizer", "rate", "match"),
    [
        (nn.Linear(2, 2), ADAMW, 0, "layer_decay_rate: got"),
        (nn.Linear(2, 2), ADAMW, 1.5, "layer_decay_rate: got"),
        (nn.Linear(2, 2), {"type": "AdamW"}, 0.7, r"optimizer\.lr"),
        (nn.Linear(2, 2), ADAMW, 0.7, "layer_decay_rate.*without a backbone"),
    ],
)
def test_what_has_no_decay(model, optimizer, rate, match):
    with pytest.raises(ValueError, match=match):
        build(model, optimizer, layer_decay_rate=rate)
