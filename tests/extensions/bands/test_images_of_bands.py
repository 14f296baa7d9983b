"""Images of bands: what is read, refused, written by `vitdense new`, and learned."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from commands import succeed
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from PIL import Image

import vitdense
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.errors import OptionError
from vitdense.extensions.bands import files, images, new
from vitdense.extensions.bands.step import LoadBands
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import tiled_pipeline
from vitdense.mm.data.images import header_size, picture_of
from vitdense.runtime import Program

SEGMENTOR = "upernet_swin_nano_shapes"
PLANES = dict(photometric="minisblack", planarconfig="separate")
SAMPLES = dict(photometric="minisblack", planarconfig="contig")
UNTURNED = dict(extratags=[(274, 3, 1, 0)])  # Orientation, as some writers leave it
WRITERS = {
    "samples.tif": lambda path, x: tifffile.imwrite(path, x, **SAMPLES),
    "planes.tif": lambda path, x: tifffile.imwrite(path, np.moveaxis(x, -1, 0), **PLANES),
    "pages.tif": lambda path, x: tifffile.imwrite(path, np.moveaxis(x, -1, 0)),
    "deflate.TIFF": lambda path, x: tifffile.imwrite(path, x, compression="zlib", tile=(16, 16), **SAMPLES),
    "strips.tif": lambda path, x: tifffile.imwrite(path, x, compression="zlib", rowsperstrip=5, **SAMPLES, **UNTURNED),
    "tiled_planes.tif": lambda path, x: tifffile.imwrite(path, np.moveaxis(x, -1, 0), tile=(16, 32), **PLANES),
    "zipped_pages.tif": lambda path, x: tifffile.imwrite(path, np.moveaxis(x, -1, 0), compression="zlib"),
    "array.npy": np.save,
}


def bands(number=5, dtype="uint16", seed=0):
    return np.random.default_rng(seed).integers(0, 250, (24, 40, number)).astype(dtype)


def pages():
    return np.moveaxis(bands(), -1, 0)


def ome(path):
    tifffile.imwrite(path, pages(), ome=True)
    return path.read_bytes()


def folder(root, number=5, suffix=".tif", dtype="uint16", factor=1):
    """Images and label maps of two classes."""
    for split in ("train", "val"):
        for name in ("images", "labels"):
            Path(root, name, split).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            pixels = bands(number, dtype, i) * np.array(factor, dtype)
            WRITERS["array.npy" if suffix == ".npy" else "samples.tif"](f"{root}/images/{split}/{i}{suffix}", pixels)
            Image.fromarray((pixels[..., -1] > 99).astype(np.uint8)).save(f"{root}/labels/{split}/{i}.png")
    return sorted(str(path) for path in Path(root).glob("images/train/*"))


def about_data(paths, recipe=SEGMENTOR, alpha=None):
    cfg = load_config(recipe)
    return new.images(Namespace(bands=None, alpha=alpha), cfg, cfg.model.backbone, paths)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "float32"])
def test_every_form_of_a_file_is_read(name, dtype, tmp_path):
    WRITERS[name](tmp_path / name, bands(dtype=dtype))
    np.testing.assert_array_equal(files.read(tmp_path / name), bands(dtype=dtype))
    assert files.about(tmp_path / name)[:3] == ((40, 24), 5, np.dtype(dtype))
    assert header_size(str(tmp_path / name), stored=False) == (40, 24)
    assert picture_of(str(tmp_path / name)).shape == (24, 40, 3)
    windows, step = LoadBands(5, in_tiles=True).load(tmp_path / name), LoadBands(5)
    for place in (np.s_[4:9, 3:30], np.s_[::3, ::2], np.s_[20:30, :]):
        np.testing.assert_array_equal(windows[place], bands(dtype=dtype)[place])
    np.testing.assert_array_equal(step.picture(windows), picture_of(str(tmp_path / name)))
    found = step.transform({"img_path": str(tmp_path / name)})
    assert (found["img"].dtype, found["img_shape"]) == (np.float32, (24, 40))


def test_files_of_mm_are_left_to_its_reader(tmp_path):
    Image.fromarray(bands(3, "uint8")).save(tmp_path / "lzw.tif", compression="tiff_lzw")
    assert images.about(tmp_path / "lzw.tif") is None
    tifffile.imwrite(tmp_path / "deep.tif", bands(3), photometric="rgb")
    assert images.about(tmp_path / "deep.tif").dtype == np.uint16


def test_pictures_show_chosen_bands_between_percentiles():
    pixels = np.tile(np.linspace(0, 1000, 101, dtype=np.float32)[:, None, None], (1, 4, 5)) * [1, 2, 3, 4, 5]
    picture = LoadBands(5, shown=(5, 1, 3)).picture(pixels)
    assert picture[[0, 2, 50, 98, 100], 0, 0].tolist() == [0, 0, 128, 255, 255]
    np.testing.assert_array_equal(picture[..., 0], picture[..., 2])


def test_16_bits_are_8_bits_where_the_upper_byte_is_the_same(tmp_path):
    inputs = []
    for dtype, factor in (("uint8", 1), ("uint16", 256)):
        paths = folder(tmp_path / dtype, dtype=dtype, factor=factor)
        cfg = load_config(SEGMENTOR, about_data(paths)[1])
        image = torch.from_numpy(LoadBands(5).load(paths[0])).permute(2, 0, 1)
        inputs.append(build_model(cfg).data_preprocessor({"inputs": [image]})["inputs"])
    assert inputs[0].shape == (1, 5, 24, 40)
    torch.testing.assert_close(*inputs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["deflate.TIFF", "strips.tif", "tiled_planes.tif"])
def test_a_window_needs_only_the_segments_that_it_meets(name, tmp_path):
    WRITERS[name](tmp_path / name, bands())
    with tifffile.TiffFile(tmp_path / name) as tiff:
        *_, start = tiff.pages[0].dataoffsets
    content = bytearray((tmp_path / name).read_bytes())
    content[start : start + 9] = b"not coded"
    (tmp_path / name).write_bytes(content)
    place = np.s_[:14, :30]
    np.testing.assert_array_equal(files.read(tmp_path / name, place), bands()[place])


def test_tiles_of_training_and_test_read_windows(tmp_path):
    init_default_scope("mmdet")
    path = tmp_path / "deflate.TIFF"
    WRITERS[path.name](path, bands())
    pack = {"type": "mmdet.PackDetInputs", "meta_keys": ("img_path", "ori_shape")}
    whole, _ = tiled_pipeline([{"type": "vitdense.LoadBands", "bands": 5}, pack])
    tested = Compose(whole)({"img_path": str(path)})
    assert tested["data_samples"].ori_shape == (24, 40)
    for image in (tested["inputs"], LoadBands(5).transform({"img_path": str(path), "tile": ()})["img"]):
        assert not isinstance(image, np.ndarray)
        np.testing.assert_array_equal(image[4:9, 3:30], bands()[4:9, 3:30])


def test_a_constant_fourth_band_changes_nothing_and_weights_spread_by_the_rule():
    colours, models = torch.rand(1, 3, 64, 64), {}
    for number in (3, 4, 5):
        models[number] = build_model(load_config(SEGMENTOR, {"model.backbone.in_channels": number})).eval()
    models[3].init_weights()
    trained = models[3].state_dict()
    models[4].load_state_dict(fit_whole(models[4], {"state_dict": trained}, channels=[0, 1, 2, 0])[0])
    constant = torch.cat([colours, torch.zeros(1, 1, 64, 64)], 1)  # its mean is its value
    with torch.no_grad():
        for own, other in zip(models[3].backbone(colours), models[4].backbone(constant)):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    five, report = fit_whole(models[5], {"state_dict": trained}, channels="mean")
    stem = next(key for key in five if five[key].shape != trained[key].shape)
    for band in range(5):
        torch.testing.assert_close(five[stem][:, band], trained[stem].mean(1) * 3 / 5)
    assert "3 -> 5" in str(report)
    assert torch.equal(fit_whole(models[5], {"state_dict": five}, channels="mean")[0][stem], five[stem])


@pytest.mark.parametrize(
    ("damage", "key"),
    [
        (lambda path: tifffile.imwrite(path, bands(3), **SAMPLES), "3 bands"),
        (lambda path: tifffile.imwrite(path, np.where(bands() > 9, np.float32("nan"), 1), **SAMPLES), "NaN"),
        (lambda path: tifffile.imwrite(path, bands(), extratags=[(274, 3, 1, 6)], **SAMPLES), "Orientation is 6"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cut"),
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "cannot be read"),
        (lambda path: Image.new("RGB", (40, 24)).save(path, compression="tiff_lzw"), "imagecodecs"),
        (lambda path: tifffile.imwrite(path, np.zeros((2, 24, 40, 3), "uint8"), photometric="rgb"), "[H, W"),
        (lambda path: tifffile.imwrite(path, pages(), volumetric=True, compression="zlib"), "ImageDepth is 5"),
        (lambda path: path.write_bytes(ome(path).replace(b'SizeC="5"', b'SizeC="7"')), "2 of 7 planes"),
    ],
)
def test_files_that_cannot_be_used_are_said_before_a_training(damage, key, tmp_path):
    path = tmp_path / "image.tif"
    tifffile.imwrite(path, bands(), **SAMPLES)
    damage(path)
    cfg = load_config(SEGMENTOR, {"model.backbone.in_channels": 5})
    cfg.model.data_preprocessor.mean = cfg.model.data_preprocessor.std = [1.0] * 5
    error = images.examiner([dict(type="vitdense.LoadBands", bands=5)], cfg)(str(path), whole=False).error
    assert (key in error, "\n" in error) == (True, False)
    with pytest.raises(OptionError, match=r"image\.tif"):
        LoadBands(5).load(path)


def test_models_and_steps_that_do_not_fit_are_refused(tmp_path):
    cfg, steps = load_config(SEGMENTOR), [dict(type="vitdense.LoadBands", bands=5)]
    with pytest.raises(OptionError, match="in_channels: got 3"):
        images.examiner(steps, cfg)
    colours = [{**steps[0], "bands": 3}, dict(type="RandomApply", transforms=[dict(type="mmdet.Color")])]
    with pytest.raises(OptionError, match=r"Color.*may stay"):
        images.examiner(colours, cfg)
    for options, key in ((dict(bands=4), "drop_alpha"), (dict(bands=5, shown=(6, 1, 2)), "--bands")):
        with pytest.raises(OptionError, match=key):
            LoadBands(**options)
    step = LoadBands(4, drop_alpha=True)  # arrays may come without it, as those of proofs
    np.testing.assert_array_equal(step.load(bands(4)), step.load(bands(4)[..., :3]))
    paths = folder(tmp_path, 4)
    with pytest.raises(OptionError, match="--alpha drop"):
        about_data(paths)
    step, options, _ = about_data(paths, "rfdetr_nano_shapes", alpha="drop")
    assert (options["model.backbone.in_channels"], step["drop_alpha"]) == (3, True)
    assert options["model.data_preprocessor.type"] == "vitdense.DetBandsPreprocessor"


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_a_training_of_five_bands(suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder("data", suffix=suffix)
    places = "--images data/images/train --labels data/labels/train --val-images data/images/val"
    line = f"{places} --val-labels data/labels/val --classes low,high --image-suffix {suffix} --iters 2 --bands 5 1 2"
    said = succeed(["new", "segmentation", "--base", "upernet_swin_nano_camvid", *line.split(), "mine.py"])
    assert all(words in said for words in ("PhotoMetricDistortion", "5 bands of uint16")), said
    assert "train_0.png" in succeed(["check", "mine.py", "--pictures", "pictures"])
    succeed(["train", "mine.py", "--cfg-options", "train_dataloader.num_workers=0"])
    succeed(["predict", "work_dirs/mine", "data/images/val", "--out-dir", "out"])
    assert len(list(Path("out/labels").iterdir())) == 4
    model = vitdense.load("work_dirs/mine")
    result = model(bands())
    np.testing.assert_array_equal(result.semantic, model(f"data/images/val/0{suffix}").semantic)
    assert result.image.shape == (24, 40, 3)
    if suffix == ".npy":
        succeed(["export", "work_dirs/mine", "--to", "onnx", "--with-preprocessing", "--out", "mine.onnx"])
        assert "same" in succeed(["verify", "mine.onnx"])
        program = Program("mine.onnx")
        for kind in (np.uint8, np.float32):
            assert (program(bands().astype(kind)).semantic == result.semantic).mean() > 0.99
