"""Programs as files: in int8, and what is not written."""

import dataclasses

import onnx
import pytest
import torch
from linear_vit import make, save_random
from PIL import Image

from vitdense import runtime
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES
from vitdense.mm.errors import ConfigError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("exported"))


def test_int8_is_calibrated_and_compared(folder):
    path = folder / "int8.onnx"
    said = export(make(folder), str(folder / "random.pth"), Wish(path, "onnx", static=(128, 112), precision="int8"))
    assert "of the pixels" in said
    assert "onnxruntime: 0.00%" not in said  # it is another program
    model = onnx.load(path)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    dequantised = [node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"]
    # Patches, four linear layers in each of two blocks, and the head.
    assert [kinds.get(name) for name in dequantised].count(onnx.TensorProto.INT8) == 10


def test_what_differs_from_its_model_is_not_written(folder, monkeypatch):
    # Below 0, for a program may have the bits of its model.
    monkeypatch.setitem(runtime.BOUNDS, "float16", dataclasses.replace(runtime.BOUNDS["float16"], error=-1.0))
    options = {"to": "pt2", "static": (64, 64), "precision": "float16"}
    with pytest.raises(ConfigError, match="not written; export in float32"):
        export(make(folder), str(folder / "random.pth"), Wish(folder / "unlike.pt2", **options))
    assert not (folder / "unlike.pt2").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"to": "pt2", "precision": "int8"}, "--int8: got --to pt2"),
        ({"to": "pt2", "maps": True}, "--maps: got EncoderDecoder, expected a detector"),
        ({"to": "onnx", "precision": "int8"}, r"vitdense\[export\]"),
    ],
)
def test_what_does_not_go_together_or_is_not_installed(folder, options, match, monkeypatch):
    monkeypatch.setattr("vitdense.mm.cli.export.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=match):
        export(make(folder), str(folder / "random.pth"), Wish(folder / "never", **options))


def test_a_model_that_finds_nothing(tmp_path):
    """The export is refused before the program is made, except with `unchecked`."""
    cfg = load_config("rfdetr_nano_shapes")
    model = build_model(cfg)
    torch.nn.init.constant_(model.bbox_head.classes.bias, -20)
    torch.nn.init.zeros_(model.bbox_head.classes.weight)
    meta = {"dataset_meta": {"classes": CLASSES}}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, tmp_path / "nothing.pth")
    Image.new("RGB", (90, 70)).save(tmp_path / "photo.png")
    options = {"to": "pt2", "static": (64, 64), "images": [str(tmp_path / "photo.png")]}
    with pytest.raises(ConfigError, match=r"no object.*--unchecked"):
        export(cfg, str(tmp_path / "nothing.pth"), Wish(tmp_path / "model.pt2", **options))
    assert not (tmp_path / "model.pt2").exists()
    said = export(cfg, str(tmp_path / "nothing.pth"), Wish(tmp_path / "model.pt2", **options, unchecked=True))
    assert "not compared" in said
    assert (tmp_path / "model.pt2").is_file()
