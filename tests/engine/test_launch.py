import pytest
from mmengine.config import Config
from mmengine.registry import MODELS

from vitdense.backbones import Swin
from vitdense.engine.launch import clear_errors


def ending(function, capsys):
    with pytest.raises(SystemExit) as ended, clear_errors():
        function()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_value_error_of_this_package_is_a_message(capsys):
    assert ending(lambda: Swin("nano"), capsys).startswith("error: arch: got 'nano', expected one of tiny, small")
    cfg = Config({"type": "vitdense.Swin", "arch": "nano"})
    assert "arch: got 'nano'" in ending(lambda: MODELS.build(cfg), capsys)  # raised anew by the registry


def test_an_output_that_cannot_be_written_is_a_message(capsys, tmp_path):
    assert str(tmp_path) in ending(lambda: tmp_path.write_text(""), capsys)


def test_other_errors_keep_their_trace():
    with pytest.raises(ValueError, match="invalid literal"), clear_errors():
        int("x")
    with pytest.raises(KeyError), clear_errors():
        {}["x"]
