import re

import pytest

from vitdense.checkpoint.fit import fresh_pattern


def parameters(*modules):
    return [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]


OTHERS = parameters("backbone.norm", "neck.convs.0.conv", "rpn_head.conv", "head.shared.0", "head.shared.1")


@pytest.mark.parametrize(
    ("keys", "others", "pattern"),
    [
        (parameters("head.cls"), OTHERS, r"head\.cls\..*"),
        (parameters("head.0.cls", "head.0.reg"), OTHERS, r"head\.0\..*"),
        (parameters("head.0.cls", "head.1.reg"), parameters("head.0.conv"), r"head\..*(cls|reg)\..*"),
        (parameters("head.0.a", "head.1.a"), parameters("head.b.a"), r"head\.\d+\..*"),
        (parameters("head.0.cls", "head.0.reg"), parameters("head.1.cls", "head.1.reg"), r"head\.0\..*"),
        (parameters("head.0.cls"), parameters("head.0.conv", "head.1.cls"), r"head\.0\.cls\..*"),
        (parameters("head.cls.0", "head.cls.1"), OTHERS, r"head\.cls\..*"),
        (parameters("decode.conv_seg", "auxiliary.conv_seg"), OTHERS, r".*conv_seg\..*"),
        (parameters("neck.a", "head.b"), parameters("neck.c", "head.b2"), r".*(a|b)\..*"),
        (parameters("neck.a", "head.b"), parameters("neck.b", "head.a"), r"(head\.b|neck\.a)\..*"),
        (parameters("neck.alpha", "head.beta"), [], r"(head|neck)\..*"),
        (["head.cls.bias"], ["head.cls.weight"], r"head\.cls\.bias"),
        (["queries"], ["queries.weight", "head.weight"], "queries"),
    ],
)
def test_pattern_matches_the_keys_and_no_other(keys, others, pattern):
    found = fresh_pattern(keys, others)
    assert found == pattern
    assert [key for key in (*keys, *others) if re.fullmatch(found, key)] == keys


def test_no_pattern_where_it_would_be_long():
    keys = [f"head.fc{i}.{'weight' if i % 2 else 'bias'}" for i in range(40)]
    assert fresh_pattern(keys, [f"head.fc{i}.{'bias' if i % 2 else 'weight'}" for i in range(40)]) is None
