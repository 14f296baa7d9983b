"""mmengine's interface of a plain module."""

import logging

import pytest
import torch
from torch import nn

pytest.importorskip("mmengine")
from mmengine.logging import MMLogger
from mmengine.model import BaseModule, Sequential

import vitdense
import vitdense.mm.registry
from vitdense.module import Module

ARCH = {"embed_dims": 8, "depths": (1, 1), "num_heads": (1, 1)}


def make(**options):
    return vitdense.Swin(ARCH, out_indices=(0, 1), **options)


def test_initialisers_of_mmengine_apply_and_parents_call_them_once():
    neck = vitdense.DeconvPyramid(in_channels=8, init_cfg={"type": "Constant", "layer": "ConvTranspose2d", "val": 3.0})
    model = Sequential(make(init_cfg=[{"type": "Constant", "layer": "Linear", "val": 2.0}]), neck)
    assert isinstance(model, BaseModule)
    model.init_weights()
    assert {float(m.weight.mean()) for m in model[0].modules() if isinstance(m, nn.Linear)} == {2.0}
    assert {float(m.weight.mean()) for m in neck.modules() if isinstance(m, nn.ConvTranspose2d)} == {3.0}
    assert model[0].is_init
    assert neck.is_init


def test_without_mmengine_its_initialisers_are_an_error(monkeypatch):
    monkeypatch.setattr(Module, "initialize", None)
    with pytest.raises(ValueError, match=r"vitdense\.registry"):
        make(init_cfg={"type": "Xavier", "layer": "Linear"}).init_weights()
    make().init_weights()


def test_what_was_loaded_is_in_the_log_of_a_run(tmp_path, monkeypatch):
    torch.save(make().state_dict(), tmp_path / "swin.pth")
    seen = []
    monkeypatch.setattr(MMLogger.get_current_instance(), "callHandlers", lambda record: seen.append(record))
    model = Sequential(make(init_cfg={"type": "Pretrained", "checkpoint": tmp_path / "swin.pth"}))
    model.init_weights()
    said = [(record.levelno, record.getMessage()) for record in seen if record.getMessage().startswith("Swin")]
    assert said == [(logging.INFO, f"Swin: {model[0].load_report}")]


def test_map_location_reaches_the_reader(tmp_path):
    torch.save(make().state_dict(), tmp_path / "swin.pth")
    options = {"checkpoint": str(tmp_path / "swin.pth"), "map_location": "nowhere"}
    with pytest.raises((ValueError, RuntimeError), match="nowhere"):
        make(init_cfg={"type": "Pretrained", **options}).init_weights()
    model = make(init_cfg={"type": "Pretrained", **options, "map_location": "cpu"})
    model.init_weights()
    assert model.load_report.share == 1
