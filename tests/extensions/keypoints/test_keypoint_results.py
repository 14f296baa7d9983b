"""Keypoints from a checkpoint to results, pictures, files of COCO and programs."""

import dataclasses
import json
from argparse import Namespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitdense
from vitdense.errors import OptionError
from vitdense.extensions.keypoints.data import FiguresDataset
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.cli.predict import predict
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.precision import Inference
from vitdense.results import draw
from vitdense.results.result import Result
from vitdense.runtime import BOUNDS, Output, Program, compare_results

OPTIONS = {"model.bbox_head.num_queries": 12, "model.bbox_head.num_layers": 1, "model.test_cfg.max_per_img": 9}
OPTIONS |= {"model.backbone.arch.depth": 3, "model.backbone.out_indices": (0, 1, 2), "model.neck.num_blocks": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keypoints")
    cfg = load_config("rfdetr_keypoints_nano_figures", OPTIONS)
    torch.manual_seed(3)
    model = build_model(cfg)
    for parameter in model.parameters():  # the start predicts one thing everywhere
        torch.nn.init.normal_(parameter, std=0.2 if parameter.ndim < 2 else parameter[0].numel() ** -0.5)
    torch.save({"state_dict": model.state_dict(), "meta": {"dataset_meta": FiguresDataset.METAINFO}}, folder / "a.pth")
    cfg.dump(folder / "cfg.py")
    return folder


@pytest.fixture(scope="module")
def photo():
    return np.random.default_rng(0).integers(0, 255, (120, 200, 3), np.uint8)


def test_results_and_pictures(trained, photo):
    model = vitdense.load(trained / "cfg.py", trained / "a.pth", score_thr=0.0)
    result = model(photo)
    assert result.keypoints.shape == (len(result), 11, 3)
    assert len(result) == 9
    assert result.skeleton == FiguresDataset.METAINFO["skeleton"]
    assert (np.diff(result.scores) <= 0).all()
    assert ((result.keypoints[..., 2] > 0) & (result.keypoints[..., 2] < 1)).all()
    (one, *_) = result.to_coco(image_id=3)
    assert one["keypoints"] == result.keypoints[0].ravel().tolist()
    assert json.loads(json.dumps(one)) == one
    with pytest.raises(OptionError, match="keypoints"):
        vitdense.load(trained / "cfg.py", trained / "a.pth", tiles=128)


def test_joined_models(trained, photo):
    join = pytest.importorskip("vitdense.extensions.joined.model")
    first, *others = (vitdense.load(trained / "cfg.py", trained / "a.pth", score_thr=0.0) for _ in range(3))
    want = first(photo)
    assert join.Joined(dict(zip("ab", others)))(photo) == {"a": want, "b": want}


def test_a_skeleton_is_drawn():
    image = np.zeros((100, 200, 3), np.uint8)
    points = np.float32([[[20, 30, 0.9], [120, 30, 0.8], [60, 80, 0.1], [1e9, 5, 0.9]]])
    drawn = draw.skeletons(image, points, [(0, 1), (1, 2)], [(255, 0, 0)])
    assert drawn[30, 70, 0] > 200
    assert not drawn[..., 1][30, 40:100].any()
    assert drawn[30, 20].any()
    assert not drawn[60:].any()  # of a low score
    assert not image.any()
    found = Result(np.float32([[10, 10, 90, 90]]), np.float32([0.9]), np.array([0]), image=image, names=["a"])
    plain = np.asarray(found.plot())
    found.keypoints, found.skeleton = points, [(0, 1)]
    assert (np.asarray(found.plot())[30, 100:118] != plain[30, 100:118]).any()


@pytest.mark.long
@pytest.mark.parametrize("as_dataset", [False, True])
def test_predict_writes_files_of_coco(as_dataset, trained, photo, tmp_path):
    Image.fromarray(photo).save(tmp_path / "a.png")
    cfg, inference = load_config(trained / "cfg.py"), Inference(score_thr=0.0)
    file = predict(cfg, str(trained / "a.pth"), [tmp_path / "a.png"], tmp_path / "out", inference, as_dataset)
    content = json.loads(file.read_text())
    rows = content["annotations"] if as_dataset else content
    assert [len(row["keypoints"]) for row in rows] == [33] * 9
    thirds = {value for row in rows for value in row["keypoints"][2::3]}
    assert (thirds <= {0, 2}) == as_dataset


@pytest.mark.long
def test_from_the_checkpoint_to_the_runtime(trained, photo, tmp_path):
    Image.fromarray(photo).save(tmp_path / "a.png")
    cfg, checkpoint = load_config(trained / "cfg.py"), str(trained / "a.pth")
    wish = Wish(tmp_path / "model.onnx", "onnx", images=[str(tmp_path / "a.png")])
    args = Namespace(proof=True, with_preprocessing=False)
    said = export(cfg, checkpoint, wish, args=args)
    assert "9 objects" in said
    assert "keypoints within" in said
    want = vitdense.load(trained / "cfg.py", checkpoint, score_thr=0.0)(photo)
    got = Program(tmp_path / "model.onnx")(photo, 0)
    assert got.keypoints.shape == want.keypoints.shape
    np.testing.assert_allclose(got.keypoints, want.keypoints, atol=0.01)
    moved = dataclasses.replace(got, keypoints=got.keypoints + np.float32([5, 0, 0]))
    plain = Output(want.boxes, want.scores, want.labels, keypoints=want.keypoints)
    assert compare_results([(got, plain)], BOUNDS["float32"])[0]
    assert not compare_results([(moved, plain)], BOUNDS["float32"])[0]
    proof = pytest.importorskip("vitdense.extensions.proof.verify")
    assert "keypoints within" in proof.verify(wish.path)[1]
