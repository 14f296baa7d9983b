"""Recipes by name, and as bases of others. tests/test_wheel.py has the installed package."""

import pytest
from conftest import REPO
from mmengine.config import Config
from mmengine.hub import get_config

from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import nodes

MINE = """
_base_ = "vitdense::configs/cascade_swin_t_coco.py"
model = dict(backbone=dict(drop_path_rate=0.1))
pipeline = _base_.test_dataloader.dataset.pipeline
"""


def test_a_config_inherits_from_one_of_the_package(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    ours = load_config(REPO / "configs/cascade_swin_t_coco.py").to_dict()
    got = load_config(tmp_path / "mine.py").to_dict()
    assert got.pop("pipeline") == ours["test_dataloader"]["dataset"]["pipeline"]
    assert got["model"]["backbone"].pop("drop_path_rate") == 0.1 != ours["model"]["backbone"].pop("drop_path_rate")
    assert (got.pop("work_dir"), ours.pop("work_dir")) == ("work_dirs/mine", "work_dirs/cascade_swin_t_coco")
    assert got == ours


@pytest.mark.parametrize("base", ["mmdet::_base_/models/mask-rcnn_r50_fpn.py", "mmseg::_base_/models/upernet_r50.py"])
def test_bases_of_other_packages_keep_their_scope(tmp_path, base):
    (tmp_path / "mine.py").write_text(f"_base_ = {base!r}")
    assert load_config(tmp_path / "mine.py").model["_scope_"] == base.partition("::")[0]


def test_config_of_the_package_by_name():
    name = "vitdense::configs/cascade_swin_t_coco.py"
    assert find_config(name).samefile(REPO / "configs/cascade_swin_t_coco.py")
    cfg = get_config(name)
    assert cfg.to_dict() == Config.fromfile(REPO / "configs/cascade_swin_t_coco.py").to_dict()
    assert not any("_scope_" in node for node in nodes(cfg._cfg_dict))
