"""`python -m vitdense ops`: mmcv's ops in scripts that do not import vitdense. No test touches the real environment."""

import os
import subprocess
import sys

import pytest
from conftest import REPO

import vitdense.__main__ as main
from vitdense.ops import OpsInUse, environment

IMPORT_EXT = "import mmcv._ext as ext, sys; print(callable(ext.nms), 'vitdense' in sys.modules)"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder in place of site-packages; it has an empty package `mmcv`."""
    folder = tmp_path / "site-packages"
    (folder / "mmcv").mkdir(parents=True)
    (folder / "mmcv" / "__init__.py").touch()
    monkeypatch.setattr(environment, "ops_file", lambda: folder / environment.FILE)
    return folder


def python(site, code, path=REPO):
    """Run `code` in a fresh interpreter with `site` as a folder of site-packages; the finished process."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import site; site.addsitedir({str(site)!r})\n{code}"
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.commands
def test_scripts_find_the_ops_while_enabled(site, capsys):
    assert "No module named 'mmcv._ext'" in python(site, IMPORT_EXT).stderr
    assert main.main(["ops", "enable"]) == 0
    assert str(site / environment.FILE) in capsys.readouterr().out
    assert main.main(["ops", "enable"]) == 0  # again: the same
    assert python(site, IMPORT_EXT).stdout.split() == ["True", "True"]
    assert main.main(["ops", "disable"]) == 0
    assert main.main(["ops", "disable"]) == 0
    assert sorted(path.name for path in site.iterdir()) == ["mmcv"]
    assert "No module named 'mmcv._ext'" in python(site, IMPORT_EXT).stderr


def test_start_of_python_imports_nothing(site):
    environment.enable()
    done = python(site, "import sys; print({m.split('.')[0] for m in sys.modules} & {'vitdense', 'torch', 'mmcv'})")
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.long
def test_compiled_ops_stay_in_use(site):
    (site / "mmcv" / "_ext.py").write_text("nms = 'compiled'\n")
    environment.enable()
    assert python(site, "import mmcv._ext; print(mmcv._ext.nms)").stdout == "compiled\n"


def test_after_vitdense_is_uninstalled_one_line_names_the_file(site, tmp_path):
    environment.enable()
    uninstalled = "import sys; sys.modules['vitdense'] = None\n"
    assert python(site, uninstalled).stderr == ""
    lines = python(site, uninstalled + IMPORT_EXT).stderr.splitlines()
    assert environment.FILE in lines[0]
    assert lines[-1] == "ModuleNotFoundError: No module named 'mmcv._ext'"
    assert sum(environment.FILE in line for line in lines) == 1


def test_folder_that_is_not_writable_is_an_error_that_names_the_file(site, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.write_text", refuse)  # the tests may run as root
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    for action in ("enable", "disable"):
        assert main.main(["ops", action]) == 2
        assert str(site / environment.FILE) in capsys.readouterr().err


def test_state_is_a_row_of_the_report(site, monkeypatch, capsys):
    monkeypatch.setattr(main, "_find_fault", lambda *_: None)
    monkeypatch.setattr(main, "_devices", list)
    monkeypatch.setattr(main, "ops_in_use", lambda: OpsInUse("stand-in"))
    main.main([])
    assert str(site) not in capsys.readouterr().out
    environment.enable()
    main.main([])
    assert str(site / environment.FILE) in capsys.readouterr().out
