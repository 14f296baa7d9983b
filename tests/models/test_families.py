"""Every backbone's own file, in every naming scheme that has names for it, against every family: recognised as itself
and as no other, also without its optional parts."""

import itertools
import re
import sys

import pytest
import torch
from conftest import HAS_RESEARCH, needs_research
from contract_rows import VIT
from test_contract import BACKBONES, FAMILIES, WITH_ADAPTERS

import vitdense
from vitdense import ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.detect import detect, readings
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.schemes import NAMING
from vitdense.models.vit.checkpoint import HEADS

MAKERS = WITH_ADAPTERS | {"vit, pre-norm": lambda: ViT({**VIT, "pre_norm": True}, pretrain_img_size=64)}
EOMT = {**VIT, "registers": 4, "absolute_position": False, "rope": "dinov3", "qkv_bias": "no_key"}
MAKERS |= {"vit, of EoMT": lambda: ViT(EOMT, out_norm="shared")}  # no output norms
PARTS = {  # what a file may lack, by our names
    "nothing": r"(?!)",
    "class token": r"tokens\.cls_\w+$",
    "tokens": r"\btokens\.|class_blocks\.",
    "positions": r"absolute_pos_embed\.(?!window)|rope\.|tokens\.\w+_position$",
    "relative biases": r"\.attn\d?\.bias\.|\.rel_pos_[hw]$",
    "LayerScale": r"gamma_\d",
    "output norms": r"^norm\d+\.",
    "biases of norms": r"norm\w*\.bias$",
    "biases of attention": r"(qkv\.(qv_)?bias|[qv]_bias)$",
    "the one of patches": r"patch_embed\.proj\.bias$",
    "counters": r"num_batches_tracked$",
    "head": r"^head\.",
}
PARTS["all of these"] = "|".join(f"({pattern})" for pattern in PARTS.values())


def own_states(make):
    """Family of a backbone, what it saves, and the same as a classifier: a norm and a head in place of output norms."""
    with torch.device("meta"):  # drawn below
        model = make()
    state = {
        key: torch.randn(x.shape) if x.is_floating_point() else torch.tensor(7) for key, x in model.state_dict().items()
    }
    head = {"head.weight": torch.randn(10, 8), "head.bias": torch.randn(10)}
    if model.family not in ("resnet", "sasa"):
        head |= {"norm.weight": torch.randn(8), "norm.bias": torch.randn(8)}
    without_norms = {key: x for key, x in state.items() if not re.match(r"norm\d", key)}
    return model.family, [state] if model.family == "vit_adapter" else [state, without_norms | head]


@pytest.mark.long
@pytest.mark.parametrize(
    "family",
    [
        f if f in (*FAMILIES, "vit_adapter") else pytest.param(f, marks=pytest.mark.slow)
        for f in NAMING
        if f not in HEADS
    ],
)
def test_a_file_is_of_one_family(family):
    states = {
        (name, i): state
        for name, (of_model, both) in zip(MAKERS, map(own_states, MAKERS.values()))
        for i, state in enumerate(both)
        if of_model == family
    }
    schemes = list(dict.fromkeys(scheme.name for scheme in NAMING[family].schemes if scheme.is_written))
    reduced = {}  # by keys: most backbones lack most parts anyway
    for (name, state), pattern in itertools.product(states.items(), PARTS.values()):
        kept = {key: x for key, x in state.items() if not re.search(pattern, key)}
        reduced[name, frozenset(kept)] = kept
    written = set()
    for state, to in itertools.product(reduced.values(), schemes):
        try:
            file = convert(state, to, family=family, scheme="vitdense", windows=[4]).state
        except CheckpointMismatchError:  # no names for something in it
            if to == "vitdense":
                raise
            continue
        written.add(to)
        assert {match.family for match in readings(file)} == {family}, (to, list(file))
    assert written == set(schemes)


@pytest.mark.parametrize(
    "name", ["swin_tiny", "mvitv1_base_max", *("nat_mini", "nat_tiny", "nat_small") * HAS_RESEARCH]
)
def test_published_sizes_are_recognised(name):
    with torch.device("meta"):
        model = vitdense.create(name)
    assert detect(model.state_dict()).family == model.family


def test_what_fits_several_families_is_refused_with_their_names():
    parts = {"patch_embed.proj.weight": torch.ones(8, 3, 4, 4), "norm.weight": torch.ones(8)}
    message = r"family='mvit' .*family='vit' .*--family, --scheme and --prefix"
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(parts, "vitdense")
    assert convert(parts, "vitdense", family="vit").match.family == "vit"


@needs_research
def test_the_schemes_of_a_family_are_read_when_it_is_used(monkeypatch):
    """An error in a family's ``checkpoint.py`` shows with its weights, and not with others'."""
    monkeypatch.setitem(sys.modules, "vitdense.research.nat.checkpoint", None)  # as if it could not be imported
    arch = {"embed_dims": 8, "depths": (1, 1), "num_heads": (1, 1)}
    swin, nat = vitdense.Swin(arch, out_indices=(0, 1)), vitdense.NAT({**arch, "mlp_ratio": 2.0}, out_indices=(0, 1))
    assert load_pretrained(swin, swin.state_dict()).share == 1
    with pytest.raises(ImportError, match=r"vitdense\.research\.nat\.checkpoint"):
        load_pretrained(nat, nat.state_dict())


@needs_research
def test_no_window_is_invented_for_local_attention():
    """Its tables show the side of its neighbourhood; a rule for whole modules once took their names for buffers."""
    state = BACKBONES["sasa resnet"]().state_dict()
    done = convert(state, "vitdense")
    assert done.match.family == "sasa"
    assert done.state.keys() == state.keys()
    with pytest.raises(CheckpointMismatchError, match="got 'torchvision', expected one of vitdense for the sasa"):
        convert(state, "torchvision", windows=[7])
