"""`vitdense/runtime.py`: the file that is copied into a product."""

import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import REPO

from vitdense.runtime import ENGINES, Program, cover, fitted, paste, resize

ALONE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "vitdense", "cv2", "PIL")))  # importing them raises
sys.path.insert(0, sys.argv[1])
import runtime
assert "numpy" in sys.modules and runtime.Program
"""


def test_it_imports_numpy_alone(tmp_path):
    shutil.copy(REPO / "vitdense/runtime.py", tmp_path)
    subprocess.run([sys.executable, "-c", ALONE, tmp_path], check=True, timeout=60)


@pytest.mark.parametrize("size", [(37, 53), (90, 31), (50, 70)])
def test_resize_is_torchs(size):
    image = np.random.default_rng(0).uniform(0, 255, (50, 70, 3)).astype(np.float32)
    want = F.interpolate(torch.from_numpy(image).permute(2, 0, 1)[None], size, mode="bilinear")[0].permute(1, 2, 0)
    np.testing.assert_allclose(resize(image, size), want.numpy(), atol=1e-3)


@pytest.mark.parametrize("box", [(10.2, 5.7, 60.1, 44.3), (-8, -3, 30, 20), (50, 30, 95, 70), (20, 20, 20.5, 20.4)])
def test_paste_is_mmdets(box):
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    mask = np.random.default_rng(0).uniform(0, 1, (28, 28)).astype(np.float32)
    whole, _ = _do_paste_mask(torch.from_numpy(mask)[None, None], torch.tensor([box]), 50, 70, skip_empty=False)
    np.testing.assert_allclose(paste(mask, np.float32(box), (50, 70)), whole[0].numpy(), atol=2e-4)


def test_cover_is_torchs_in_the_padded_image():
    logits = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)  # of 64 x 96 pixels
    want = F.interpolate(torch.from_numpy(logits)[None, None], (128, 48), mode="bilinear")[0, 0, :117, :41].numpy()
    np.testing.assert_allclose(cover(logits, 4, (0.5, 2), (117, 41)), want, atol=1e-5)


def test_fitted_is_mmcvs():
    from mmcv import rescale_size

    for w, h in ((640, 480), (480, 641), (1999, 301), (50, 50)):
        want = rescale_size((w, h), (1333, 800))
        assert fitted((h, w), {"scale": [1333, 800], "keep_ratio": True}) == want[::-1]
    assert fitted((30, 40), {"scale": [100, 50], "keep_ratio": False}) == (50, 100)
    assert fitted((30, 40), None) == (30, 40)


def test_other_files_and_images_are_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    info = onnx.helper.make_tensor_value_info
    image, out = (info(name, onnx.TensorProto.FLOAT, ["b", 3, "h", "w"]) for name in ("image", "logits"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["image"], ["logits"])], "g", [image], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ValueError, match=r"expected a file of tools/export\.py"):
        Program(tmp_path / "other.onnx")
    about = {"mean": "null", "std": "null", "channels": '"RGB"', "classes": '["a", "b", "c"]', "resize": "null"}
    about["threshold"] = "null"
    onnx.helper.set_model_props(model, about)
    onnx.save(model, tmp_path / "segmentor.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    for engine in filter(find_spec, ENGINES):
        program = Program(tmp_path / "segmentor.onnx", engine, threads=1)
        np.testing.assert_array_equal(program(pixels).semantic, pixels.argmax(-1))
    with pytest.raises(ValueError, match="got 'torch', expected one of"):
        Program(tmp_path / "segmentor.onnx", "torch")
    with pytest.raises(ValueError, match=r"got float64 \[20, 30, 3\], expected a uint8 RGB array"):
        program(pixels / 255)
