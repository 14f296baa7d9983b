"""The repository layout: which package may import what (CONTRIBUTING.md), and that the front door needs no mm."""

import ast
import subprocess
import sys

import pytest
from conftest import REPO

MM = {"mmengine", "mmcv", "mmdet", "mmseg"}
# Packages and modules of vitdense that a folder or a module may import. mm may be imported by the rest alone.
MAY_IMPORT = {
    "layers": {"layers"},
    "models.py": {"backbones"},  # when called, and for type checkers
    "module.py": set(),
    "weights": {"backbones.variants", "files", "layers", "models", "weights"},
    "backbones": {"backbones", "layers", "models", "module", "weights"},
    "necks": {"layers", "module", "necks"},
    "files.py": set(),
    "draw.py": set(),
    "export.py": {"files", "layers"},
    "cost.py": set(),
    "report.py": {"layers"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("place", MAY_IMPORT)
def test_imports_point_one_way(place):
    path = REPO / "vitdense" / place
    files = [path] if path.is_file() else list(path.rglob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            top, _, rest = name.partition(".")
            assert top not in MM, f"{path.name} imports {name}"
            allowed = (rest == it or rest.startswith(f"{it}.") for it in MAY_IMPORT[place])
            assert top != "vitdense" or not rest or any(allowed), f"{path.name} imports {name}"


def test_the_package_imports_neither_configs_nor_tools_nor_tests():
    for path in (REPO / "vitdense").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"configs", "tools", "tests"}, path


def test_version_is_the_one_of_the_changelog():
    import vitdense

    assert f"## {vitdense.__version__}" in (REPO / "CHANGELOG.md").read_text()


@pytest.mark.long
def test_models_are_built_and_loaded_where_mm_is_not_installed(tmp_path):
    """In a fresh process in which importing any package of mm raises."""
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MM}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import torch, vitdense
model = vitdense.create("swin_tiny", out_indices=(1, 3))
assert [tuple(x.shape) for x in model(torch.rand(1, 3, 40, 72))] == [(1, 192, 5, 9), (1, 768, 2, 3)]
torch.save(vitdense.create("deit_tiny").state_dict(), {str(tmp_path / "deit.pth")!r})
vit = vitdense.create("deit_tiny", pretrained={str(tmp_path / "deit.pth")!r})
assert vit.load_report.share == 1, vit.load_report
neck = vitdense.DeconvPyramid(in_channels=192)
assert len(neck(vit(torch.rand(1, 3, 32, 32))[-1:])) == 4
for name in ("Swin", "SwinV2", "MViT", "ViT"):
    getattr(vitdense, name)
assert not {{name.partition(".")[0] for name in sys.modules}} & {MM}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
