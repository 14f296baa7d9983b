import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import PixelData
from mmseg.datasets import ADE20KDataset, BaseSegDataset
from mmseg.structures import SegDataSample
from PIL import Image

from vitdense.__main__ import main
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.errors import OptionError
from vitdense.mm.cli.predict import Detection, Panoptic, Segmentation, list_images, predict, raw_values
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.data.shapes import CLASSES, PALETTE, draw_image
from vitdense.mm.predictor import ImageReader, Predictor, load_model, read_pixels
from vitdense.results.result import Result

NAMES = ["background", *CLASSES]
COLOURS = [(0, 0, 0), *PALETTE]


@pytest.fixture
def cfg():
    cfg = load_config("upernet_swin_nano_shapes")
    cfg.model.backbone.arch = dict(embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
    cfg.model.decode_head.update(in_channels=[8, 16, 32, 64], channels=8, norm_cfg=dict(type="SyncBN"))
    cfg.model.auxiliary_head = None
    names = ("LoadImageFromFile", "Resize", "LoadAnnotations", "PackSegInputs")
    pipeline = [dict(type=name) for name in names]
    pipeline[1].update(scale=(128, 64), keep_ratio=True)
    dataset = dict(type="BaseSegDataset", pipeline=pipeline)
    cfg.test_dataloader = dict(dataset=dict(type="RepeatDataset", times=1, dataset=dataset))
    return cfg


@pytest.fixture
def checkpoint(cfg, tmp_path):
    state = build_model(cfg).state_dict()

    def save(**meta):
        torch.save({"meta": meta, "state_dict": state}, tmp_path / "model.pth")
        return str(tmp_path / "model.pth")

    return save


@pytest.fixture
def images(tmp_path):
    paths = [tmp_path / "wide.png", tmp_path / "tall.jpg"]
    for i, (path, size) in enumerate(zip(paths, [(64, 128), (120, 72)])):
        Image.fromarray(draw_image(np.random.default_rng(i), size)[0]).save(path)
    return paths


def test_segmentor_writes_pictures_with_a_legend_and_label_maps(cfg, checkpoint, images, tmp_path):
    out = tmp_path / "out"
    path = checkpoint(dataset_meta=dict(classes=NAMES, palette=COLOURS))
    assert predict(cfg, path, images, out) == out
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*.*"))
    assert files == ["labels/tall.png", "labels/wide.png", "tall.jpg", "wide.png"]
    for image in images:
        labels, picture, photo = (Image.open(p) for p in (out / f"labels/{image.stem}.png", out / image.name, image))
        assert (labels.mode, labels.size) == ("L", photo.size)
        assert len(labels.getcolors()) > 1
        assert picture.height >= photo.height
        assert picture.width > photo.width
    largest = np.bincount(np.array(Image.open(out / "labels/wide.png")).ravel()).argmax()
    legend = np.array(Image.open(out / "wide.png"))[:, 128:].reshape(-1, 3)
    assert (legend == COLOURS[largest]).all(1).sum() > 100


def test_checkpoint_meta_without_a_matching_palette(cfg, checkpoint, images, tmp_path):
    metas = [dict(dataset_meta=dict(classes=NAMES)), dict(CLASSES=NAMES, PALETTE=None)]
    metas.append(dict(dataset_meta=dict(classes=NAMES, palette=COLOURS[:2])))
    for i, meta in enumerate(metas):
        predict(cfg, checkpoint(**meta), images[:1], tmp_path / str(i))
    assert len({(tmp_path / str(i) / "wide.png").read_bytes() for i in range(3)}) == 1


def test_label_maps_of_more_than_256_classes_are_uint16(cfg, checkpoint, images, tmp_path):
    model = Predictor(cfg, checkpoint(dataset_meta=dict(classes=NAMES)))
    model.names, model.palette = [str(i) for i in range(300)], np.zeros((300, 3), np.uint8)
    segmentation = Segmentation(model, tmp_path / "many", images)
    labels = torch.full((1, 64, 128), 299)
    model.samples = lambda *_: [SegDataSample(pred_sem_seg=PixelData(data=labels))]
    segmentation.add(images[0])
    np.testing.assert_array_equal(np.array(Image.open(tmp_path / "many/labels/wide.png")), labels[0].numpy())


def test_label_maps_have_the_values_of_the_data_set():
    """ADE20K's own maps begin at 1; of a data set with fewer classes they keep the values of all."""
    every = ADE20KDataset.METAINFO["classes"]
    assert raw_values(every, ADE20KDataset, {}) == {name: i for i, name in enumerate(every, 1)}
    assert raw_values(every[5:7], ADE20KDataset, {}) == raw_values(every, ADE20KDataset, {})
    assert raw_values(every, ADE20KDataset, {"reduce_zero_label": False}) == {name: i for i, name in enumerate(every)}
    assert raw_values(("a", "b"), BaseSegDataset, {}) == {"a": 0, "b": 1}
    assert raw_values(("a", "b"), BaseSegDataset, {"reduce_zero_label": True}) == {"a": 1, "b": 2}


def test_images_of_one_stem(cfg, checkpoint, images, tmp_path):
    """Both label maps are written; not as a training set, whose labels are found by the stem."""
    images.append(images[0].with_suffix(".bmp"))
    Image.open(images[0]).save(images[2])
    path, out = checkpoint(dataset_meta=dict(classes=NAMES)), tmp_path / "out"
    predict(cfg, path, images, out)
    maps = {path.name: np.array(Image.open(path)) for path in (out / "labels").iterdir()}
    assert maps.keys() == {"wide.png.png", "wide.bmp.png", "tall.png"}
    np.testing.assert_array_equal(maps["wide.png.png"], maps["wide.bmp.png"])
    with pytest.raises(ConfigError, match=r"several images.*wide"):
        predict(cfg, path, images, tmp_path.parent / "set", as_training=True)


@pytest.mark.parametrize(("options", "values"), [({}, [0, 1]), ({"reduce_zero_label": True}, [1, 2])])
@pytest.mark.parametrize("raw", [(), ("sky", "wall", "cat", "dog")])
def test_label_maps_of_a_training_set_have_the_values_of_the_data(
    options, values, raw, cfg, checkpoint, tmp_path, capsys
):
    model = Predictor(cfg, checkpoint(dataset_meta=dict(classes=NAMES)))
    model.names, model.palette = ["cat", "dog"], np.zeros((2, 3), np.uint8)
    model.dataset = ConfigDict(type=BaseSegDataset, values=raw, **options)
    photo = tmp_path / "my photos/a.png"
    photo.parent.mkdir()
    Image.new("RGB", (2, 1)).save(photo)
    task = Segmentation(model, tmp_path / "set", [photo], photo.parent)
    model.samples = lambda *_: [SegDataSample(pred_sem_seg=PixelData(data=torch.tensor([[[0, 1]]])))]
    task.add(photo)
    task.finish()
    written = np.array(Image.open(tmp_path / "set/labels/a.png"))[0].tolist()
    names = (tmp_path / "set/classes.txt").read_text().split()
    assert [names[value - values[0]] for value in written] == model.names
    assert written == [value + raw.index("cat") if raw else value for value in values]
    said = capsys.readouterr().out
    assert ("--reduce-zero-label" in said) == bool(options)
    assert f"--images '{photo.parent}'" in said


def test_wrong_images_outputs_and_scope_are_errors(cfg, checkpoint, images, tmp_path):
    other = tmp_path / "other/wide.png"
    other.parent.mkdir()
    Image.open(images[0]).save(other)
    for wrong, out, named in (
        ([*images, other], "out", "several images.*wide"),
        (images[:2], ".", "--out-dir.*overwrite the images"),
        (images[:2], "../" + tmp_path.name, "--out-dir.*overwrite the images"),
        ([tmp_path / "none.jpg"], "out", r"none\.jpg"),
        (images[:2], "/proc/out", r"/proc/out/.*cannot be written.*--out-dir"),
        (images[:2], images[0], r"wide\.png/.*cannot be written.*--out-dir"),
    ):
        with pytest.raises(OptionError, match=named):
            predict(cfg, "not asked for", wrong, tmp_path / out)
    cfg.default_scope = "mmpretrain"
    with pytest.raises(ConfigError, match="default_scope='mmpretrain'"):
        predict(cfg, "not asked for", images[:2], tmp_path / "out")


def three_objects(scores):
    from mmengine.structures import InstanceData

    boxes = torch.tensor([[2.0, 2, 30, 30], [40, 4, 60, 50], [70, 20, 100, 60]])
    return InstanceData(bboxes=boxes, scores=torch.tensor(scores), labels=torch.tensor([0, 1, 1]))


def finds(found, score_thr, **dataset):
    from mmdet.structures import DetDataSample

    model = object.__new__(Predictor)
    model.model = SimpleNamespace(dataset_meta={})
    model.names, model.palette = ["a", "b"], np.array([(255, 0, 0), (0, 255, 0)], np.uint8)
    model.dataset, model.score_thr, model.operating_point, model.skeleton = dataset, score_thr, None, ()
    model.reader = ImageReader([dict(type="LoadImageFromFile")])
    model.samples = lambda *_: [DetDataSample(pred_instances=found)]
    return model


@pytest.mark.parametrize(("score_thr", "kept"), [(0.0, 3), (0.5, 2), (1.0, 0)])
def test_score_threshold_applies_to_pictures_and_json(score_thr, kept, images, tmp_path):
    found = three_objects([0.9, 0.5, 0.0])
    found.masks = torch.zeros(3, 64, 128, dtype=torch.bool)
    model = finds(found, score_thr)
    task = Detection(model, tmp_path / "out", images)
    task.add(images[0])
    results = json.loads(task.finish().read_text())
    assert [result["score"] for result in results] == found.scores[:kept].tolist()
    drawn = read_pixels(tmp_path / "out" / images[0].name)
    edges = drawn[[25, 40, 50], [2, 40, 70]]  # a pixel of each box
    assert (edges == model.palette[[0, 1, 1]]).all(1).tolist() == [i < kept for i in range(3)]


@pytest.fixture
def unreadable(images):
    folder = images[0].parent
    content = {"empty.jpg": b"", "text.png": b"not an image"}
    content |= {f"truncated_{path.name}": path.read_bytes()[: path.stat().st_size // 2] for path in images}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in content]


def test_unreadable_images_are_named_and_the_others_predicted(cfg, checkpoint, images, unreadable, tmp_path):
    out = tmp_path / "out"
    path = checkpoint(dataset_meta=dict(classes=NAMES, palette=COLOURS))
    with pytest.raises(ConfigError) as error:
        predict(cfg, path, [*unreadable, *images], out)
    assert sorted(p.name for p in out.glob("*.*")) == ["tall.jpg", "wide.png"]
    assert all(str(image) in str(error.value) for image in unreadable)
    assert not any(str(image) in str(error.value) for image in images)


def test_list_images(images, tmp_path, capsys):
    assert list_images([tmp_path]) == sorted(images)
    assert "not searched" not in capsys.readouterr().out
    upper, deep, bracket = tmp_path / "sub/UPPER.JPG", tmp_path / "sub/er/deep.jpeg", tmp_path / "a[1].jpg"
    deep.parent.mkdir(parents=True)
    for path in (upper, deep, bracket, tmp_path / "notes.txt"):
        path.write_bytes(b"")
    every = sorted([*images, bracket])
    assert list_images([images[1], tmp_path / "sub", tmp_path]) == [images[1], upper, bracket, images[0]]
    assert "1 folders in it are not searched: sub" in capsys.readouterr().out
    assert list_images([f"{tmp_path}/*.[jp]*"]) == every
    assert list_images([f"{tmp_path}/**/*.jpeg", str(bracket)]) == [deep, bracket]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("none", "folder .*none has no image"),
        ("*.txt", r"pattern .*\*\.txt"),
        ("gone", "gone does not exist"),
        *((name, r"is a video.*results\.md") for name in ("v.mp4", "v.MOV", "v.avi")),
    ],
)
def test_what_has_no_image_is_named(name, match, tmp_path):
    (tmp_path / "none").mkdir()
    for file in ("notes.txt", "v.mp4", "v.MOV", "v.avi"):
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(ConfigError, match=match):
        list_images([tmp_path / name])


def test_checkpoint_of_other_classes_names_both_numbers(cfg, checkpoint):
    number = cfg.model.decode_head.num_classes
    path = checkpoint(dataset_meta=dict(classes=list("abcdefghijkl")[: number + 1]))
    cfg.model.decode_head.num_classes = number + 2
    with pytest.raises(ConfigError, match=rf"trained on {number + 1} classes.* have {number + 2}\b"):
        load_model(cfg, path, "cpu")
    cfg.model.decode_head.num_classes = number + 1  # right, but the tensors are not
    with pytest.raises(CheckpointMismatchError, match="conv_seg"):
        load_model(cfg, path, "cpu")


def test_checkpoint_without_classes(cfg, checkpoint, capsys):
    """Names are the config's, if there are as many as outputs, or the given ones."""
    number = cfg.model.decode_head.num_classes
    with pytest.raises(ConfigError, match=r"meta\.dataset_meta.*--classes"):
        load_model(cfg, checkpoint(), "cpu")
    names = tuple("abcdefghijkl"[:number])
    for given in (names[1:], (*names, "more")):
        cfg.test_dataloader.dataset.dataset.metainfo = {"classes": given}
        with pytest.raises(ConfigError, match="--classes"):
            load_model(cfg, checkpoint(), "cpu")
    cfg.test_dataloader.dataset.dataset.metainfo = {"classes": names}
    assert load_model(cfg, checkpoint(), "cpu").dataset_meta["classes"] == names
    assert "0 a, 1 b" in capsys.readouterr().out
    other = [name.upper() for name in names]
    assert load_model(cfg, checkpoint(), "cpu", classes=other).dataset_meta["classes"] == tuple(other)
    named = checkpoint(dataset_meta=dict(classes=names))
    assert load_model(cfg, named, "cpu", classes=list(names)).dataset_meta["classes"] == names
    with pytest.raises(ConfigError, match="classes: got"):
        load_model(cfg, named, "cpu", classes=other)


def test_label_maps_as_a_training_set(cfg, checkpoint, images, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        (photos / split).mkdir(parents=True)
        Image.open(images[0]).save(photos / split / "a.jpg")
    path, out = checkpoint(dataset_meta=dict(classes=NAMES, palette=COLOURS)), tmp_path / "set"
    found = [photos / "train/a.jpg", photos / "val/a.jpg"]
    with pytest.raises(ConfigError, match="--as-dataset"):
        predict(cfg, path, found, photos / "set", as_training=True)
    predict(cfg, path, found, out, as_training=True)
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*.*"))
    assert files == ["classes.txt", "labels/train/a.png", "labels/val/a.png"]
    monkeypatch.chdir(tmp_path)
    line = "new segmentation --images photos/train --labels set/labels/train --val-images photos/val"
    line += " --val-labels set/labels/val --classes set/classes.txt --base upernet_swin_nano_camvid mine.py"
    assert main(line.split()) == 0


class OneResult(Predictor):
    def __call__(self, *_):
        return self.result


def test_segments_have_the_ids_of_the_data(images, tmp_path):
    truth = {"categories": [{"id": 40, "name": "b"}, {"id": 10, "name": "a"}]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    model = object.__new__(OneResult)
    model.names, model.dataset = ["a", "b"], {"ann_file": str(tmp_path / "truth.json")}
    model.model = SimpleNamespace(panoptic_fusion_head=SimpleNamespace(num_things_classes=1), dataset_meta={})
    segments = [{"id": 1, "label": 1, "score": None, "is_thing": False}]
    image = np.zeros((2, 3, 3), np.uint8)
    model.result = Result(panoptic=np.ones((2, 3), int), segments=segments, image=image, names=["a", "b"])
    task = Panoptic(model, tmp_path / "out", images)
    task.add(images[0])
    written = json.loads(task.finish().read_text())
    assert [one["category_id"] for one in written["annotations"][0]["segments_info"]] == [40]
    assert written["categories"] == [{"id": 10, "name": "a", "isthing": 1}, {"id": 40, "name": "b", "isthing": 0}]


@pytest.mark.parametrize("with_masks", [True, False])
def test_detections_as_a_training_set(with_masks, images, tmp_path, monkeypatch):
    photos = [tmp_path / "photos" / name for name in ("wide.png", "sub/wide.png")]
    for photo in photos:
        photo.parent.mkdir(exist_ok=True)
        Image.open(images[0]).save(photo)
    categories = [{"id": 20, "name": "b"}, {"id": 10, "name": "a"}]
    truth = {"images": [{"id": 7, "file_name": "wide.png"}], "annotations": [], "categories": categories}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    dataset = {"ann_file": str(tmp_path / "truth.json"), "data_prefix": {"img": str(tmp_path / "photos")}}
    found = three_objects([0.9, 0.5, 0.4])
    if with_masks:
        found.masks = torch.zeros(3, 64, 128, dtype=torch.bool)
        for mask, (left, top, right, bottom) in zip(found.masks, found.bboxes.int().tolist()):
            mask[top:bottom, left:right] = True
    model = finds(found, 0.5, **dataset)
    task = Detection(model, tmp_path / "set", photos, tmp_path / "photos")
    for photo in photos:
        task.add(photo)
    content = json.loads(task.finish().read_text())
    assert [image["file_name"] for image in content["images"]] == ["wide.png", "sub/wide.png"]
    ids = [(one["image_id"], one["category_id"]) for one in content["annotations"]]
    assert ids == [(1, 10), (1, 20), (2, 10), (2, 20)]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["annotations.json"]
    monkeypatch.chdir(tmp_path)
    line = "new detection --train set/annotations.json --val set/annotations.json --images photos mine.py"
    base = "cascade_swin_nano_coco" if with_masks else "cascade_rcnn_swin_nano_shapes"
    assert main([*line.split(), "--base", base, *([] if with_masks else ["--boxes"])]) == 0
