import itertools

import pytest
import torch
from conftest import assert_same_tensors

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule, Transform, rename, reverse
from vitdense.checkpoint.schemes import NAMING, TOKEN_POSITION
from vitdense.models.swin_v2.checkpoint import NO_KEY_BIAS

RULES = (
    Rule("layers.{i}.blocks.{j}.norm.*", "stages.{i}.b.{j}.norm.*"),
    Rule("features.{2i+1}.{j}.scale", "stages.{i}.b.{j}.scale"),
    Rule("layers.{i+1}.down.weight", "stages.{i}.down.weight"),
    Rule("scale", "scale", Transform(lambda x: 2 * x, lambda x: x / 2)),
    Rule("bias.{i}", ("q.{i}", "v.{i}"), Transform(lambda x: (x[:1], x[1:]), lambda q, v: torch.cat([q, v]))),
)


def test_rename_and_reverse_round_trip():
    state = {
        "layers.2.blocks.11.norm.weight": torch.ones(1),
        "features.5.0.scale": torch.ones(2),
        "layers.1.down.weight": torch.ones(3),
        "scale": torch.ones(1),
        "bias.7": torch.tensor([1.0, 2.0]),
    }
    renamed = rename(state, RULES)
    assert renamed == {
        "stages.2.b.11.norm.weight": torch.ones(1),
        "stages.2.b.0.scale": state["features.5.0.scale"],
        "stages.0.down.weight": state["layers.1.down.weight"],
        "scale": torch.tensor([2.0]),
        "q.7": torch.tensor([1.0]),
        "v.7": torch.tensor([2.0]),
    }
    assert renamed["stages.2.b.0.scale"] is state["features.5.0.scale"]  # no copy where nothing changes
    assert_same_tensors(rename(renamed, reverse(RULES)), state)


@pytest.mark.parametrize(
    "key",
    [
        "layers.x.blocks.0.norm.weight",
        "layers.0.blocks.0.norm.",
        "layers.00.blocks.0.norm.weight",
        "features.4.0.scale",
        "layers.0.down.weight",
        "xhead.w",
        "scales",
    ],
)
def test_unknown_key_is_listed(key):
    with pytest.raises(CheckpointMismatchError, match=key):
        rename({"scale": torch.ones(1), key: torch.ones(1)}, RULES)


def test_name_collision_and_missing_part_are_refused():
    with pytest.raises(CheckpointMismatchError, match="renamed to c"):
        rename({"a": torch.ones(1), "b": torch.ones(1)}, (Rule("a", "c"), Rule("b", "c")))
    with pytest.raises(CheckpointMismatchError, match=r"q\.7 also needs v\.7"):
        rename({"q.7": torch.ones(1)}, reverse(RULES))


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("side", [1, 2, 3, 14])
def test_position_embedding_is_split_by_its_number_of_rows(side, extra):
    names = ("table", "cls", "dist")
    rules = (Rule("pos", names, TOKEN_POSITION, optional=names[1:]),)
    state = {"pos": torch.randn(1, extra + side * side, 2)}
    parts = rename(state, rules)
    assert tuple(parts) == names[: 1 + extra]
    assert parts["table"].shape == (1, side, side, 2)
    assert torch.equal(parts["table"][0, -1, -1], state["pos"][0, -1])
    for row, name in enumerate(names[1 : 1 + extra]):
        assert torch.equal(parts[name][0, 0], state["pos"][0, row])
    assert torch.equal(rename(parts, reverse(rules))["pos"], state["pos"])


def test_missing_or_excess_parts_are_refused():
    names = ("table", "cls", "dist")
    rules = (Rule("pos", names, TOKEN_POSITION, optional=names[1:]),)
    with pytest.raises(CheckpointMismatchError, match="cls also needs table"):
        rename({"cls": torch.ones(1, 1, 2)}, reverse(rules))
    with pytest.raises(CheckpointMismatchError, match="table, dist also needs cls"):
        rename({"table": torch.ones(1, 2, 2, 2), "dist": torch.ones(1, 1, 2)}, reverse(rules))
    fewer = (Rule("pos", names[:2], TOKEN_POSITION, optional=names[1:2]),)
    with pytest.raises(CheckpointMismatchError, match="pos holds 3 parts"):
        rename({"pos": torch.ones(1, 6, 2)}, fewer)
    with pytest.raises(CheckpointMismatchError, match=r"\(1, 2, 8, 2\)"):
        rename({"table": torch.ones(1, 2, 8, 2)}, reverse(rules))


def test_unused_key_bias_is_written_as_zero():
    bias = torch.randn(12)
    q, v = NO_KEY_BIAS.forward(bias)
    assert torch.equal(q, bias[:4])
    assert torch.equal(v, bias[8:])
    assert torch.equal(NO_KEY_BIAS.inverse(q, v), torch.cat([bias[:4], torch.zeros(4), bias[8:]]))


def names(pattern):
    return {name for name, *_ in pattern.indices} | {*"*"} & {*pattern.text}


def examples(pattern):
    for number in range(2):
        yield pattern.fill({"*": "weight", **{name: number for name, *_ in pattern.indices}}.items())


def faults(rules):
    """Rules whose sides have other indices or tails, and keys that have two rules, in the table or in its reverse."""
    for rule in rules:
        theirs, ours = names(rule.sources[0]), names(rule.targets[0])
        if not (ours <= theirs if rule.read_only else ours == theirs):  # what is read only may lose an index
            yield rule.theirs
    for table in (rules, reverse(rules)):
        for one, other in itertools.permutations([pattern for rule in table for pattern in rule.sources], 2):
            yield from (key for key in examples(one) if other.match(key) is not None)


@pytest.mark.parametrize("family", NAMING)
def test_every_key_has_one_rule_in_both_directions(family):
    assert not [fault for scheme in NAMING[family].schemes for fault in faults(scheme.rules)]
