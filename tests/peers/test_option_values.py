"""Values of ``--cfg-options`` as mmengine's `DictAction` reads them; where they differ, on purpose, a row says why."""

import pytest
from mmengine.config import DictAction

from vitdense.mm.config.arguments import parse_value

SAME = [
    *("1", "-1", "007", "1_000", "1e-4", "1.", "inf", "None", "true", "False", "", "a", "3a"),
    *("train#2/", "data/a#b.pth", "1#3", "#", "1]#", "a,#b", "s3://a/b", "a=b", "it's", "'a'", '"a#b"', "'a',b"),
    *("1,2", "1,", "a,b", "a,", "[]", "()", "[a]", "[1, 2, ]", "[true,a]", "(a,b)", "[(a,b),(1,2)]", "[[1,2],[a,b]]"),
    *("('a',)", "['a#b', 'c']", "[coco/bbox_mAP,/data/b]", "(?i)norm", "[ab]c", "(a|b)c"),
    *(r"roi_head\..*(fc_cls|fc_reg)\..*", r"[roi_head\..*(a|b),c]"),
]
FAILS = "fails"
DIFFERENT = [
    ("dict(a=1, b=[dict(c='d, e')])", {"a": 1, "b": [{"c": "d, e"}]}, FAILS, "hooks and schedules are dicts"),
    ("{'a b': (1, None)}", {"a b": (1, None)}, FAILS, "a literal of Python"),
    ("dict(a=b)", FAILS, "dict(a=b)", "a shell took the quotes away"),
    ("{a}", FAILS, "{a}", "a shell took the quotes away"),
    ("my file.pth", "my file.pth", "myfile.pth", "names of files have spaces"),
    ("'my file, too'", "my file, too", ["myfile", "too"], "a literal of Python"),
    ("(a)", "(a)", ("a",), "a group of a pattern, or a name; a tuple has a comma, as in Python"),
    ("(a)|(b)", "(a)|(b)", ("a)|(b",), "a pattern"),
    ("(1,2),(3,4)", [(1, 2), (3, 4)], FAILS, "a list as 1,2"),
    ("0x10", 16, "0x10", "a literal of Python"),
    ("[1, (2]", FAILS, FAILS, "brackets do not match"),
]


def read(function, text):
    try:
        return function(text)
    except (AssertionError, RecursionError, ValueError):
        return FAILS


@pytest.mark.parametrize("text", SAME)
def test_values_as_mmengine_reads_them(text):
    assert repr(parse_value(text)) == repr(DictAction._parse_iterable(text))


@pytest.mark.parametrize(("text", "ours", "theirs", "reason"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
def test_values_that_differ_on_purpose(text, ours, theirs, reason):
    assert repr(read(parse_value, text)) == repr(ours)
    assert repr(read(DictAction._parse_iterable, text)) == repr(theirs)
