import re

import pytest

from vitdense.checkpoint.fit import fresh_pattern


def parameters(*modules):
    return [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]


OTHERS = parameters("backbone.norm", "neck.convs.0.conv", "rpn_head.conv", "head.shared.0", "head.shared.1")


@pytest.mark.parametrize(
    ("keys", "others", "pattern"),
    [
        (parameters("head.cls"), OTHERS, r"(.+\.)?(cls)\..*"),
        (parameters("head.0.cls", "head.1.reg"), parameters("head.0.conv"), r"(.+\.)?(cls|reg)\..*"),
        (parameters("head.cls.0", "head.cls.1"), OTHERS, r"(.+\.)?(cls)\..*"),
        (parameters("neck.a", "head.b"), parameters("neck.c", "head.b2"), r"(.+\.)?(a|b)\..*"),
        (["a.cls.bias", "b.cls.bias"], ["c.cls.bias"], r"a\.cls\.bias|b\.cls\.bias"),
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
