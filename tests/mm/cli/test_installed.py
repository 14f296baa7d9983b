"""An installed package has the configs and the tools, and its configs are bases of others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO
from mmengine.config import Config
from mmengine.hub import get_config

from vitdense.mm.config.load import find_config, load_config
from vitdense.mm.config.query import nodes

pytest.importorskip("mmdet")

MINE = """
_base_ = "vitdense::configs/cascade_swin_t_coco.py"
model = dict(backbone=dict(drop_path_rate=0.1))
pipeline = _base_.test_dataloader.dataset.pipeline
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_config_inherits_from_one_of_the_package(mine):
    ours = load_config(REPO / "configs/cascade_swin_t_coco.py").to_dict()
    got = load_config(mine).to_dict()
    assert got.pop("pipeline") == ours["test_dataloader"]["dataset"]["pipeline"]
    assert got["model"]["backbone"].pop("drop_path_rate") == 0.1 != ours["model"]["backbone"].pop("drop_path_rate")
    assert (got.pop("work_dir"), ours.pop("work_dir")) == ("work_dirs/mine", "work_dirs/cascade_swin_t_coco")
    assert got == ours


@pytest.mark.parametrize("base", ["mmdet::_base_/models/mask-rcnn_r50_fpn.py", "mmseg::_base_/models/upernet_r50.py"])
def test_bases_of_other_packages_keep_their_scope(mine, base):
    mine.write_text(f"_base_ = {base!r}")
    assert load_config(mine).model["_scope_"] == base.partition("::")[0]


def test_config_of_the_package_by_name():
    name = "vitdense::configs/cascade_swin_t_coco.py"
    assert find_config(name).samefile(REPO / "configs/cascade_swin_t_coco.py")
    cfg = get_config(name)
    assert cfg.to_dict() == Config.fromfile(REPO / "configs/cascade_swin_t_coco.py").to_dict()
    assert not any("_scope_" in node for node in nodes(cfg._cfg_dict))


@pytest.mark.long
@pytest.mark.commands
def test_what_a_wheel_holds_is_enough(mine, tmp_path):
    """Without a clone: setuptools copies what a wheel holds, and a process finds nothing else."""
    clone, installed = tmp_path / "clone", tmp_path / "installed"
    for folder in ("vitdense", "configs", "tools"):
        shutil.copytree(REPO / folder, clone / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (REPO / "pyproject.toml").read_text()
    (clone / "pyproject.toml").write_text(re.sub("^(license|readme).*\n", "", text, flags=re.M))  # old setuptools
    build = "import setuptools; setuptools.setup()"
    run([sys.executable, "-c", build, "-q", "build_py", "--build-lib", str(installed)], clone)
    shutil.rmtree(clone)
    package = installed / "vitdense/.mim"
    for folder, copy in (("configs", package / "configs/configs"), ("tools", package / "tools")):
        here = {path.relative_to(REPO / folder) for path in (REPO / folder).rglob("*.*") if path.suffix != ".pyc"}
        assert {path.relative_to(copy) for path in copy.rglob("*.*")} == here
    script = (
        "from pathlib import Path\nfrom mmengine.hub import get_config\nfrom vitdense.mm.cli import new\n"
        "from vitdense.mm.config.load import load_config\nprint(load_config('mine.py').model.backbone.drop_path_rate)\n"
        "print(get_config('vitdense::configs/atss_r50_coco.py').filename)\nprint(new.CONFIGS)\n"
        "print(new.commands(Path('mine.py'))[0].split()[1])"
    )
    rate, atss, configs, train = run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed))[-4:]
    assert rate == "0.1"
    assert atss == str(package / "configs/configs/atss_r50_coco.py")
    assert configs == str(package / "configs/configs")
    assert Path(tmp_path, train) == package / "tools/train.py"


def run(command, folder, **variables):
    """The lines that a command prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
