"""The wheel and the sdist: what they hold, and that the wheel is enough, in an empty folder without a clone."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from conftest import REPO
from kinds import Maps

import vitdense

pytestmark = [pytest.mark.long, pytest.mark.commands]

MOST = 4.5e6  # bytes of the wheel, 2.8e6 of them weights of shapes_nano
PLACES = {"configs": "vitdense/.mim/configs/configs", "tools": "vitdense/.mim/tools", "vitdense": "vitdense"}
NEW = ("--base", "upernet_swin_nano_shapes", "--iters", "2", "mine.py")
CHAIN = ("train mine.py --batch-size 2", "test work_dirs/mine", "predict shapes_nano --demo")
# The others in one process: packages are imported once.
RUN = f"""
import sys
import vitdense
print(vitdense.__file__, vitdense.__version__)
sys.path.append({str(REPO / "tests")!r})
from commands import run_command
for line in {CHAIN!r}:
    status, printed = run_command(line.split())
    print(printed)
    assert status == 0, line
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files: the sdist of a copy of the repository, and the wheel of the sdist, as `make dist` builds them."""
    root = tmp_path_factory.mktemp("built")
    copy = root / "clone"
    copy.mkdir()
    for path in filter(Path.is_file, REPO.iterdir()):
        shutil.copy(path, copy)
    for folder in re.findall(r"^graft (\S+)$", (REPO / "MANIFEST.in").read_text(), re.M):
        shutil.copytree(REPO / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", root], copy)
    return next(root.glob("*.tar.gz")), next(root.glob("*.whl"))


def run(command, folder, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def test_files_that_readme_and_docs_name_are_in_wheel_and_sdist(built):
    sdist, wheel = built
    assert wheel.stat().st_size <= MOST
    with tarfile.open(sdist) as file:
        in_sdist = {name.partition("/")[2] for name in file.getnames()}
    in_wheel = {*zipfile.ZipFile(wheel).namelist()}
    pages = [*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("*/README.md")]
    text = "".join(page.read_text() for page in pages)
    named = {*re.findall(r"\b(?:[\w.]+/)*[\w.]+\.\w+\b|\bMakefile\b", text)}
    named |= {path.relative_to(REPO).as_posix() for folder in PLACES for path in REPO.glob(f"{folder}/**/*.*")}
    named = {name for name in named if (REPO / name).is_file() and not re.search(r"/\.mim/|\.pyc$", name)}
    assert {"constraints.txt", "docs/install.md", "configs/atss_swin_t_coco.py"} < named
    assert named - in_sdist == set()
    places = {name: name.partition("/")[::2] for name in named if name.partition("/")[0] in PLACES}
    assert {name for name, (top, rest) in places.items() if f"{PLACES[top]}/{rest}" not in in_wheel} == set()
    assert not {name for name in in_wheel if name.startswith(("tests", "scripts", "docs")) or name.endswith(".pyc")}


def test_metadata_is_complete_and_the_version_is_one(built):
    wheel = zipfile.ZipFile(built[1])
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert metadata["Version"] == citation["version"] == vitdense.__version__
    assert metadata["License-Expression"] == citation["license"]
    assert metadata["Summary"]
    assert metadata["Keywords"]
    page = (REPO / "docs/install.md").read_text()
    assert [extra for extra in metadata.get_all("Provides-Extra") if f"`{extra}`" not in page] == []


def test_the_wheel_is_enough_in_an_empty_folder(built, tmp_path):
    """An environment of its own, which sees the packages of this one; the editable install of this one is not seen."""
    home, work = tmp_path / "environment", tmp_path / "work"
    venv.create(home, with_pip=False)
    install = ["-m", "pip", "--python", home, "install", "--quiet", "--no-deps", "--no-index", built[1]]
    run([sys.executable, *install], tmp_path, PYTHONPATH="")
    scheme = sysconfig.get_path("purelib", "venv", {"base": home, "platbase": home})
    Path(scheme, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")  # after pip, which would see this one
    data = Maps()
    data.write(work)
    assert "vitdense train mine.py" in run([home / "bin/vitdense", "new", *data.command(), *NEW], work, PYTHONPATH="")
    assert '_base_ = "vitdense::configs/demo/upernet_swin_nano_shapes.py"' in (work / "mine.py").read_text()
    printed = run([home / "bin/python", "-c", RUN], work, PYTHONPATH="")
    where, version, *_ = printed.split()
    assert Path(where).is_relative_to(scheme)
    assert version == vitdense.__version__
    assert "mIoU" in printed
    assert len([*(work / "predictions/shapes_nano").glob("*.jpg")]) == 4
