"""`vitdense.load`: a trained model in three lines of Python."""

import contextlib
import copy
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import mmcv
import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import vitdense
from vitdense.mm import precision
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_image
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor

pytestmark = pytest.mark.long
RECIPES = {"detector": "cascade_swin_nano_shapes", "segmentor": "upernet_swin_nano_shapes"}
FIELDS = ("boxes", "scores", "labels", "masks", "semantic")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for task, recipe in RECIPES.items():
        cfg, folder = load_config(recipe), tmp_path_factory.mktemp(task)
        torch.manual_seed(3)
        model = build_model(cfg)
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("fc_cls", "conv_logits", "conv_seg")):
                torch.nn.init.normal_(parameter, std=0.3)
        names = CLASSES if task == "detector" else ("background", *CLASSES)
        meta = {"dataset_meta": {"classes": names}}
        torch.save({"meta": meta, "state_dict": model.state_dict()}, folder / "iter_1.pth")
        cfg.dump(folder / f"{recipe}.py")
        found[task] = folder
    return found


@pytest.fixture(scope="module", params=RECIPES)
def model(folders, request):
    return vitdense.load(folders[request.param])


@pytest.fixture
def photos(tmp_path):
    paths = []
    for i, size in enumerate(((96, 128), (64, 160), (96, 128))):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(draw_image(np.random.default_rng(i), size)[0]).save(paths[-1])
    return paths


def assert_same(got, want):
    for name in FIELDS:
        x, y = getattr(got, name), getattr(want, name)
        assert (x is None) == (y is None)
        if x is not None:
            bound = 1e-3 if x.dtype.kind == "f" else 0
            np.testing.assert_allclose(x, y, rtol=bound / 10, atol=bound)


def test_the_kinds_of_images(model, photos):
    want = model(photos[0])
    assert len(want) > 1
    pixels = np.array(Image.open(photos[0]))
    kinds = (str(photos[0]), pixels, Image.open(photos[0]), torch.from_numpy(pixels).permute(2, 0, 1))
    for image in (*kinds, photos[0].read_bytes()):
        assert_same(model(image), want)
        np.testing.assert_array_equal(model(image).image, pixels)


def test_a_file_is_decoded_once(model, photos, monkeypatch):
    decoded, read = [], mmcv.imfrombytes
    monkeypatch.setattr(mmcv, "imfrombytes", lambda *args, **options: decoded.append(1) or read(*args, **options))
    monkeypatch.delattr(ImageFile.ImageFile, "load")
    model(photos)
    assert len(decoded) == len(photos)


def test_the_reader_of_the_config_counts(folders, photos, tmp_path):
    """The reader's orientation for all kinds of images; another reader is used only for files."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(photos[0]).save(tmp_path / "turned.png", exif=exif)
    cfg = load_config(folders["segmentor"])
    as_stored = {"color_type": "color_ignore_orientation", "to_float32": True}
    for options, shape in (({}, (128, 96)), (as_stored, (96, 128))):
        cfg.test_dataloader.dataset.pipeline[0].update(options)
        model = Predictor(cfg, str(folders["segmentor"] / "iter_1.pth"))
        for image in (tmp_path / "turned.png", Image.open(tmp_path / "turned.png")):
            assert model(image).semantic.shape == shape
    assert model.reader.inputs(photos[0], model.reader.pixels(photos[0]))["inputs"].dtype == torch.float32
    cfg.test_dataloader.dataset.pipeline[0] = dict(type="LoadImageFromFile", color_type="unchanged")
    model = Predictor(cfg, str(folders["segmentor"] / "iter_1.pth"))
    assert model(photos[0]).semantic.shape == (96, 128)
    with pytest.raises(ConfigError, match="expected a path"):
        model(Image.open(photos[0]))


def test_the_config_is_not_changed_and_keeps_the_heads_of_mm(folders):
    cfg = load_config(folders["detector"])
    cfg.model.backbone.init_cfg = dict(type="Pretrained", checkpoint="some.pth")
    before = copy.deepcopy(cfg.to_dict())
    model = Predictor(cfg, str(folders["detector"] / "iter_1.pth")).model
    assert cfg.to_dict() == before
    assert type(model.roi_head.mask_head[0]).__name__ == "RLEMaskHead"
    assert model.cfg.model.roi_head.mask_head.type == "FCNMaskHead"


def test_a_stream_keeps_no_image(model):
    """Neither those that are predicted nor those to come are in memory together."""
    alive = []

    def images():
        for i in range(7):
            image = np.full((32, 32, 3), i, np.uint8)
            alive.append(weakref.ref(image))
            yield image

    seen = 0
    for result in model.stream(images(), batch_size=2):
        assert (result.image == seen).all()
        del result
        assert sum(ref() is not None for ref in alive) <= 1  # the other one of the batch
        seen += 1
    assert seen == 7


@pytest.mark.parametrize(
    ("option", "values"), [("batch_size", (0, -1, 1.5, None)), ("score_thr", (1.5, -1, float("nan")))]
)
def test_options_out_of_range_are_refused_before_the_first_image(model, photos, option, values):
    for call in (model, model.stream):
        for value in values:
            with pytest.raises(ConfigError, match=f"{option}: got"):
                call(photos, **{option: value})


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (None, "images: got"),
        (3, "images: got"),
        ("gone.jpg", r"gone\.jpg does not exist"),
        (np.zeros((4, 4, 3)), r"image: got float64 \[4, 4, 3\], expected"),
    ],
)
def test_what_is_no_image(model, images, match):
    with pytest.raises(ConfigError, match=match):
        model(images)
    with pytest.raises(ConfigError, match="images: got"):
        model.stream(images)


def test_images_of_few_pixels_have_a_result_or_one_line(model):
    for size in ((1, 1), (1, 5000), (500, 1), (2, 3)):
        with contextlib.suppress(ConfigError):
            assert model(np.zeros((*size, 3), np.uint8)).image.shape == (*size, 3)


def test_several_images_of_any_sizes(model, photos):
    want = [model(photo) for photo in photos]
    for several in (model(photos, batch_size=2), model(iter(photos))):
        for got, one in zip(several, want, strict=True):
            assert_same(got, one)
    assert model([]) == []


def test_shapes_order_and_units(folders, photos):
    result = vitdense.load(folders["detector"], score_thr=0.1)(photos[1])
    assert (result.boxes.shape, result.masks.shape) == ((len(result), 4), (len(result), 64, 160))
    assert (np.diff(result.scores) <= 0).all()
    assert result.scores.min() >= 0.1
    assert (result.boxes[:, 2:] >= result.boxes[:, :2]).all()
    assert (result.boxes <= (160, 64, 160, 64)).all()
    assert result.semantic is None
    result = vitdense.load(folders["segmentor"])(photos[1])
    assert result.semantic.shape == (64, 160)
    assert result.boxes is None


@pytest.fixture(scope="module")
def panoptic(tmp_path_factory):
    counts = {"num_things_classes": 5, "num_stuff_classes": 3}
    cfg, folder = load_config("mask2former_swin_nano_shapes"), tmp_path_factory.mktemp("panoptic")
    cfg.merge_from_dict({"model.panoptic_head": counts, "model.panoptic_fusion_head": counts})
    test_cfg = dict(panoptic_on=True, instance_on=False, object_mask_thr=0.0, iou_thr=0.0, filter_low_score=True)
    cfg.model.test_cfg.update(test_cfg)
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type="LoadPanopticAnnotations"))
    torch.manual_seed(4)
    model = build_model(cfg)
    torch.nn.init.normal_(model.panoptic_head.cls_embed.weight)  # or every query has the same class
    torch.nn.init.normal_(model.panoptic_head.query_feat.weight, std=5)
    meta = {"dataset_meta": {"classes": CLASSES}}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, folder / "iter_1.pth")
    cfg.dump(folder / "panoptic.py")
    return folder


def test_segments_of_a_panoptic_model(panoptic, photos):
    model = vitdense.load(panoptic)
    result = model(photos[1])
    codes = model.samples([photos[1]], [model.reader.pixels(photos[1])])[0].pred_panoptic_seg.sem_seg[0].numpy()
    assert result.panoptic.shape == (64, 160)
    assert result.panoptic.dtype == np.int64
    assert len(result) == len(result.segments) > 1
    assert [one["id"] for one in result.segments] == [*range(1, len(result) + 1)]
    for one in result.segments:
        (code,) = np.unique(codes[result.panoptic == one["id"]])  # one of mmdet's
        assert ((result.panoptic == one["id"]) == (codes == code)).all()
        assert one["label"] == code % 1000
        assert one["is_thing"] == (one["label"] < 5) == (code >= 1000)
    assert {one["is_thing"] for one in result.segments} == {True, False}
    assert ((result.panoptic == 0) == (codes == len(CLASSES))).all()
    assert (result.panoptic == 0).any()
    assert result.boxes is None


def test_a_panoptic_model_with_objects(panoptic, photos, tmp_path):
    cfg = load_config(panoptic)
    cfg.model.test_cfg.instance_on = True
    cfg.dump(tmp_path / "both.py")
    result = vitdense.load(tmp_path / "both.py", panoptic, score_thr=0.0)(photos[0])
    assert len(result) == len(result.boxes) > 0
    np.testing.assert_array_equal(result.panoptic, vitdense.load(panoptic)(photos[0]).panoptic)


@pytest.mark.parametrize("tiles", [None, 64])
def test_any_threshold_of_a_call(folders, photos, tiles):
    model = vitdense.load(folders["detector"], tiles=tiles)
    every = model(photos[0], score_thr=0.0)
    threshold = float(np.median(every.scores))
    assert every.scores.min() < threshold
    assert len(every.masks) == len(every)
    for score_thr in (threshold, 0.0):
        loaded = vitdense.load(folders["detector"], score_thr=score_thr, tiles=tiles)
        assert_same(model(photos[0], score_thr=score_thr), loaded(photos[0]))


def test_threads_and_copies(model, photos):
    want = model(photos[0])
    with ThreadPoolExecutor(3) as pool:
        for got in pool.map(model, [photos[0]] * 4):
            assert_same(got, want)
    assert_same(pickle.loads(pickle.dumps(model))(photos[0]), want)


FORKED = """
import multiprocessing, sys, torch, vitdense
from vitdense.mm import predictor
torch.set_num_threads(2)
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.apply_async(torch.get_num_threads).get(120) == 2  # the user's own forks keep their threads
model = vitdense.load(sys.argv[1])
want = model(sys.argv[2])
with multiprocessing.get_context("fork").Pool(1) as pool:
    got = pool.apply_async(model, (sys.argv[2],)).get(120)
assert (got.semantic == want.semantic).all()
"""


def test_a_forked_process_predicts(folders, photos):
    """Not of this one: its other threads may hold a lock when it forks."""
    subprocess.run([sys.executable, "-c", FORKED, folders["segmentor"], photos[0]], check=True, timeout=240)


def test_tiles(folders, photos):
    """The image is one tile; the threshold leaves out the same as without tiles."""
    want = vitdense.load(folders["detector"], score_thr=0.2)(photos)
    for got, one in zip(vitdense.load(folders["detector"], score_thr=0.2, tiles=160)(photos), want, strict=True):
        assert_same(got, one)
    several = vitdense.load(folders["detector"], score_thr=0.2, tiles=64)(photos[0])
    assert several.masks.shape == (len(several), 96, 128)
    with pytest.raises(ConfigError, match="tiles: got a segmentor"):
        vitdense.load(folders["segmentor"], tiles=64)


def test_half_precision(folders, photos, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)  # any CPU computes in it, most slowly
    want = vitdense.load(folders["segmentor"])(photos[0])
    got = vitdense.load(folders["segmentor"], dtype=torch.bfloat16)(photos[0])
    assert 0.9 < (got.semantic == want.semantic).mean() < 1


def test_names_of_a_checkpoint_decide_where_the_annotation_file_is_on_another_machine(
    folders, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model = vitdense.load("cascade_swin_nano_coco", folders["detector"] / "iter_1.pth")
    assert tuple(model.names) == CLASSES
    model(photos[0])


def test_what_no_model_can_be_loaded_from(folders, tmp_path):
    with pytest.raises(ConfigError, match="expected a checkpoint"):
        vitdense.load("cascade_swin_nano_shapes")
    base, config = "_base_ = 'vitdense::configs/demo/upernet_swin_nano_shapes.py'\n", tmp_path / "mine.py"
    lines = {"model = dict(test_cfg=dict(mode='tiles'))": "slide", "test_dataloader = None": "no test_dataloader"}
    for line, named in lines.items():
        config.write_text(base + line)
        with pytest.raises(ConfigError, match=named):
            vitdense.load(config, folders["segmentor"] / "iter_1.pth")


def test_an_operating_point_in_a_checkpoint_of_an_older_version_is_not_silent(folders, tmp_path, monkeypatch):
    saved, said = torch.load(folders["detector"] / "iter_1.pth", weights_only=False), []
    saved["meta"]["operating_point"] = {"wish": "f1"}
    torch.save(saved, tmp_path / "older.pth")
    monkeypatch.setattr("vitdense.mm.predictor.print_log", lambda text, *_: said.append(text))
    vitdense.load(folders["detector"], tmp_path / "older.pth")
    assert any("--operating-point` finds it again" in text for text in said)
