"""`python -m vitdense`: right about this environment, and alive in any other."""

import importlib.metadata
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import vitdense.__main__ as main
from vitdense.ops import OpsInUse

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed(monkeypatch):
    """The distributions that metadata lookup finds; no package is really imported, whatever `broken` names raises."""
    versions = {package.distributions[0]: package.minimum for package in main.PACKAGES}
    versions["torch"] = "2.11.0+cu128"
    broken: dict[str, Exception] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    def import_module(name: str):
        if name in broken:
            raise broken[name]
        return types.ModuleType(name)

    monkeypatch.setattr(main.importlib.metadata, "version", version)
    fake = types.SimpleNamespace(metadata=importlib.metadata, import_module=import_module)
    monkeypatch.setattr(main, "importlib", fake)
    monkeypatch.setattr(main, "_try_torchvision", lambda: None)
    monkeypatch.setattr(main, "_devices", lambda: ("CPU, 2 threads", "cuda:0 Some GPU, 24 GiB"))
    monkeypatch.setattr(main, "ops_in_use", lambda: OpsInUse("stand-in", "vitdense on torchvision"))
    return types.SimpleNamespace(versions=versions, broken=broken)


def test_all_there(installed, capsys):
    assert main.main() == 0
    out = capsys.readouterr().out
    assert main.collect().problems == ()
    assert out.strip().endswith("Ready.")
    for text in ("2.11.0+cu128", "onedl-mmdetection", "Some GPU, 24 GiB", "stand-in"):
        assert text in out


def test_without_mm(installed, capsys):
    for name in [name for name in installed.versions if "mm" in name and name != "timm"]:
        del installed.versions[name]
    assert main.main() == 1  # mmengine is needed
    out = capsys.readouterr().out
    assert 'pip install "onedl-mmdetection>=3.5.1"' in out
    assert 'pip install "vitdense[mm]"' in out
    assert re.search(r"mmcv ops +mmcv not installed", out)


def test_nothing_installed(installed, capsys):
    installed.versions.clear()
    assert main.main() == 1
    assert main.collect().devices == ()
    assert 'pip install "torch>=2.6"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "code"), [("timm", 1), ("onedl-mmengine", 1), ("onedl-mmcv", 0), ("pycocotools", 0)]
)
def test_exit_code_is_about_what_backbones_need(installed, capsys, missing, code):
    del installed.versions[missing]
    assert main.main() == code
    assert missing in capsys.readouterr().out


def test_torchvision_of_another_torch(installed):
    installed.broken["torchvision"] = RuntimeError("operator torchvision::nms does not exist")
    report = main.collect()
    (problem,) = report.problems
    assert "operator torchvision::nms does not exist" in problem.what
    assert '"torchvision==0.26.*"' in problem.command
    assert not report.ready
    assert problem.command in main.format_report(report)


def test_torchvision_that_fails_on_first_use(installed, monkeypatch):
    def fails():
        raise NotImplementedError("Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.\nmore")

    monkeypatch.setattr(main, "_try_torchvision", fails)
    (problem,) = main.collect().problems
    assert "'CUDA' backend.; it has to be" in problem.what


def test_upstream_old_and_doubled_distributions(installed):
    del installed.versions["onedl-mmcv"]
    installed.versions["mmcv"] = "2.1.0"
    assert main.collect().problems == ()
    installed.versions["onedl-mmcv"] = "2.3.6"
    (problem,) = main.collect().problems
    assert problem.command == 'pip uninstall -y onedl-mmcv mmcv && pip install "onedl-mmcv>=2.3.6"'
    del installed.versions["mmcv"]
    installed.versions["onedl-mmcv"] = "2.3.6rc1"  # a candidate is taken for its release
    assert main.collect().problems == ()
    installed.versions["onedl-mmcv"] = "2.2.9"
    assert "older than 2.3.6" in main.collect().problems[0].what


def test_a_broken_package_is_reported_not_raised(installed):
    del installed.versions["onedl-mmdetection"]
    installed.versions["mmdet"] = "3.3.0"
    installed.broken["mmdet"] = AssertionError("MMCV==2.3.6 is used but incompatible")
    (problem,) = main.collect().problems
    assert "MMCV==2.3.6 is used but incompatible" in problem.what
    assert problem.command == 'pip uninstall -y mmdet && pip install "onedl-mmdetection>=3.5.1"'


def test_table_agrees_with_the_package_metadata():
    text = (ROOT / "pyproject.toml").read_text()
    declared = dict(re.findall(r'"([\w-]+)>=([\d.]+)",', text))
    extra = dict(re.findall(r'"([\w-]+)>=([\d.]+)",', text.split("mm = [")[1].split("]")[0]))
    for package in main.PACKAGES:
        assert declared[package.distributions[0]] == package.minimum
        assert (package.distributions[0] in extra) == package.extra


def test_run_here():
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", "vitdense"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"^torch +\d", done.stdout, re.M)
    assert re.search(r"^mmcv ops +(stand-in|compiled|mmcv not installed)", done.stdout, re.M)
