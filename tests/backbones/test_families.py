"""Every backbone's own file, in every naming scheme that has names for it, against every family: recognised as itself
and as no other, also without its optional parts."""

import re

import pytest
import torch
from test_contract import BACKBONES
from test_vit_adapter import TRUNKS, adapter

import vitdense
from vitdense.weights.convert import convert
from vitdense.weights.detect import detect
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.families import FAMILIES, SCHEMES

MAKERS = BACKBONES | {f"vit_adapter, {name}": lambda trunk=trunk: adapter(trunk) for name, trunk in TRUNKS.items()}
PARTS = {  # what a file may lack, by our names
    "nothing": r"(?!)",
    "class token": r"tokens\.cls_\w+$",
    "tokens": r"tokens\.|class_blocks\.",
    "positions": r"absolute_pos_embed\.|\.rope\.|tokens\.\w+_position$",
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


def own_state(name):
    """What a backbone saves, and the same as a classifier: a norm and a head in place of output norms."""
    with torch.device("meta"):  # drawn below
        model = MAKERS[name]()
    state = {
        key: torch.randn(x.shape) if x.is_floating_point() else torch.tensor(7) for key, x in model.state_dict().items()
    }
    head = {"head.weight": torch.randn(10, 8), "head.bias": torch.randn(10)}
    if model.family != "resnet":
        head |= {"norm.weight": torch.randn(8), "norm.bias": torch.randn(8)}
    return model.family, state, {k: x for k, x in state.items() if not re.match(r"norm\d", k)} | head


def written(state, family, to):
    """The file in a naming scheme, or None if it has no names for something in it."""
    try:
        return convert(state, to, family=family, windows=[4]).state
    except CheckpointMismatchError as error:
        assert re.search("no names for|have keys such as|not square|also needs", str(error)), error
        return None


@pytest.mark.long
@pytest.mark.parametrize("name", MAKERS)
def test_a_file_is_of_one_family(name):
    family, *states = own_state(name)
    schemes = list(dict.fromkeys(scheme.name for scheme in SCHEMES[family]))
    seen = set()
    for state in states:
        for part, pattern in PARTS.items():
            reduced = {key: x for key, x in state.items() if not re.search(pattern, key)}
            for to in schemes:
                file = written(reduced, family, to)
                if file is None:
                    continue
                seen.add((part, to))
                assert detect(file).family == family, (part, to)
                for other in FAMILIES.keys() - {family}:
                    with pytest.raises(CheckpointMismatchError, match=rf"got one of {family} |not a checkpoint of"):
                        detect(file, (other,))
    assert {(part, "vitdense") for part in PARTS} <= seen


@pytest.mark.parametrize("name", ["nat_mini", "nat_tiny", "nat_small", "swin_tiny", "sasa26", "mvitv1_base_max"])
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


def test_no_window_is_invented_for_local_attention():
    """Its tables show the side of its neighbourhood; a rule for whole modules once took their names for buffers."""
    model = BACKBONES["sasa resnet"]()
    state = model.state_dict()
    done = convert(state, "vitdense")
    assert done.match.family == "resnet"
    assert done.state.keys() == state.keys()
    for to in ("torchvision", "timm", "mmdet", "mmpretrain"):  # their models have no such attention
        with pytest.raises(CheckpointMismatchError, match=r"no names for 6 tensors: layer1\.0\.conv2\.attn\."):
            convert(state, to, windows=[7])
