"""Odd images and outputs: each costs its own picture and no other; what is done is in `predictions.json`."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from commands import start_tool
from PIL import Image, features

from vitdense.errors import OptionError
from vitdense.mm.cli.predict import PredictionError, predict
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_image
from vitdense.mm.precision import Inference

pytestmark = pytest.mark.slow
RECIPE = "cascade_swin_nano_shapes"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.pth"
    model = build_model(load_config(RECIPE))
    torch.save({"meta": {"dataset_meta": {"classes": CLASSES}}, "state_dict": model.state_dict()}, path)
    return str(path)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, name in enumerate(("a.png", "z.jpg")):
        save(folder / name, draw_image(np.random.default_rng(i), (96, 128))[0])
    return folder


def save(path, pixels=None, **options):
    pixels = np.zeros((64, 64, 3), np.uint8) if pixels is None else pixels
    Image.fromarray(pixels).save(path, **options)


def run(checkpoint, images, out, score_thr=0.0):
    failed = ""
    try:
        predict(load_config(RECIPE), checkpoint, images, out, Inference(score_thr=score_thr))
    except PredictionError as error:
        failed = str(error)
    results = json.loads((out / "predictions.json").read_text())
    return failed, {path.name for path in out.iterdir() if path.is_file()}, {item["image_id"] for item in results}


ODD = {  # name, how it is made, whether it is predicted; the short side of a strip would have no pixel
    "20000 x 10": ("m.jpg", lambda path: save(path, np.zeros((10, 20000, 3), np.uint8)), False),
    "10 x 20000": ("m.png", lambda path: save(path, np.zeros((20000, 10, 3), np.uint8)), False),
    "1 x 1": ("m.png", lambda path: save(path, np.zeros((1, 1, 3), np.uint8)), True),
    "name of 250 letters": ("m" * 246 + ".jpg", save, True),
    "name that is not UTF-8": ("m\udcff.jpg", save, True),
    "name that steers": ("m\x1b[31m.jpg", save, True),
    "grey of 16 bits": ("m.png", lambda path: save(path, np.full((64, 64), 999, np.uint16)), True),
    "empty": ("m.jpg", lambda path: path.touch(), False),
    "pipe": ("m.jpg", os.mkfifo, False),
    "folder": ("m.jpg", lambda path: path.mkdir(), False),
    "link to nothing": ("m.jpg", lambda path: path.symlink_to("gone.jpg"), False),
    "loop": ("m.jpg", lambda path: path.symlink_to(path.name), False),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_image_fails_alone_or_is_predicted(checkpoint, photos, kind, tmp_path):
    name, make, fine = ODD[kind]
    make(photos / name)
    failed, pictures, ids = run(checkpoint, [photos], tmp_path / "out")
    expected = {"predictions.json", "a.png", "z.jpg"} | ({name} if fine else set())
    assert bool(failed) == (not fine), failed
    assert pictures == expected
    assert len(ids) == len(expected) - 1


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_avif(checkpoint, photos, tmp_path):
    save(photos / "m.avif")
    failed, pictures, _ = run(checkpoint, [photos / "m.avif", photos / "a.png"], tmp_path / "out")
    assert ("m.avif" in failed) != ("m.avif" in pictures)
    assert "a.png" in pictures


def test_an_output_that_is_a_folder(checkpoint, photos, tmp_path):
    (tmp_path / "out/a.png").mkdir(parents=True)
    failed, pictures, ids = run(checkpoint, [photos], tmp_path / "out")
    assert "a.png" in failed
    assert pictures == {"predictions.json", "z.jpg"}
    assert len(ids) == 2
    (tmp_path / "other/predictions.json").mkdir(parents=True)
    with pytest.raises(OptionError, match=r"predictions\.json"):
        predict(load_config(RECIPE), checkpoint, [photos], tmp_path / "other")
    assert not (tmp_path / "other/z.jpg").exists()  # before the work


def start(checkpoint, photos, out, **limit):
    return start_tool("predict", RECIPE, checkpoint, photos, "--out-dir", out, "--score-thr", 0, **limit)


def test_a_file_that_is_too_large_for_the_disk(checkpoint, photos, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    save(photos / "m.png", noise)
    done = start(checkpoint, photos, tmp_path / "out", limit=2**20)
    text = "".join(done.communicate())
    assert done.returncode == 1, text
    assert "1 of 3 images failed" in text
    assert "Traceback" not in text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"predictions.json", "a.png", "z.jpg"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_done_is_kept_when_it_is_stopped(checkpoint, photos, tmp_path, number):
    for i in range(40):
        save(photos / f"m{i:02}.jpg", np.full((256, 256, 3), i, np.uint8))
    done, out = start(checkpoint, photos, tmp_path / "out"), tmp_path / "out"
    while not (out / "m05.jpg").exists():
        assert done.poll() is None, done.communicate()
    done.send_signal(number)
    text = "".join(done.communicate())
    assert done.returncode == 128 + number, text
    assert "Traceback" not in text
    assert len({item["image_id"] for item in json.loads((out / "predictions.json").read_text())}) >= 6
    assert not (out / "z.jpg").exists()
