"""Any one folder of `vitdense.extensions` can be deleted, with its tests, configs and page: the rest is as before."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPO

pytestmark = pytest.mark.commands

EXTENSIONS = sorted(path.parent.name for path in REPO.glob("vitdense/extensions/*/__init__.py"))
COPIED = ("vitdense", "configs", "tools", "scripts", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
# Of the core: imports, names, commands, passes and recipes.
QUICK = ("tests/test_import_layers.py", "tests/test_main.py", "tests/mm/config", "tests/mm/test_registry.py")
SMOKE = """
import vitdense, vitdense.registry
from vitdense import seams
from vitdense.mm.config.build import build_model
from vitdense.mm.config.load import load_config
assert "vitdense.extensions.{name}" not in seams.extensions()
for public in vitdense.__all__:
    getattr(vitdense, public)
build_model(load_config("configs/demo/cascade_swin_nano_shapes.py"))
"""


@pytest.mark.parametrize("name", EXTENSIONS)
def test_without_an_extension_the_core_is_as_before(name, tmp_path):
    pytest.importorskip("mmdet")
    for part in COPIED:
        if (REPO / part).is_dir():
            shutil.copytree(REPO / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy(REPO / part, tmp_path / part)
    shutil.rmtree(tmp_path / "vitdense/extensions" / name)
    for folder in ("tests", "configs"):
        shutil.rmtree(tmp_path / folder / "extensions" / name, ignore_errors=True)
    (tmp_path / f"docs/extensions/{name}.md").unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    tests = [path for path in QUICK if (tmp_path / path).exists()]
    for command in (["-c", SMOKE.format(name=name)], ["-m", "pytest", "-q", "-m", "not long", *tests]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
