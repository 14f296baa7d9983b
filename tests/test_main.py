"""`python -m vitdense`: the report in this environment and in simulated ones."""

import re
import subprocess
import sys
import types

import pytest
from conftest import REPO, run_python

import vitdense.__main__ as main
from vitdense import seams
from vitdense.ops import OpsInUse


@pytest.fixture
def environment(monkeypatch):
    """Installed versions (module -> distribution -> version) and the errors that importing a module raises."""
    versions = {module: dict([requirement.split(">=")]) for module, (requirement, _) in main.PACKAGES.items()}
    versions["torch"] = {"torch": "2.11.0+cu128"}
    errors: dict[str, Exception] = {}

    def import_module(name: str):
        if name in errors:
            raise errors[name]

    monkeypatch.setattr(main, "_installed_versions", lambda: versions)
    monkeypatch.setattr(main, "importlib", types.SimpleNamespace(import_module=import_module))
    monkeypatch.setattr(main, "_call_nms", lambda: None)
    monkeypatch.setattr(main, "_devices", lambda: ["CPU, 2 threads", "cuda:0 Some GPU"])
    monkeypatch.setattr(main, "ops_in_use", lambda: OpsInUse("compiled", "somewhere"))
    return types.SimpleNamespace(versions=versions, errors=errors)


@pytest.fixture
def report(environment, capsys):
    def run() -> tuple[int, str, str]:
        status = main.report()
        table, _, help_lines = capsys.readouterr().out.partition("\n\n")
        return status, table, help_lines

    return run


def test_complete_environment_is_ready(report):
    status, table, help_lines = report()
    assert status == 0
    assert help_lines.splitlines() == ["Ready."]
    for text in ("2.11.0+cu128", "onedl-mmdetection", "Some GPU", "compiled (somewhere)"):
        assert text in table


@pytest.mark.parametrize("module", main.PACKAGES)
def test_missing_package_has_one_line_with_the_command(environment, report, module):
    environment.versions[module] = {}
    status, table, help_lines = report()
    assert re.search(rf"^{module} +not installed$", table, re.M)
    assert len(help_lines.splitlines()) == 2
    assert help_lines.startswith(f"{module} is not installed")
    assert f'"{main.PACKAGES[module][0]}"' in help_lines
    assert status == (module in main.REQUIRED)


@pytest.mark.parametrize(
    ("missing", "ready"),
    [((), True), (("mmseg",), True), (("mmdet",), True), (("mmdet", "mmseg"), False), (("mmengine",), False)],
)
def test_missing_mm_has_one_command_in_the_last_line(environment, report, missing, ready):
    for module in missing:
        environment.versions[module] = {}
    status, _, help_lines = report()
    assert status == 0
    assert help_lines.splitlines()[-1].endswith("Ready." if ready else main.INSTALL_MM)


def test_commands_without_mm_name_the_command_that_installs_it():
    code = (
        "import sys; sys.modules['mmengine'] = None; from importlib import util; find = util.find_spec; "
        "util.find_spec = lambda name: None if name == 'mmengine' else find(name); "
        "from vitdense.__main__ import main; sys.exit(main(['new']))"
    )
    (line,) = run_python(code, status=2).stderr.splitlines()
    assert line.startswith("error: ")
    assert main.INSTALL_MM in line


def test_commands_of_tools_and_of_the_package_are_listed(capsys):
    """Every file of tools/ is a command, with its own parser; help groups them all."""
    tools = {path.stem for path in (REPO / "tools").glob("*.py")}
    modules = {name for name in main.COMMANDS if name not in tools}
    assert tools < main.COMMANDS.keys()
    assert all((REPO / f"vitdense/mm/cli/{name}.py").is_file() for name in modules)
    with pytest.raises(SystemExit, match="0"):
        main.main(["--help"])
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.M)
    assert sorted(listed) == sorted({*main.COMMANDS, *seams.merged("commands"), "doctor"})


def test_commands_have_one_name():
    """Pages, messages and heads of recipes say `vitdense X`; a recipe's command is its own. The page of installing and
    the one for users of mmdet name tools/ as well."""
    named = {
        path.name
        for pattern in ("configs/**/*.py", "docs/**/*.md", "tools/*.py", "vitdense/**/*.py", "README.md")
        for path in REPO.glob(pattern)
        if re.search(r"tools/\w+\.py", path.read_text(encoding="utf-8"))
    }
    assert named == {"install.md", "coming-from.md"}
    for path in REPO.glob("configs/**/*.py"):
        assert {*re.findall(r"(?m)^(?:torchrun .* -m )?vitdense \w+ (\w+)", path.read_text())} <= {path.stem}


def test_without_any_package():
    command = [sys.executable, "-S", "-m", "vitdense"]  # -S: no site-packages
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert len(re.findall(r"^\w+ is not installed .*: pip install ", done.stdout, re.M)) == len(main.PACKAGES)
    assert all(name in done.stdout.splitlines()[-1] for name in main.REQUIRED)


def test_report_of_the_stand_in_has_the_build_command(report, monkeypatch):
    monkeypatch.setattr(main, "ops_in_use", lambda: OpsInUse("stand-in", "vitdense on torchvision"))
    status, _, help_lines = report()
    assert (status, main.BUILD_COMMAND in help_lines) == (0, True)


NO_CUDA = "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend."


@pytest.mark.parametrize(
    ("module", "version", "error", "status", "command"),
    [
        ("torchvision", None, "operator torchvision::nms does not exist", 1, "torch==2.11.0"),  # pip follows it
        ("torchvision", None, NO_CUDA, 1, "torch==2.11.0"),
        (
            *("mmdet", {"mmdet": "3.3.0"}, "MMCV==2.3.6 is used but incompatible", 0),
            'pip uninstall -y mmdet && pip install "onedl-mmdetection>=3.5.1"',
        ),
        (
            *("mmcv", {"onedl-mmcv": "2.3.6", "mmcv": "2.1.0"}, "which overwrite each other", 0),
            'pip uninstall -y onedl-mmcv mmcv && pip install "onedl-mmcv>=2.3.6"',
        ),
    ],
)
def test_broken_package_is_reported_not_raised(
    environment, report, monkeypatch, module, version, error, status, command
):
    def fails():
        raise NotImplementedError(f"{error}\nmore")

    environment.versions[module] = version or environment.versions[module]
    if error == NO_CUDA:  # it can be imported
        monkeypatch.setattr(main, "_call_nms", fails)
    else:
        environment.errors[module] = RuntimeError(error)
    found, _, help_lines = report()
    assert found == status
    assert error in help_lines
    assert command in help_lines


@pytest.mark.parametrize(
    ("name", "version", "old"),
    [
        ("onedl-mmcv", "2.2.9", True),
        ("onedl-mmcv", "2.3.6rc1", False),
        ("onedl-mmcv", "2.10", False),
        ("mmcv", "2.1.0", False),
    ],
)
def test_versions_older_than_the_minimum(environment, report, name, version, old):
    environment.versions["mmcv"] = {name: version}
    assert ("mmcv is older than 2.3.6" in report()[2]) == old


def test_table_agrees_with_the_package_metadata():
    text = (REPO / "pyproject.toml").read_text()
    needed, extras = text.split("[project.optional-dependencies]")
    for module, (requirement, _) in main.PACKAGES.items():
        assert f'"{requirement}"' in (needed if module in main.REQUIRED else extras)


def test_report_of_this_environment(capsys):
    assert main.main([]) in (0, 1)
    printed = capsys.readouterr().out
    assert re.search(r"^torch +\d", printed, re.M)
    assert re.search(r"^mmcv ops +(stand-in|compiled|mmcv not installed)", printed, re.M)


@pytest.mark.parametrize(
    "words",
    [
        ["card", "swin_tiny"],
        ["ops", "enable"],
        ["train", "mine.py", "--batch-size", "auto"],
        ["train", "mine.py", "--batch-size=auto"],
    ],
)
def test_what_was_removed_is_refused_with_the_way_around(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main(words)
    error = capsys.readouterr().err
    assert "was removed" in error
    assert len(error.splitlines()) == 1
