"""Options of train, test, predict and export in pairs: every two values that go together, in some row that runs."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import pytest
from allpairspy import AllPairs
from pairs_options import CONTRADICTIONS, FIRST, MEANINGLESS, OPTIONS
from pairs_run import Refused, Row, Shared

pytestmark = pytest.mark.pairs
VALUES = {option.name: list(option.values) for option in OPTIONS}
EXCLUDED = [*MEANINGLESS, *(values for values, _ in CONTRADICTIONS)]
# Most excluded first: a row that cannot be completed is found so at once.
ORDER = sorted(VALUES, key=lambda name: -sum(name in one for one in EXCLUDED))
Values = dict[str, str]


def go_together(row: Mapping[str, str]) -> bool:
    """Whether a row, or a part of one, has no values that are refused together, or mean nothing."""
    return not any(all(row.get(name) == value for name, value in one.items()) for one in EXCLUDED)


def pairs_of(row: Values) -> set[frozenset]:
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def complete(part: Values, missing: set[frozenset] = frozenset()) -> Values | None:
    """A row with these values and as many missing pairs as are easily had; None: there is none."""
    if not go_together(part):
        return None
    name = next((name for name in ORDER if name not in part), None)
    if name is None:
        return part
    gains = {value: sum({(name, value), other} in missing for other in part.items()) for value in VALUES[name]}
    rows = (complete(part | {name: value}, missing) for value in sorted(gains, key=gains.get, reverse=True))
    return next(filter(None, rows), None)


def covering_array() -> list[Values]:
    """Rows with every pair of values that go together. `AllPairs` leaves some out where others are excluded."""
    found = AllPairs([*VALUES.values()], filter_func=lambda values: go_together(dict(zip(VALUES, values))))
    rows = [dict(zip(VALUES, row)) for row in found]
    every = {frozenset(((a, x), (b, y))) for a, b in combinations(VALUES, 2) for x in VALUES[a] for y in VALUES[b]}
    missing = every.difference(*map(pairs_of, rows))
    while missing:
        pair = min(missing, key=sorted)
        if row := complete(dict(pair), missing):
            rows.append({name: row[name] for name in VALUES})
            missing -= pairs_of(row)
        missing.discard(pair)
    return rows


# Values that take less time than others of their options; an export of one size does.
NO_EXPORT = {option.name: next(iter(option.values)) for option in OPTIONS if option.command == "export"}
SHORTER = [NO_EXPORT, {"static": "static"}, {"start": "empty"}, {"tta": "off"}]


def shortened(rows: list[Values]) -> list[Values]:
    """Rows with the same pairs: what takes long gives way, and rows are left out, where other rows have their pairs."""
    found = []
    holders = Counter(pair for row in rows for pair in pairs_of(row))
    for row in rows:
        holders.subtract(pairs_of(row))
        alone = {pair for pair in pairs_of(row) if not holders[pair]}
        for change in SHORTER:
            shorter = row | change
            if go_together(shorter) and alone <= pairs_of(shorter):
                row = shorter
        if alone:
            found.append(row)
            holders.update(pairs_of(row))
    return found


ROWS = {f"row{i:02}-{row['recipe']}": row for i, row in enumerate(shortened(covering_array()))}


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def start(tmp_path, monkeypatch, shared):
    monkeypatch.chdir(tmp_path)
    return lambda values: Row(values, tmp_path, shared)


@pytest.mark.parametrize("name", ROWS)
def test_row(start, name):
    start(ROWS[name]).everything()


@pytest.mark.parametrize(("values", "word"), CONTRADICTIONS, ids=str)
def test_contradiction(start, values, word):
    with pytest.raises(Refused) as refused:
        start(FIRST | values).everything()
    assert word in str(refused.value)
