"""All backbones, beyond the contract: names of other projects in a whole model's state dict, `init_cfg`."""

import copy
import logging
import pickle
from functools import cache

import pytest
import torch
from conftest import assert_same_tensors
from test_contract import BACKBONES
from torch import nn

from vitdense import MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.checkpoint.load import load_pretrained
from vitdense.errors import OptionError
from vitdense.families import FOLDERS, arguments, backbone_class
from vitdense.hub import create

ARCH = {"embed_dims": 8, "depths": (1, 2), "num_heads": (1, 2)}
created = cache(create)


def load_as_mmengine(model, state):
    pytest.importorskip("mmengine.runner.checkpoint").load_state_dict(model, state)


class Detector(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.backbone = Swin(ARCH, out_indices=(0, 1), **options)
        self.head = nn.Linear(2, 2)


def test_mvit_with_flat_block_names_loads_into_a_detector():
    source, target = Detector(), Detector()
    for model in (source, target):
        model.backbone = MViT({**ARCH, "num_heads": 1}, out_indices=(0, 1), pretrain_img_size=64)
    target.load_state_dict(convert(source.state_dict(), "detectron2").state, strict=True)
    assert_same_tensors(target.state_dict(), source.state_dict())


twins = pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), lambda x: x])


@pytest.mark.parametrize("load", [Detector.load_state_dict, load_as_mmengine], ids=["torch", "mmengine"])
@pytest.mark.parametrize("scheme", ["mmdet", "official", "vitdense"])
@twins
def test_detector_accepts_other_naming_schemes(scheme, twin, load):
    source, target = Detector(), twin(Detector())
    state = convert(source.state_dict(), scheme).state
    before = dict(state)
    load(target, state)
    assert_same_tensors(target.state_dict(), source.state_dict())
    assert state.keys() == before.keys()  # the caller's dict stays


def test_unknown_backbone_keys_raise_even_if_not_strict():
    model = Detector()
    before = copy.deepcopy(model)
    with pytest.raises(CheckpointMismatchError, match=r"conv0\.weight"):
        model.load_state_dict({"backbone.conv0.weight": torch.ones(1)}, strict=False)
    assert_same_tensors(model.state_dict(), before.state_dict())
    model.load_state_dict({"head.bias": torch.ones(2)}, strict=False)  # nothing of the backbone: nothing to say
    assert model.head.bias.tolist() == [1, 1]


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "swin.pth"
    torch.save(Detector().backbone.state_dict(), path)
    return path


def test_init_cfg_that_is_no_checkpoint_names_it():
    with pytest.raises(CheckpointNotFoundError, match=r"absent\.pth"):
        Detector(init_cfg="absent.pth").backbone.init_weights()


def test_a_subclass_may_take_arguments_of_its_own():
    class Taking(Swin):
        def __init__(self, **options):
            self.ours = options.pop("ours")
            super().__init__(ARCH, out_indices=(0, 1), **options)

    assert Taking(ours=2, with_cp=True).ours == 2


@pytest.mark.parametrize(
    ("family", "arch", "near"),
    [
        (Swin, "swin_tiny_patch4_window7_224", "tiny"),
        (SwinV2, "swinv2_base_window8_256", "base"),
        (MViT, "mvitv2_base_cls", "v2_base"),
        (MViT, "tiny", "v2_tiny"),
        (ViT, "deit_small_patch16_224", "deit_small"),
        (ViT, "deit_small_distilled_patch16_224", "deit_small_distilled"),
        (Swin, "smal", "small"),
    ],
)
def test_names_of_timm_and_misspelled_names_get_the_nearest_arch(family, arch, near):
    with pytest.raises(ValueError, match=f"did you mean arch='{near}'"):
        family(arch)
    with pytest.raises(ValueError, match="expected one of") as error:
        family("nothing_like_it")
    assert "did you mean" not in str(error.value)


IMAGE = torch.zeros(1, 3, 32, 32)


@pytest.fixture
def warnings_of(caplog):
    def run(model, times=1):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "vitdense.models"):
            for _ in range(times):
                model(IMAGE.to(next(model.parameters()).device))
        return [record.getMessage() for record in caplog.records]

    return run


def test_first_forward_without_the_weights_of_init_cfg_warns_once(warnings_of, checkpoint):
    model = Detector(init_cfg=str(checkpoint)).backbone
    (message,) = warnings_of(model, times=2)
    assert "init_weights()" in message
    assert str(checkpoint) in message
    assert not model._forward_pre_hooks  # costs nothing afterwards


@twins
@pytest.mark.parametrize(
    "load",
    [
        lambda model, _: model.backbone.init_weights(),
        lambda model, _: model.load_state_dict(Detector().state_dict()),
        lambda model, _: load_as_mmengine(model, Detector().state_dict()),
        lambda model, path: load_pretrained(model.backbone, path),
        lambda model, _: model.to("meta"),  # to count it
    ],
    ids=["init_weights", "torch", "mmengine", "load_pretrained", "meta"],
)
def test_loaded_models_do_not_warn(warnings_of, checkpoint, load, twin):
    model = twin(Detector(init_cfg=str(checkpoint)))
    load(model, checkpoint)
    assert warnings_of(model.backbone) == []


def test_loading_only_the_head_does_not_count_as_loaded(warnings_of, checkpoint):
    model = Detector(init_cfg=str(checkpoint))
    model.load_state_dict({"head.bias": torch.ones(2)}, strict=False)
    assert len(warnings_of(model.backbone)) == 1


@pytest.mark.parametrize("init_cfg", [None, {"type": "TruncNormal", "layer": "Linear", "std": 0.02}])
def test_random_weights_on_purpose_do_not_warn(warnings_of, init_cfg):
    assert warnings_of(Detector(init_cfg=init_cfg).backbone) == []


@pytest.mark.long
def test_models_that_were_not_loaded_compile_and_export_in_one_graph(checkpoint):
    model = Detector(init_cfg=str(checkpoint)).backbone.eval()
    outs = [torch.compile(model, fullgraph=True, backend="eager")(IMAGE)]
    outs += [torch.export.export(model, (IMAGE,), strict=strict).module()(IMAGE) for strict in (False, True)]
    assert model._forward_pre_hooks
    for out in outs:
        torch.testing.assert_close(out, model(IMAGE))


def test_batch_norms_without_parameters_train():
    model = ViT({"embed_dims": 16, "depth": 1, "num_heads": 2})
    model.patch_embed.extra = nn.BatchNorm2d(3, affine=False)
    assert model.train().patch_embed.extra.training
    assert not model.eval().patch_embed.extra.training


@pytest.mark.parametrize("name", ["swin_tiny", "convnextv2_atto"])
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3, 64, 64),
        torch.zeros(1, 3, 64, 64).byte(),
        torch.zeros(1, 1, 64, 64),
        torch.zeros(1, 3, 64, 64).double(),
        torch.zeros(1, 3, 0, 32),
        torch.zeros(1, 3, 32, 0),
    ],
    ids=["3-D", "uint8", "grey", "float64", "no row", "no column"],
)
def test_what_is_no_batch_of_images_is_refused(name, x):
    with pytest.raises(ValueError, match=r"image: got .*, expected torch.float32 \[B, 3, H, W\]"):
        created(name)(x)


WRONG = {  # by argument: what no constructor takes
    "in_channels": (0, -1, 2.5, True, "3", float("nan"), (3,), None),
    "patch_size": (0, -4, 4.0, True, "4"),
    "kernel_size": (0, 7.0),
    "mlp_ratio": (0.0, -1.0, float("nan"), float("inf"), True, "4", None),
    "drop_path_rate": (-0.1, 1.0, 1.5, float("nan"), True, "0.1", None),
    "out_indices": (3, "0", (), (-1,), (True,), (0.0,), (1, 0), (99,)),
    "frozen_stages": (True, False, -2, 99, 1.0, "none", None),
    "with_cp": (1, "True", None),
    "window_size": (0, True, 7.5, "7", (7,), (7, 0), (True, 7), (7, 7, 7)),
    "pretrain_img_size": (0, True, 224.0, "224", (224,), (224,) * 3),
    "absolute_position": (1, "yes"),
    "class_token": (0, None),
    "deform_ratio": (0, "1"),
}


@pytest.mark.parametrize("kind", sorted({*FOLDERS} - {"TransformersTrunk"}))  # which is as TimmTrunk
def test_a_wrong_value_of_an_argument_is_refused_by_its_name(kind):
    kind = backbone_class(kind)
    known = arguments(kind)
    small = next((row.arch for row in BACKBONES.values() if row.kind is kind), "test_vit")  # the last is timm's
    options = {"trunk": {"arch": BACKBONES["vit"].arch}} if "trunk" in known else {"arch": small}
    options |= {"absolute_position": True} if known.get("absolute_position") is False else {}
    for name in WRONG.keys() & known.keys():
        for value in WRONG[name]:
            with torch.device("meta"), pytest.raises(OptionError, match=name):
                kind(**{**options, name: value})
    with pytest.raises(TypeError, match="positional"):
        kind(next(iter(options.values())), 0)
    with pytest.raises(TypeError, match="'with_cpu'"):
        kind(**options, with_cpu=True)
