"""The rooms of the house: which package may import what (CONTRIBUTING.md)."""

import ast

import pytest
from conftest import REPO

MM = {"mmengine", "mmcv", "mmdet", "mmseg"}
RULES = {  # folder: (vitdense packages it may import, may it import mm*)
    "layers": ({"layers"}, False),
    "weights": ({"files", "layers", "models", "weights"}, False),
    "backbones": ({"layers", "models", "weights", "backbones", "registry"}, True),
    "necks": ({"layers", "necks", "registry"}, True),
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("room", RULES)
def test_imports_point_one_way(room):
    allowed, may_use_mm = RULES[room]
    files = list((REPO / "vitdense" / room).rglob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "vitdense":
                assert rest[0] in allowed, f"{path.name} imports {name}"
            assert top not in MM or may_use_mm, f"{path.name} imports {name}"


def test_the_package_imports_neither_configs_nor_tools_nor_tests():
    for path in (REPO / "vitdense").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"configs", "tools", "tests"}, path


def test_version_is_the_one_of_the_changelog():
    import vitdense

    assert f"## {vitdense.__version__}" in (REPO / "CHANGELOG.md").read_text()
