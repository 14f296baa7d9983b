"""`vitdense/runtime.py`: the file that is copied into a product."""

import json
import shutil
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import REPO, run_python
from mmcv import rescale_size
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.models.seg_heads import MaskFormerFusionHead

from vitdense.runtime import (
    BLOCK,
    ENGINES,
    Engine,
    Program,
    cover,
    fitted,
    instances,
    normalised,
    objects,
    panoptic,
    paste,
    resize,
    resize_photo,
)

ALONE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "vitdense", "cv2", "PIL")))  # importing them raises
sys.path.insert(0, sys.argv[1])
import runtime
assert "numpy" in sys.modules and runtime.Program
"""


def test_runtime_imports_only_numpy(tmp_path):
    shutil.copy(REPO / "vitdense/runtime.py", tmp_path)
    run_python(ALONE, tmp_path)


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
    bands = np.random.default_rng(0).uniform(0, 60000, (9, 7, 5)).astype(np.float32)
    got = normalised(bands, (4, 15), {"channels": [5, 5], "mean": None})[0].transpose(1, 2, 0)
    np.testing.assert_allclose(got, cv2.resize(bands, (15, 4)), rtol=1e-6)


@pytest.mark.parametrize("box", [(10.2, 5.7, 60.1, 44.3), (-8, -3, 30, 20), (50, 30, 95, 70), (20, 20, 20.5, 20.4)])
def test_paste_is_mmdets(box):
    mask = np.random.default_rng(0).uniform(0, 1, (28, 28)).astype(np.float32)
    whole, _ = _do_paste_mask(torch.from_numpy(mask)[None, None], torch.tensor([box]), 50, 70, skip_empty=False)
    np.testing.assert_allclose(paste(mask, np.float32(box), (50, 70)), whole[0].numpy(), atol=2e-4)


def test_cover_is_torchs_in_the_padded_image():
    logits = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)  # of 64 x 96 pixels
    want = F.interpolate(torch.from_numpy(logits)[None, None], (128, 48), mode="bilinear")[0, 0, :117, :41].numpy()
    np.testing.assert_allclose(cover(logits, 4, (0.5, 2), (117, 41)), want, atol=1e-5)


SIZE = (45, 70)


@pytest.fixture(scope="module")
def queries():
    make = torch.Generator().manual_seed(0)
    classes = torch.randn(30, 6, generator=make) * 3
    masks = F.interpolate(torch.randn(1, 30, 4, 5, generator=make) * 3, (8, 12), mode="bilinear")[0]
    large = F.interpolate(masks[None], (32, 48), mode="bilinear")[..., :29, :45]
    large = F.interpolate(large, SIZE, mode="bilinear")[0]

    def logits_of(query):
        padded = resize(masks[query].numpy()[..., None], (32, 48))[:29, :45]
        return resize(padded, SIZE)[..., 0]

    return classes, large, logits_of


def test_instances_equal_mmdets_fusion_head(queries):
    classes, large, logits_of = queries
    fusion = MaskFormerFusionHead(4, 1, test_cfg={"max_per_image": 20})
    want = fusion.instance_postprocess(classes, large)
    want = want[want.scores >= 0.1]
    want = want[want.scores.argsort(descending=True)]
    boxes, scores, labels, masks = instances(classes.softmax(-1).numpy(), logits_of, SIZE, 4, 20, 0.1)
    assert 5 < len(boxes) < 20
    torch.testing.assert_close(torch.from_numpy(scores), want.scores)
    assert labels.tolist() == want.labels.tolist()
    assert (masks != want.masks.numpy()).mean() < 1e-4
    np.testing.assert_allclose(boxes, want.bboxes.numpy(), atol=1)
    assert len(instances(classes.softmax(-1).numpy(), logits_of, SIZE, 4, 20, 1.0)[3]) == 0


@pytest.mark.parametrize(("iou", "within"), [(0.1, False), (0.2, True)])
def test_segments_equal_mmdets_fusion_head(queries, iou, within):
    classes, large, logits_of = queries
    cfg = {"object_mask_thr": 0.4, "iou_thr": iou, "filter_low_score": within}
    want = MaskFormerFusionHead(3, 2, test_cfg=cfg).panoptic_postprocess(classes, large).sem_seg[0]
    ids, segments = panoptic(classes.softmax(-1).numpy(), logits_of, SIZE, 3, 0.4, iou, within)
    assert len(segments) > 3
    assert {one["is_thing"] for one in segments} == {True, False}
    labels = np.array([5, *(one["label"] for one in segments)])[ids]
    same = labels == want.numpy() % 1000
    assert same.mean() > 0.999
    assert len(segments) == len(want[want != 5].unique())


def test_no_segment():
    ids, segments = panoptic(np.array([(0.1, 0.9)]), None, (2, 3), 1, score=0.5, iou=0.5, within=True)
    assert (ids == 0).all()
    assert segments == []


@pytest.mark.parametrize("stride", [None, 4])
def test_objects_from_a_score_on_and_their_masks(stride):
    boxes = np.float32([(2, 2, 14, 10), (4, 4, 12, 12), (0, 0, 8, 8)])
    maps = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)  # of 16 x 24 pixels
    found = {"boxes": boxes, "scores": np.float32([0.9, 0.3, 0]), "labels": np.array([1, 0, -1]), "masks": maps}
    about = {"mask_stride": stride, "mask_thr": 0.2}
    for threshold, number in ((0.3, 2), (0.31, 1), (0, 2)):  # empty places have score 0
        got = objects(found, about, (1, 1), (16, 24), threshold)
        np.testing.assert_array_equal(got.boxes, boxes[:number])
        assert (got.scores.tolist(), got.labels.tolist()) == (found["scores"][:number].tolist(), [1, 0][:number])
        for mask, code, box in zip(got.masks, maps, boxes, strict=False):
            whole = paste(code, box, (16, 24)) if stride is None else cover(code, 4, (1, 1), (16, 24))
            np.testing.assert_array_equal(mask, whole >= 0.2)
    del found["masks"]
    assert objects(found, about, (1, 1), (16, 24), 0.3).masks is None


RESIZE = {"scale": [80, 60], "keep_ratio": True}


def program_of(outputs, **about):
    about = {"mean": None, "std": None, "channels": "RGB", "classes": ["a", "b"], "resize": RESIZE, **about}
    about = {key: json.dumps(value) for key, value in about.items()}
    return Program("a.onnx", Engine(lambda _: [x[None] for x in outputs.values()], [*outputs], np.float32, about))


def test_programs_of_detectors_segmentors_and_queries():
    """They see a photo of 40 x 30 pixels at twice the size."""
    boxes = np.float32([(20, 10, 40, 30), (0, 0, 8, 6)])
    outputs = {"boxes": boxes, "scores": np.float32([0.8, 0.2]), "labels": np.array([1, 0])}
    program, photo = program_of(outputs, mask_stride=None, mask_thr=0.5), np.zeros((30, 40, 3), np.uint8)
    np.testing.assert_allclose(program(photo).boxes, boxes[:1] / 2)
    np.testing.assert_allclose(program(photo, score_thr=0.1).boxes, boxes / 2)
    assert program(photo).labels.tolist() == [1]
    assert program.names == ["a", "b"]
    assert not program.is_panoptic
    logit = np.full((1, 60, 80), -0.9, np.float32)
    logit[:, :30] = 0.9
    program = program_of({"logits": logit}, threshold=0.7)
    assert program(photo).semantic[:14].all()  # log(0.7 / 0.3) is 0.85
    assert not program(photo).semantic[16:].any()
    queries = {"divisor": 32, "things": 1, "instances": 5, "panoptic": {"score": 0.5, "iou": 0.5, "within": True}}
    masks = np.full((2, 64, 96), -9, np.float32)  # 60 x 80 padded
    masks[0, :30, :40], masks[1, 30:, :40] = 9, 9
    program = program_of({"classes": np.float32([(9, 0, 0), (0, 9, 0)]), "masks": masks}, queries=queries)
    got = program(photo)
    assert program.is_panoptic
    assert (got.panoptic[:14, :19] > 0).all()
    assert (got.panoptic[:, 21:] == 0).all()
    assert [(one["label"], one["is_thing"]) for one in got.segments] == [(1, False), (0, True)]
    np.testing.assert_allclose(got.boxes, [(0, 0, 20, 15)])
    np.testing.assert_allclose(got.scores, 1, atol=1e-3)
    assert got.masks[0, :15, :20].all()


def test_fitted_is_mmcvs():
    for w, h in ((640, 480), (480, 641), (1999, 301), (50, 50)):
        want = rescale_size((w, h), (1333, 800))
        assert fitted((h, w), {"scale": [1333, 800], "keep_ratio": True}) == want[::-1]
    assert fitted((30, 40), {"scale": [100, 50], "keep_ratio": False}) == (50, 100)
    assert fitted((30, 40), None) == (30, 40)


def test_other_files_and_images_are_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    info = onnx.helper.make_tensor_value_info
    image, out = (info(name, onnx.TensorProto.FLOAT, ["b", 3, "h", "w"]) for name in ("image", "logits"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["image"], ["logits"])], "g", [image], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ValueError, match=r"expected a file of vitdense export"):
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
    with pytest.raises(ValueError, match="threads: got 1000000"):
        Program(tmp_path / "segmentor.onnx", threads=10**6)
    for place, error in ((tmp_path / "absent.onnx", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=str(place)):
            Program(place)
    content = model.SerializeToString()
    onnx.helper.set_model_props(model, about | {"mean": "{", "std": "null"})
    damaged = {"its metadata": model.SerializeToString()}
    model.opset_import[0].version = 999
    damaged |= {"opset": model.SerializeToString(), "failed": content[: len(content) // 2]}
    for match, content in {**damaged, "cannot read it": b"", "Protobuf": b"hello"}.items():
        (tmp_path / "damaged.onnx").write_bytes(content)
        with pytest.raises(ValueError, match=rf"damaged\.onnx: .*{match}"):
            Program(tmp_path / "damaged.onnx")
    for image in (pixels / 255, pixels[..., :1], pixels[0], pixels[:0], None):
        with pytest.raises(ValueError, match=r"image: got .*, expected a uint8 RGB array"):
            program(image)
    for score_thr in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="score_thr: got"):
            program(pixels, score_thr)
    assert program(pixels[:1]).semantic.shape == (1, 30)


def test_bands_of_any_numbers_without_the_last_and_what_is_refused():
    program = program_of({"logits": np.zeros((2, 1, 1), np.float32)}, threshold=None, channels=[3, 4], resize=None)
    bands = np.random.default_rng(0).integers(0, 200, (6, 8, 4))
    for kind in (np.uint8, np.uint16, np.float32):
        for image in (bands.astype(kind), bands[..., :3].astype(kind)):
            np.testing.assert_array_equal(program.batch(image)[0].transpose(1, 2, 0), bands[..., :3])
    for image, said in ((bands[..., :2], r"\[6, 8, 2\], .*\[H, W, 4\]"), (bands[0], "H, W, 4"), (bands / 0.0, "NaN")):
        with pytest.raises(ValueError, match=f"image: got .*{said}"), np.errstate(all="ignore"):
            program(image)
    with pytest.raises(ValueError, match="mean or std of other channels"):
        program_of({"logits": bands}, threshold=None, channels=[4, 4], mean=[1, 2, 3], std=[1, 2, 3])


def test_an_image_whose_resize_leaves_no_pixel():
    assert fitted((1, 5000), RESIZE) == (0, 80)
    with pytest.raises(ValueError, match=r"image: got \[1, 5000\] pixels"):
        program_of({"logits": np.zeros((2, 1, 1), np.float32)}, threshold=None)(np.zeros((1, 5000, 3), np.uint8))


def with_point(**changes):
    point = {"wish": "f1", "thresholds": {"a": 0.2, "b": 0.8}, "precision": 0.5, "recall": 0.2, **changes}
    outputs = {"boxes": np.zeros((4, 4), np.float32), "scores": np.float32([0.9, 0.7, 0.5, 0.1])}
    return program_of({**outputs, "labels": np.array([1, 1, 0, 0])}, mask_stride=None, operating_point=point)


def test_the_operating_point_of_a_program_is_its_default():
    image = np.zeros((8, 8, 3), np.uint8)
    program = with_point()
    np.testing.assert_array_equal(program(image).scores, np.float32([0.9, 0.5]))
    assert len(program(image, score_thr=0.6).scores) == 2
    assert len(program(image, score_thr=0).scores) == 4
    assert "0.200 to 0.800, by class" in str(program.operating_point)
    assert program.operating_point.content(["a", "b"])["thresholds"] == {"a": 0.2, "b": 0.8}
    assert len(with_point(thresholds=0.7)(image).scores) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"thresholds": {"a": 0.2, "c": 0.8}},
        {"thresholds": {"a": 0.2}},
        {"thresholds": float("nan")},
        {"thresholds": -0.1},
        {"thresholds": "0.5"},
        {"thresholds": None},
        {"thresholds": [0.2]},
        {"precision": [0.1, 0.2, 0.3]},
        {"recall": 80},
        {"thresholds": {"a": 0.2, "b": None}},
        {"precision": None},
    ],
)
def test_a_damaged_operating_point_is_refused(changes):
    with pytest.raises(ValueError, match=r"a\.onnx: operating_point"):
        with_point(**changes)
