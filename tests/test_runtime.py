"""`vitdense/runtime.py`: the file that is copied into a product."""

import shutil
import subprocess
import sys
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import REPO

from vitdense.runtime import BLOCK, ENGINES, Output, Program, cover, fitted, normalised, paste, resize, resize_photo

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


def sizes_to_resize():
    """Pairs (h, w, height, width): random ones, small and large, exact halves, one side as it was, a single pixel."""
    rng = np.random.default_rng(0)
    for i in range(200):
        h, w, height, width = rng.integers(1, (6, 60, 300)[i % 3], 4)
        yield from ((h, w, height, width), (2 * height, 2 * width, height, width), (h, w, h, width), (h, w, height, w))
    yield from ((1, 1, 7, 5), (7, 5, 1, 1), (1, 2000, 3, 1333), (2000, 1, 800, 2), (427, 640, 800, 1199))
    yield from ((1500, 2000, 799, 1333), (2000, 1333, 1000, 667), (480, 640, 2000, 1999), (BLOCK // 50, 50, 1999, 51))


def test_photos_are_resized_as_by_opencv_to_the_bit():
    rng = np.random.default_rng(1)
    for i, (h, w, height, width) in enumerate(sizes_to_resize()):
        image = rng.integers(0, 256, (h, w, 3 if i % 2 else 1), np.uint8)
        want = cv2.resize(image, (int(width), int(height))).reshape(height, width, -1)
        np.testing.assert_array_equal(resize_photo(image, (height, width)), want, str((h, w, height, width)))


def test_photos_are_normalised_after_their_resize():
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    about = {"channels": "RGB", "mean": [1, 2, 3], "std": [4, 5, 6]}
    want = (cv2.resize(image, (5, 4)) - np.float32([1, 2, 3])) / np.float32([4, 5, 6])
    np.testing.assert_array_equal(normalised(image, (4, 5), about), want.transpose(2, 0, 1)[None])
    got = normalised(image, (9, 7), {"channels": "BGR", "mean": None})
    np.testing.assert_array_equal(got, np.float32(image[..., ::-1]).transpose(2, 0, 1)[None])


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


def test_outputs_are_equal_by_their_values():
    def output(score=0.5):
        return Output(np.zeros((1, 4)), np.array([score]), np.array([1]))

    assert output() == output()
    assert output() != output(0.6)
    assert output() != Output()
    assert Output() != output()
    assert output() != 1


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
    for image in (pixels / 255, pixels[..., :1], pixels[0], pixels[:0], None):
        with pytest.raises(ValueError, match=r"image: got .*, expected a uint8 RGB array"):
            program(image)
    for score_thr in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="score_thr: got"):
            program(pixels, score_thr)
    assert program(pixels[:1]).semantic.shape == (1, 30)


def test_an_image_whose_resize_leaves_no_pixel(tmp_path):
    about = {"resize": {"scale": [1333, 800], "keep_ratio": True}}
    assert fitted((1, 5000), about["resize"]) == (0, 1333)
    program = object.__new__(Program)
    program._about = about
    with pytest.raises(ValueError, match=r"image: got \[1, 5000\] pixels"):
        program(np.zeros((1, 5000, 3), np.uint8))
