from timing import alternate, median_ratio


def test_alternate_runs_each_function_once_per_round():
    calls = []
    seconds = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1)
    assert calls == ["a", "b"] * 4
    assert {name: len(s) for name, s in seconds.items()} == {"a": 3, "b": 3}
    assert median_ratio({"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 4.0]}, "a", "b") == 1.0
