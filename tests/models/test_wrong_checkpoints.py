"""Files that do not fit a backbone, in every naming scheme: a CheckpointMismatchError that names the key, and the model
stays as it was."""

import itertools
import re

import pytest
import torch
from conftest import assert_same_tensors
from test_contract import BACKBONES, WITH_ADAPTERS

from vitdense import SwinV2
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.rename import find_rule, new_names
from vitdense.checkpoint.schemes import NAMING

pytestmark = pytest.mark.long

QUICK = {  # a backbone of every family, and of those ViTs whose files are interpreted most
    *("swin", "swin_v2", "nat", "mvit", "vit", "swin_mixer", "mixer, ResMLP", "resnet", "vit_adapter, class token"),
    *("vit, registers, rotary, SwiGLU", "vit, talking heads and class attention", "sasa resnet"),
}
DAMAGES = {
    "a number": lambda x: x.flatten()[0],
    "a row of 3": lambda x: torch.ones(3, dtype=x.dtype),
    "an axis more": lambda x: x[None],
    "empty": lambda x: x.flatten()[:0],
    "another kind": lambda x: x.bool() if not x.is_floating_point() else x.long(),
    "complex": lambda x: x.to(torch.complex64),
}
PLAIN = ("a row of 3", "another kind")  # for tensors that a scheme takes as they are
INTERPRETED = re.compile(r"qkv|logit_scale|norm_q|fc[12]\.weight|pos|table|index|freqs|spatial|patch_embed|conv1")


def drawn(model):
    return {
        k: torch.randn_like(x) if x.is_floating_point() else torch.ones_like(x) for k, x in model.state_dict().items()
    }


def files(family, state, drops=(False, True)):
    for to, drop in itertools.product(dict.fromkeys(row.name for row in NAMING[family].schemes), drops):
        try:
            yield convert(state, to, scheme="vitdense", family=family, windows=[4], drop_output_norms=drop)
        except CheckpointMismatchError:
            if to == "vitdense":
                raise


def refuses(model, before, file, key, case):
    names = [key, *new_names([key], file.scheme.rules)] if find_rule(key, file.scheme.rules) else [key]
    state = {file.scheme.prefix + name: x for name, x in file.backbone.items()} | case
    with pytest.raises(CheckpointMismatchError) as error:
        load_pretrained(model, {name: x for name, x in state.items() if x is not None}, scheme=file.scheme.name)
    tails = [re.split(r"(?:blocks|layer)s?\.\d+\.(?:blocks\.\d+\.)?", name)[-1] for name in names]
    message = str(error.value).replace("\\", "")  # markers of families are regular expressions
    assert any(tail in message for tail in tails), (names, message)
    assert_same_tensors(model.state_dict(), before)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in WITH_ADAPTERS])
@pytest.mark.parametrize("drop", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "no output norms"])
def test_one_wrong_tensor_is_refused(name, drop):
    model = WITH_ADAPTERS[name]()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    may_be_missing = re.compile("|".join(NAMING[model.family].may_be_missing))
    for file in files(model.family, drawn(model), [drop]):
        # One of every form: the numbers of blocks differ.
        for key in {re.sub(r"\d+", "N", key): key for key in file.backbone}.values():
            rule, part, _ = find_rule(key, file.scheme.rules)
            ours = [re.sub(r"^blocks\.\d+", "", name) for name in new_names([key], file.scheme.rules)]
            if not any(target.endswith(name) for name in ours for target in before):
                continue  # the model has no such tensor
            full = file.scheme.prefix + key
            kinds = DAMAGES if rule.transform or INTERPRETED.search(key) else PLAIN
            for kind in kinds:
                value = file.backbone[key]
                if kind == "a number" and not value.ndim:
                    continue
                refuses(model, before, file, key, {full: DAMAGES[kind](value)})
            if rule.sources[part].text not in rule.optional and not any(map(may_be_missing.fullmatch, ours)):
                refuses(model, before, file, key, {full: None})
        # Without it, it may be of a head.
        prefix = file.scheme.prefix or "backbone." * next(iter(file.state)).startswith("backbone.")
        refuses(model, before, file, "made.up", {f"{prefix}made.up": torch.ones(3)})


def other_sizes(row):
    for name, change in (("depth", 1), ("depth", -1), ("embed_dims", row.arch["embed_dims"])):
        many = f"{name}s" if f"{name}s" in row.arch else name
        old = row.arch[many]
        new = (*old[:-1], old[-1] + change) if isinstance(old, tuple) else old + change
        if new if isinstance(new, int) else new[-1]:
            blocks = {"global_indices": (2,)} if "global_indices" in row.options else {}
            yield row.kind({**row.arch, many: new}, **row.options | blocks)


@pytest.mark.parametrize("row", BACKBONES.values(), ids=BACKBONES.keys())
def test_files_of_other_sizes_are_refused(row):
    model = row()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    for other in other_sizes(row):
        for file in files(model.family, drawn(other)):
            with pytest.raises(CheckpointMismatchError, match=r"unexpected keys|missing keys|size mismatch"):
                load_pretrained(model, file.state, scheme=file.scheme.name)
            assert_same_tensors(model.state_dict(), before)


OFFSETS = "layers.0.blocks.1.attn.relative_coords_table"


@pytest.mark.parametrize(
    "table",
    [
        torch.ones(3),
        torch.tensor(1.0),
        torch.zeros(1, 7, 7, 2),
        torch.full((1, 7, 7, 2), torch.nan),
        torch.ones(1, 7, 7),
    ],
    ids=["a row of 3", "a number", "zeros", "NaN", "an axis less"],
)
def test_offsets_of_no_window_are_refused(table):
    model = SwinV2({"embed_dims": 8, "depths": (2, 2), "num_heads": (1, 2)}, window_size=4, out_indices=(0, 1))
    state = convert(drawn(model), "official", windows=[4], drop_output_norms=True).state
    assert load_pretrained(model, state).share > 0.9
    with pytest.raises(CheckpointMismatchError, match=r"relative_coords_table: got .* offsets in windows"):
        load_pretrained(model, state | {OFFSETS: table})
