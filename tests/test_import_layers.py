"""The floors: which folder or module may import what, that the first needs no mm, and that none needs research."""

import ast
import shutil

import pytest
from conftest import HAS_RESEARCH, REPO, run_python

import vitdense

MM = {"mmengine", "mmcv", "mmdet", "mmseg"}
# Folders and modules of vitdense, and what of vitdense each of them may import. All but the last ones do without mm.
MAY_IMPORT = {
    "console.py": set(),
    "families.py": {"errors"},  # what it finds in folders is imported by name
    "errors.py": set(),
    "files.py": {"errors"},
    "module.py": {"errors"},
    "runtime.py": set(),  # is copied into products
    "layers": {"errors", "layers"},
    "ops": {"errors", "files", "layers", "ops", "seams"},  # in place of mmcv's own, and without mmcv
    "checkpoint": {"checkpoint", "errors", "files", "layers", "families", "seams"},
    "models": {"checkpoint", "errors", "families", "layers", "models", "module"},
    "necks": {"errors", "layers", "module", "necks"},
    "results": {"errors", "files", "results", "runtime"},
    "export": {"errors", "export", "files", "layers", "runtime"},
    "flops.py": {"errors", "layers", "models"},
    "seams.py": set(),  # what it finds in folders is imported by name
    "hub.py": {"checkpoint", "errors", "families", "models"},
    "__init__.py": {"families", "ops.finder", "seams"},  # the finder makes mmcv importable; it imports no mm
}
TORCH_FLOOR = [*MAY_IMPORT]
ABOVE = {*MAY_IMPORT} - {"__init__.py"}
MAY_IMPORT["mm"] = {"mm", *(place.removesuffix(".py") for place in ABOVE)}
MAY_IMPORT["registry.py"] = {"mm.registry"}
MAY_IMPORT["__main__.py"] = {"console", "mm", "ops", "seams"}
MAY_IMPORT["extensions"] = {"extensions", *MAY_IMPORT["mm"]}
if HAS_RESEARCH:
    MAY_IMPORT["research"] = {"research", *MAY_IMPORT["mm"]}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
            assert top not in MM or place not in TORCH_FLOOR, f"{path.name} imports {name}"
            allowed = (rest == it or rest.startswith(f"{it}.") for it in MAY_IMPORT[place])
            assert top != "vitdense" or not rest or any(allowed), f"{path.name} imports {name}"


def test_every_module_has_its_place():
    package = REPO / "vitdense"
    tops = {path.name for path in package.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))}
    assert tops == MAY_IMPORT.keys()


def test_the_package_imports_neither_configs_nor_tools_nor_tests():
    for path in (REPO / "vitdense").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"configs", "tools", "scripts", "tests"}, path


def test_version_is_the_one_of_the_changelog():
    assert f"## {vitdense.__version__.removesuffix('.dev0')}" in (REPO / "CHANGELOG.md").read_text()


IMPORTS = """
import logging, sys, warnings
logging.getLogger("vitdense").setLevel(logging.INFO)
logging.getLogger("vitdense").addHandler(logging.StreamHandler(sys.stdout))
import vitdense.mm.cli.predict
print(">", {"mmdet", "mmseg", "pycocotools"} & {*sys.modules})
import vitdense.mm.train.launch, vitdense.mm.train.metrics, vitdense.mm.train.hooks as hooks
from vitdense.mm.console import NOT_WARNED
found = {getattr(one[1], "pattern", one[1]) for one in warnings.filters}
print(">", {*NOT_WARNED} & found, logging.getLogger().level)
from mmengine.runner.checkpoint import CheckpointLoader
print(">", CheckpointLoader._get_checkpoint_loader("a.pth").__name__)
hooks.ExactLoadHook()
print(">", CheckpointLoader._get_checkpoint_loader("a.pth").__name__)
import vitdense.registry, vitdense.mm.registry
print(">", vitdense.registry.MODELS is vitdense.mm.registry.MODELS)
"""


@pytest.mark.long
def test_imports_change_nothing_of_other_packages():
    """A prediction imports no framework before it knows which; nobody's warnings or loggers are silenced; the loader of
    checkpoints is installed by the hook; the registry is where mmengine looks for it; one line tells the ops in use."""
    lines = run_python(IMPORTS).stdout.splitlines()
    found = [line[2:] for line in lines if line.startswith("> ")]
    assert found == ["set()", "set() 30", "load_from_local", "load_from_vitdense", "True"]
    assert len([line for line in lines if line.startswith("mmcv ops: ")]) == 1


def test_names_of_models_are_looked_up_without_torch():
    code = """
import sys, vitdense
assert not [name for name in sys.modules if name.endswith((".sizes", ".checkpoint", ".model"))]
from vitdense.families import find_model
assert find_model("swin_tiny").arch == "tiny"
assert not {"torch", "timm", "mmengine"} & {*sys.modules}
"""
    run_python(code)


@pytest.mark.long
def test_models_are_built_and_loaded_where_mm_is_not_installed(tmp_path):
    """In a fresh process in which importing any package of mm raises: every module of the first floor is imported."""
    modules = [
        ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
        for place in TORCH_FLOOR
        for path in [REPO / "vitdense" / place, *(REPO / "vitdense" / place).rglob("*.py")]
        if path.suffix == ".py"
    ]
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MM}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import torch, vitdense
from importlib import import_module
for name in {modules}:
    import_module(name)
model = vitdense.create("swin_tiny", out_indices=(1, 3))
assert [tuple(x.shape) for x in model(torch.rand(1, 3, 40, 72))] == [(1, 192, 5, 9), (1, 768, 2, 3)]
torch.save(vitdense.create("deit_tiny").state_dict(), {str(tmp_path / "deit.pth")!r})
vit = vitdense.create("deit_tiny", pretrained={str(tmp_path / "deit.pth")!r})
assert vit.load_report.share == 1, vit.load_report
neck = vitdense.DeconvPyramid(in_channels=192)
assert len(neck(vit(torch.rand(1, 3, 32, 32))[-1:])) == 4
assert not {{name.partition(".")[0] for name in sys.modules}} & {MM}
"""
    run_python(code)


def test_extensions_do_not_import_each_other():
    for path in (REPO / "vitdense/extensions").rglob("*/*.py"):
        own = ".".join(path.relative_to(REPO).parts[:3])
        foreign = [name for name in imports(path) if name.startswith("vitdense.extensions.")]
        assert {name for name in foreign if not name.startswith(own)} <= {"vitdense.extensions.page"}, path


@pytest.mark.long
def test_without_research_the_rest_works(tmp_path):
    """A copy without the third floor: names, registries and recipes of the others are as before."""
    shutil.copytree(REPO / "vitdense", tmp_path / "vitdense", ignore=shutil.ignore_patterns("research", "__pycache__"))
    code = f"""
import vitdense, vitdense.registry
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
assert vitdense.__file__.startswith({str(tmp_path)!r})
assert "SwinMixer" not in vitdense.__all__ and "mixer_base_16" not in vitdense.list_models()
vitdense.create("swin_tiny"), vitdense.create("mvitv2_tiny")
build_model(load_config("{REPO}/configs/demo/cascade_swin_nano_shapes.py"))
"""
    run_python(code, folder=tmp_path)
