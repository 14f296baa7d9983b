"""Programs of photos, as files that are written, read by the runtime and evaluated."""

import json
from argparse import Namespace

import numpy as np
import onnx
import pytest
from linear_vit import make, save_random

from vitdense.mm.cli.export import Wish, export
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor
from vitdense.mm.train import launch
from vitdense.runtime import Program

pytestmark = pytest.mark.long
ARGS = Namespace(with_preprocessing=True, proof=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("photos"))


def test_a_program_of_photos_is_evaluated_as_its_checkpoint(folder):
    path = folder / "photos.onnx"
    said = export(make(folder), str(folder / "random.pth"), Wish(path, "onnx"), args=ARGS)
    assert "semantic [1, 96, 80]" in said
    program = Program(path)
    predictor = Predictor(make(folder), str(folder / "random.pth"))
    photo = np.random.default_rng(0).integers(0, 256, (10, 15, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    assert (program(photo).semantic == predictor(photo).semantic).mean() > 0.98
    want, got = (launch.test(make(folder), str(folder / name)) for name in ("random.pth", "photos.onnx"))
    assert got == pytest.approx(want, abs=0.5)  # per cent
    with pytest.raises(ConfigError, match="expected none with an exported file"):
        launch.test(make(folder), str(folder / "photos.onnx"), tta=True)
    model = onnx.load(path)
    (classes,) = (prop for prop in model.metadata_props if prop.key == "classes")
    names = json.loads(classes.value)
    (weight,) = (x for x in model.graph.initializer if x.name.endswith("conv_seg.weight"))  # its bias is 0
    reverse = onnx.numpy_helper.to_array(weight)[::-1].copy()  # outputs in another order, with their names
    weight.CopyFrom(onnx.numpy_helper.from_array(reverse, weight.name))
    classes.value = json.dumps(names[::-1])
    onnx.save(model, folder / "reversed.onnx")
    assert launch.test(make(folder), str(folder / "reversed.onnx")) == pytest.approx(got, abs=0.1)
    classes.value = json.dumps(["sky", *names[1:]])
    onnx.save(model, folder / "others.onnx")
    with pytest.raises(ConfigError, match="sky for background"):
        launch.test(make(folder), str(folder / "others.onnx"))


@pytest.mark.parametrize(
    ("to", "steps", "match"),
    [("pt2", [], "got --to pt2"), ("onnx", [dict(type="RandomFlip", prob=0.0)], "one Resize at most")],
)
def test_what_has_no_program_of_photos(folder, to, steps, match):
    cfg = make(folder)
    cfg.test_dataloader.dataset.pipeline[2:2] = steps
    with pytest.raises(ConfigError, match=f"--with-preprocessing: .*{match}"):
        export(cfg, str(folder / "random.pth"), Wish(folder / "never", to), args=ARGS)
