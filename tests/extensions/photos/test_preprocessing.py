"""Programs of photos against programs of normalised images with `vitdense.runtime`."""

import json
from importlib.util import find_spec

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

from vitdense.extensions.photos.preprocessing import of_photos
from vitdense.runtime import ENGINES, Program, fitted

ABOUT = {
    "mean": [123.675, 116.28, 103.53],
    "std": [58.395, 57.12, 57.375],
    "channels": "RGB",
    "classes": ["a", "b", "c"],
    "resize": {"scale": [96, 64], "keep_ratio": True},
    "mask_thr": 0.5,
    "mask_stride": None,
    "threshold": None,
}


def program(nodes, outputs, about, dtype=onnx.TensorProto.FLOAT):
    info = onnx.helper.make_tensor_value_info
    image = info("image", dtype, ["b", 3, "h", "w"])
    graph = onnx.helper.make_graph(nodes, "g", [image], [info(name, dtype, shape) for name, shape in outputs.items()])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in about.items()})
    return model


def both(model, about, tmp_path):
    onnx.save(model, tmp_path / "images.onnx")
    onnx.save(of_photos(model, about), tmp_path / "photos.onnx")
    return [Program(tmp_path / name, threads=1) for name in ("images.onnx", "photos.onnx")]


def photo(h, w):
    rough = np.random.default_rng(0).integers(0, 256, (h // 8 + 1, w // 8 + 1, 3), np.uint8)
    return np.ascontiguousarray(rough.repeat(8, 0).repeat(8, 1)[:h, :w])


RULES = [None, {"scale": [96, 64], "keep_ratio": True}, {"scale": [70, 90], "keep_ratio": False}]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("more", [{}, {"channels": "BGR", "mean": None, "std": None}, {"channels": [3, 4]}])
def test_a_segmentor_of_photos_returns_classes(rule, more, tmp_path):
    about = ABOUT | {"resize": rule} | more
    of_bands = about["channels"] == [3, 4]  # the fourth is left out
    node = onnx.helper.make_node("Identity", ["image"], ["logits"])  # the strongest of three colours
    images, photos = both(program([node], {"logits": ["b", 3, "h", "w"]}, about), about, tmp_path)
    for h, w in ((61, 83), (120, 75), (64, 96)):
        image = photo(h, w)
        image = np.dstack([image, image[..., 0]]).astype(np.uint16) if of_bands else image
        want, got = (each(image).semantic for each in (images, photos))
        assert got.shape == (h, w)
        assert len(np.unique(want)) == 3
        assert (got == want).mean() > 0.999
    (given,) = onnx.load(tmp_path / "photos.onnx").graph.input
    kind = onnx.TensorProto.FLOAT if of_bands else onnx.TensorProto.UINT8
    assert (given.name, given.type.tensor_type.elem_type) == ("photo", kind)


@pytest.mark.parametrize("engine", [name for name in ENGINES if find_spec(name)])
def test_pixels_are_opencvs_to_the_bit(engine, tmp_path):
    """Equal bits; in OpenVINO, which has no float64, almost all."""
    rng = np.random.default_rng(0)
    sizes = (61, 83, 90, 70), (9, 300, 90, 70), (1, 1, 7, 5), (180, 140, 90, 70), (400, 501, 97, 133)
    for h, w, height, width in sizes:
        about = ABOUT | {"resize": {"scale": [width, height], "keep_ratio": False}, "mean": None, "std": None}
        node = onnx.helper.make_node("Identity", ["image"], ["maps"])
        onnx.save(of_photos(program([node], {"maps": ["b", 3, "h", "w"]}, about), about), tmp_path / "photos.onnx")
        image = rng.integers(0, 256, (h, w, 3), np.uint8)
        (got,) = ENGINES[engine](tmp_path / "photos.onnx", threads=1).run(image[None])
        want = cv2.resize(image, (width, height)).transpose(2, 0, 1)
        differs = np.abs(got[0] - want)
        assert differs.max() <= (0 if engine == "onnxruntime" else 1)
        assert (differs > 0).mean() < 1e-3


def test_one_class_has_its_threshold(tmp_path):
    about = ABOUT | {"threshold": 0.7, "classes": ["a"]}
    nodes = [onnx.helper.make_node("ReduceMean", ["image", "axes"], ["logits"])]
    nodes.insert(0, onnx.helper.make_node("Constant", [], ["axes"], value_ints=[1]))
    images, photos = both(program(nodes, {"logits": ["b", 1, "h", "w"]}, about), about, tmp_path)
    want, got = (each(photo(61, 83)).semantic for each in (images, photos))
    assert 0.05 < want.mean() < 0.95
    assert (got == want).mean() > 0.999


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_boxes_are_in_pixels_of_the_photo(dtype, tmp_path):
    """The scores are the mean colours of the image, the boxes its edges."""
    constant, node = onnx.numpy_helper.from_array, onnx.helper.make_node
    kind = np.float16 if dtype == onnx.TensorProto.FLOAT16 else np.float32
    nodes = [
        node("Constant", [], ["axes"], value_ints=[2, 3]),
        node("ReduceMean", ["image", "axes"], ["means"], keepdims=0),
        node("Sigmoid", ["means"], ["scores"]),
        node("Shape", ["image"], ["size"], start=2),
        node("Cast", ["size"], ["numbers"], to=dtype),
        node("Constant", [], ["edges"], value=constant(np.array([[[0, 0, 1, 1]] * 3], kind) / np.array(2, kind))),
        node("Constant", [], ["order"], value_ints=[1, 0, 1, 0]),
        node("Gather", ["numbers", "order"], ["sides"]),
        node("Mul", ["edges", "sides"], ["boxes"]),
        node("Constant", [], ["places"], value=constant(np.array([[[[1, 1, 0.5], [0.5, 0.5, 0.9]]] * 3], kind))),
        node("Constant", [], ["one"], value=constant(np.ones(1, kind))),
        node("Constant", [], ["order of points"], value_ints=[1, 0]),
        node("Gather", ["numbers", "order of points"], ["width and height"]),
        node("Concat", ["width and height", "one"], ["units"], axis=0),
        node("Mul", ["places", "units"], ["keypoints"]),
        node("Constant", [], ["labels"], value=constant(np.arange(3)[None])),
    ]
    outputs = {"scores": ["b", 3], "boxes": ["b", 3, 4], "labels": ["b", 3], "keypoints": ["b", 3, 2, 3]}
    model = program(nodes, outputs, ABOUT, dtype)
    model.graph.output[2].type.tensor_type.elem_type = onnx.TensorProto.INT64
    images, photos = both(model, ABOUT, tmp_path)
    want, got = (each(photo(61, 83), score_thr=0.0) for each in (images, photos))
    np.testing.assert_allclose(got.boxes, [[0, 0, 41.5, 30.5]] * 3, atol=0.02)
    np.testing.assert_allclose(got.boxes, want.boxes, atol=0.02)
    np.testing.assert_allclose(got.keypoints, [[[83, 61, 0.5], [41.5, 30.5, 0.9]]] * 3, atol=0.04)
    np.testing.assert_allclose(got.scores, want.scores, atol=2e-3)
    np.testing.assert_array_equal(got.labels, [0, 1, 2])
    names = [out.name for out in onnx.load(tmp_path / "photos.onnx").graph.output]
    assert names == [*outputs]


def test_segments_are_in_pixels_of_the_photo(tmp_path):
    """The masks are the three colours of the image, the classes one thing and two of stuff."""
    queries = {"divisor": 8, "things": 1, "instances": None, "panoptic": {"score": 0.1, "iou": 0.1, "within": False}}
    about = ABOUT | {"queries": queries}
    classes = onnx.numpy_helper.from_array(np.float32(np.eye(3, 4))[None] * 9)
    nodes = [onnx.helper.make_node("Constant", [], ["classes"], value=classes)]
    nodes.append(onnx.helper.make_node("Resize", ["image", "", "", "size"], ["masks"], mode="linear"))
    size = onnx.helper.make_node("Constant", [], ["size"], value_ints=[1, 3, 16, 24])
    made = program([size, *nodes], {"classes": [1, 3, 4], "masks": [1, 3, 16, 24]}, about)
    images, photos = both(made, about, tmp_path)
    want, got = (each(photo(61, 83)) for each in (images, photos))
    assert got.panoptic.shape == (61, 83)
    assert got.segments == want.segments
    assert len(got.segments) == 3
    assert (got.panoptic == want.panoptic).mean() > 0.999


def test_sizes_match_the_runtime_and_other_outputs_are_kept():
    rule = {"scale": [133, 80], "keep_ratio": True}
    about = ABOUT | {"resize": rule}
    nodes = [onnx.helper.make_node("Identity", ["image"], ["classes"])]
    whole = of_photos(program(nodes, {"classes": ["b", 3, "h", "w"]}, about), about)
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    for h, w in zip(range(20, 220, 7), range(150, 30, -4)):
        (pixels,) = session.run(None, {"photo": np.zeros((2, h, w, 3), np.uint8)})
        assert pixels.shape == (2, 3, *fitted((h, w), rule))
