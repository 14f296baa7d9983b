"""Models that take the tensors of a file: the same as drawn and copied to, whatever the file."""

import copy
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitdense
from vitdense import Swin, ViT
from vitdense.checkpoint.fit import fill
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.read import read

TINY = {"embed_dims": 8, "depths": (1, 1), "num_heads": (1, 2)}
PEAK = """
import resource, sys, timm, torch, vitdense.models.vit.model
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
model = vitdense.create("vit_base.augreg_in21k", pretrained=sys.argv[1])
print((peak() - before) / sum(x.nbytes for x in model.state_dict().values()))
"""


def swin(**options):
    return Swin(TINY, **{"out_indices": (0, 1), **options})


def filled(state, build=swin, is_own=True):
    with torch.device("meta"):
        model = build()
    fill(model, state, is_own)
    return model


def memory(model):
    return {x.untyped_storage().data_ptr() for x in model.state_dict().values() if x.numel()}


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_peak_memory_is_the_size_of_the_file(tmp_path, suffix):
    path = tmp_path / f"weights.{suffix}"
    with torch.device("meta"):
        shapes = vitdense.create("vit_base.augreg_in21k").state_dict()
    state = {key: torch.full(x.shape, 0.01) for key, x in shapes.items()}
    (torch.save if suffix == "pth" else save_file)(state, path)
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.1


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"frozen_stages": 1}, {"finetune": "lora"}], ids=str)
def test_model_equals_initialising_and_copying(tmp_path, suffix, dtype, options):
    path = tmp_path / f"weights.{suffix}"
    state = {key: x.to(dtype) for key, x in swin(**options).state_dict().items()}
    (torch.save if suffix == "pth" else save_file)(state, path)
    want = swin(**options)
    load_pretrained(want, path)
    with torch.device("meta"):
        got = swin(**options)
    got.load_weights(path)
    for (name, x), (other, y) in zip(got.named_parameters(), want.named_parameters(), strict=True):
        assert name == other
        assert type(x) is nn.Parameter
        assert torch.equal(x, y)
        assert (x.dtype, x.requires_grad, x.stride()) == (y.dtype, y.requires_grad, y.stride())
    x = torch.rand(1, 3, 32, 32)
    assert all(torch.equal(a, b) for a, b in zip(got.eval()(x), want.eval()(x)))


def test_models_of_one_file_share_no_memory_with_each_other_or_the_file(tmp_path):
    for path, save in ((tmp_path / "weights.pth", torch.save), (tmp_path / "weights.safetensors", save_file)):
        save(swin().state_dict(), path)
        one, other = (filled(read(path)) for _ in range(2))
        assert not memory(one) & memory(other)
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.zero_()
        want = copy.deepcopy(other.state_dict())
        path.write_bytes(bytes(path.stat().st_size))
        assert all(torch.equal(x, want[key]) and x.any() == want[key].any() for key, x in other.state_dict().items())


def unusual(weight):
    """The weight of a file that is a part of larger memory, or has its columns first, or one row for all."""
    larger = torch.zeros(2 * weight.numel())
    part = larger[: weight.numel()].view(weight.shape)
    yield part.copy_(weight)
    yield weight.T.contiguous().T
    yield weight[:1].expand(weight.shape)
    yield nn.Parameter(weight)


@pytest.mark.parametrize("is_own", [False, True])
def test_tensors_of_a_file_are_taken_and_a_callers_copied(is_own):
    state = swin().state_dict()
    assert len(memory(filled(state, is_own=is_own)) & {x.data_ptr() for x in state.values()}) == is_own * len(state)


def test_tensors_that_do_not_own_their_memory_are_copied():
    key = "stages.0.blocks.0.attn.proj.weight"
    for value in unusual(torch.rand(8, 8)):
        model = filled(swin().state_dict() | {key: value})
        weight = model.get_parameter(key)
        assert type(weight) is nn.Parameter
        assert torch.equal(weight, value)
        assert weight.is_contiguous()
        assert weight.untyped_storage().nbytes() == weight.nbytes


def test_parameters_that_share_memory_in_the_file_do_not_share_it_in_the_model():
    keys = [f"stages.1.blocks.0.norm{i}.weight" for i in (1, 2)]
    model = filled(swin().state_dict() | dict.fromkeys(keys, torch.rand(16)))
    one, other = map(model.get_parameter, keys)
    assert torch.equal(one, other)
    assert one.data_ptr() != other.data_ptr()


LACKS = {  # what a file may lack, and the options that a model has it by
    "norms": ({}, r"norm\d\..+"),
    "updates": ({"finetune": "lora"}, r".+\.lora\..+"),
    "relative positions": ({"relative_position": True, "img_size": 64, "window_size": 2}, r".+\.rel_pos_[hw]"),
    "bias of queries": ({"arch": {"qkv_bias": "no_key"}}, r".+\.qv_bias"),
    "rotary periods": ({"arch": {"rope": "dinov3"}}, r"rope\.periods"),
}


@pytest.mark.parametrize("what", LACKS)
def test_tensors_missing_in_a_file_are_made_as_by_the_constructor(what):
    options, pattern = LACKS[what]
    arch = {"embed_dims": 64, "depth": 1, "num_heads": 1, **options.get("arch", {})}
    want = ViT(**{"pretrain_img_size": 64, "out_indices": (0,), **options, "arch": arch})
    whole = want.state_dict()
    state = {key: x for key, x in whole.items() if not re.fullmatch(pattern, key)}
    assert len(state) < len(whole)
    with torch.device("meta"):
        model = ViT(**{"pretrain_img_size": 64, "out_indices": (0,), **options, "arch": arch})
    load_pretrained(model, state)
    for key, x in model.state_dict().items():
        y = whole[key]
        is_drawn = key not in state and y.unique().numel() > 1
        assert x.dtype == y.dtype
        assert 0.5 < x.std() / y.std() < 2 if is_drawn else torch.equal(x, y), key
