"""Folders of `vitdense.extensions` can be deleted, with their tests, configs and pages: the rest is as before."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPO

pytestmark = pytest.mark.commands

EXTENSIONS = sorted(path.parent.name for path in REPO.glob("vitdense/extensions/*/__init__.py"))
COPIED = ("vitdense", "configs", "tools", "scripts", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
# What the core has: names, commands, passes and options.
QUICK = ("test_main.py", "mm/config/test_passes.py", "mm/config/test_options.py")


def copy_without(names, folder):
    folder.mkdir(exist_ok=True)
    for part in COPIED:
        if (REPO / part).is_dir():
            shutil.copytree(REPO / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy(REPO / part, folder / part)
    for name in names:
        shutil.rmtree(folder / "vitdense/extensions" / name)
        for recipe in (folder / "configs/extensions" / name).glob("*.py"):
            (folder / "configs/demo" / recipe.name).unlink(missing_ok=True)  # where 0.3 had it
        for tree in ("tests", "configs"):
            shutil.rmtree(folder / tree / "extensions" / name, ignore_errors=True)
        (folder / f"docs/extensions/{name}.md").unlink(missing_ok=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


SETS = [pytest.param(EXTENSIONS, id="all"), *(pytest.param([x], id=x, marks=pytest.mark.slow) for x in EXTENSIONS)]


@pytest.mark.parametrize("names", SETS)
def test_without_extensions_the_tests_of_the_core_pass(names, tmp_path):
    environment = copy_without(names, tmp_path)
    tests = [f"tests/{path}" for path in QUICK]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long and not commands", *tests]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
