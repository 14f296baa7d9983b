"""The console of the tools: what is left out, and that all else is shown."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from vitdense import Swin
from vitdense.mm.cli.predict import PredictionError, predict
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.data.shapes import CLASSES, PALETTE
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import Inference
from vitdense.mm.train.runner import Runner


def test_only_the_known_warnings_of_mm_are_left_out():
    copied = "To copy construct from a tensor, it is recommended"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(copied, stacklevel=2)  # importing changes nothing
        with exit_on_user_error():
            warnings.warn(copied, stacklevel=2)
            warnings.warn("Warning: The bbox is out of bounds, the drawn", stacklevel=2)
            warnings.warn("something else", stacklevel=2)
    assert [str(warning.message) for warning in caught] == [copied, "something else"]


def fail(error):
    raise error


def nested():
    with exit_on_user_error():
        raise ConfigError("inner")


@pytest.mark.parametrize(
    ("function", "message", "status"),
    [
        (lambda: fail(ConfigError("refused")), "error: refused", 2),
        (lambda: fail(PredictionError("in part")), "error: in part", 1),
        (lambda: Swin("nano"), "error: arch: got 'nano'", 2),
        (lambda: MODELS.build(dict(type="vitdense.Swin", arch="nano")), "arch: got 'nano'", 2),  # raised anew
        (lambda: Path("/nowhere/x").write_text(""), "/nowhere/x", 2),
        (lambda: fail(OSError(24, "Too many open files")), "Too many open files", 2),  # of the machine
        (nested, "error: inner", 2),
    ],
)
def test_errors_of_a_user_are_one_line_and_a_status(function, message, status, capsys):
    with pytest.raises(SystemExit) as end, exit_on_user_error():
        function()
    printed = capsys.readouterr().err
    assert (end.value.code, printed.count("\n")) == (status, 1)
    assert message in printed


@pytest.mark.parametrize("fault", [OSError("socket"), ConnectionResetError(104, "reset"), ValueError(), KeyError()])
def test_other_errors_keep_their_traceback(fault):
    with pytest.raises(type(fault)), exit_on_user_error():
        raise fault


def test_config_and_hooks_are_in_the_log_file_only(tmp_path, capsys):
    runner = Runner(torch.nn.Linear(1, 1), str(tmp_path), cfg=Config(dict(some_option=1)), experiment_name="quiet")
    runner.logger.info("news")
    runner.logger.warning('"FileClient" will be deprecated in future.')
    console, log = capsys.readouterr().out, Path(runner.logger.log_file).read_text()
    for text in ("some_option", "RuntimeInfoHook", "System environment", "FileClient", "news"):
        assert text in log
        assert (text in console) == (text == "news")


@pytest.mark.long
@pytest.mark.parametrize("score_thr", [0.0, 2.0])
def test_prediction_of_an_untrained_detector_is_quiet_and_may_be_empty(tmp_path, score_thr):
    cfg, checkpoint, image = load_config("cascade_swin_nano_shapes"), tmp_path / "model.pth", tmp_path / "image.png"
    cfg.model.test_cfg.rcnn.score_thr = score_thr
    meta = {"dataset_meta": {"classes": CLASSES, "palette": PALETTE}}
    torch.save({"meta": meta, "state_dict": build_model(cfg).state_dict()}, checkpoint)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8)).save(image)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with exit_on_user_error():
            predict(cfg, str(checkpoint), [image], tmp_path / "out", Inference(score_thr=0.0))
    assert [str(w.message) for w in caught if w.category is UserWarning] == []
    assert bool(json.loads((tmp_path / "out/predictions.json").read_text())) == (score_thr < 1)
    assert (tmp_path / "out/image.png").exists()
