"""Configs as files: what Python cannot read, modules of one's own, types that are not registered."""

import shutil
import sys

import pytest

from vitdense.mm.config.base import build_model, explained, unknown_type
from vitdense.mm.config.files import find_config, own_modules
from vitdense.mm.config.load import ConfigError, load_config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a = 1\nmodel = dict(\n", r"mine\.py:2"),
        ("a = 1\nmodel = dict(type=nothing)\n", r"mine\.py:2.*nothing"),
        ("\nopen('no_file.json')\n", r"mine\.py:2.*no_file\.json"),
        ("\nraise RuntimeError('mine')\n", r"mine\.py:2: RuntimeError: mine"),
        ("_base_ = 'mine.py'\n", r"_base_ leads back to .*mine\.py"),
        ("_base_ = 'missing.py'\n", r"missing\.py"),
        ("a = 1\nmodel = {'type': 'A', 'b': 1, 'type': 'B'}\n", r"mine\.py:2.*'type' twice"),
        ("", "model"),
        ("\ufeffmodel = dict()\n", r"U\+FEFF"),
        ("custom_imports = dict(imports=['no_such_module'])\nmodel = dict()\n", "no_such_module"),
    ],
)
def test_config_that_python_cannot_read_names_file_and_line(tmp_path, text, named):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=named) as raised:
        load_config(path)
    assert "\n" not in str(raised.value)
    assert "mine.py" in str(raised.value)


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_configs_are_python(tmp_path, suffix):
    """mmengine's reader of YAML runs code."""
    path, mark = tmp_path / f"hostile{suffix}", tmp_path / "PWNED"
    path.write_text(f'a: !!python/object/apply:os.system ["touch {mark}"]')
    with pytest.raises(ConfigError, match=r"expected a config, \.py"):
        load_config(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("cascade_*", "did you mean the recipe"),
        ("foo.bar::x.py", "foo.bar::x.py"),
        ("nothing::x.py", "nothing::x.py"),
        ("swin_tiny", "backbone"),
    ],
)
def test_a_name_of_no_config_is_refused(name, named):
    with pytest.raises(ConfigError, match=named):
        find_config(name)


def test_error_in_a_base_names_the_base(tmp_path):
    (tmp_path / "base.py").write_text("a = 1\nb = nothing\n")
    (tmp_path / "mine.py").write_text("_base_ = 'base.py'\n")
    with pytest.raises(ConfigError, match=r"base\.py:2"):
        load_config(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model.type": "RFDETRR"}, "model: .*RFDETR"),
        ({"model.backbone.type": "vitdense.WindowedVit"}, r"model\.backbone: .*vitdense\.WindowedViT"),
    ],
)
def test_type_that_is_not_registered_is_named_with_the_nearest(options, named):
    cfg = load_config("rfdetr_nano_shapes")
    cfg.merge_from_dict(options)
    with pytest.raises(ConfigError, match=named):
        build_model(cfg)


def test_an_optimizer_names_the_package_or_the_option_that_it_needs():
    cfg = load_config("rfdetr_nano_shapes")
    assert "pip install lion-pytorch" in unknown_type("Lion", cfg)
    with pytest.raises(ConfigError, match=r"optimizer\.weight_decay"), explained(cfg):
        raise ValueError("base_wd should not be None")


@pytest.fixture
def project(tmp_path, repo, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "layers_of_pets.py").write_text("import parts_of_pets\n")
    (folder / "parts_of_pets.py").write_text("SIDE = 3\n")
    base = str(repo / "configs/demo/rfdetr_nano_shapes.py")
    imports = ["vitdense", "vitdense.mm", "layers_of_pets"]
    (folder / "pets.py").write_text(f"_base_ = {base!r}\ncustom_imports = dict(imports={imports})\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in ("layers_of_pets", "parts_of_pets"):
        sys.modules.pop(name, None)


def test_own_modules_are_found_beside_the_config(project, tmp_path):
    cfg = load_config(project / "pets.py")
    assert sys.modules["parts_of_pets"].SIDE == 3
    names = ["layers_of_pets.py", "parts_of_pets.py"]
    assert [path.name for path in own_modules(cfg)] == names
    copy = tmp_path / "run"
    copy.mkdir()
    cfg.dump(copy / "pets.py")
    for path in own_modules(cfg):
        shutil.copy(path, copy)
    assert load_config(copy).model == cfg.model  # a work folder, whose config is the file with a model
    assert own_modules(load_config("rfdetr_nano_shapes")) == []
    (copy / "layers_of_pets.py").write_text("SIDE = 4\n")
    with pytest.raises(ConfigError, match="layers_of_pets"):
        load_config(copy)
