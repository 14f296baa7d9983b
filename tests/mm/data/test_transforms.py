import io
import random
import re

import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.dataset import BaseDataset
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch.utils.data import DataLoader

from vitdense.mm.config.base import Asked
from vitdense.mm.config.load import load_config
from vitdense.mm.config.passes import built
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.data import transforms
from vitdense.mm.data.detection import Mosaic
from vitdense.mm.data.segmentation import LoadAnnotations
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.data.transforms import LoadImage
from vitdense.mm.errors import ConfigError


def encoded(kind):
    file = io.BytesIO()
    Image.fromarray(draw_image(np.random.default_rng(0), (64, 128))[0]).save(file, kind)
    return file.getvalue()


@pytest.fixture
def write(tmp_path):
    def write(content, name="image.file"):
        (tmp_path / name).write_bytes(content)
        return {"img_path": str(tmp_path / name)}

    return write


class Files(BaseDataset):
    def __init__(self, samples, pipeline):
        self.samples = samples
        super().__init__(pipeline=pipeline)

    def load_data_list(self):
        return list(self.samples)  # mmengine empties it


def test_floating_point_pixels(write):
    got, want = (load(to_float32=True).transform(write(encoded("PNG"))) for load in (LoadImage, LoadImageFromFile))
    assert got.keys() == want.keys()
    assert got["img"].dtype == np.float32
    np.testing.assert_array_equal(got["img"], want["img"])


UNREADABLE = {"truncated JPEG": encoded("JPEG")[:-200], "truncated PNG": encoded("PNG")[:-200], "text": b"no image"}


@pytest.mark.parametrize("what", [*UNREADABLE, "missing"])
def test_unreadable_image_is_an_error_that_names_the_file_and_the_option(what, write):
    sample = {"img_path": "image.file"} if what == "missing" else write(UNREADABLE[what])
    with pytest.raises(ConfigError, match=r"image\.file.*skip_unreadable=True"):
        LoadImage().transform(sample)


def test_unreadable_images_are_skipped_and_counted_by_option(write, monkeypatch):
    lines = []
    monkeypatch.setattr(transforms, "print_log", lambda line, *_: lines.append(line))
    samples = [write(content, name) for name, content in {**UNREADABLE, "intact.jpg": encoded("JPEG")}.items()]
    files = Files(samples, [{"type": "vitdense.LoadImage", "skip_unreadable": True}])
    for i in range(len(files)):
        assert files[i]["img_path"].endswith("intact.jpg")
    assert len(lines) >= len(UNREADABLE)
    assert all(f"skipped, {n} so far" in line for n, line in enumerate(lines, 1))
    assert all(any(name in line for line in lines) for name in UNREADABLE)


def test_unreadable_image_in_a_data_worker_is_one_message(write, capsys):
    loader = DataLoader(Files([write(UNREADABLE["text"])], [LoadImage()]), num_workers=1)
    with pytest.raises(SystemExit), exit_on_user_error():
        next(iter(loader))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: image .*image\.file", line)


def test_a_label_map_that_cannot_be_read_is_named(write):
    load = LoadAnnotations()
    path = write(encoded("PNG")[:60], "labels.png")["img_path"]
    with pytest.raises(ConfigError, match=r"label map .*labels\.png cannot be read"):
        load({"seg_map_path": path, "reduce_zero_label": False, "seg_fields": []})


def test_the_readers_are_in_the_config():
    """The saved config has mm's readers for test data, because mm's inferencers look for them."""
    cfg = load_config("mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py")
    own, of_mm = ["vitdense.LoadImage", "vitdense.LoadAnnotations"], ["LoadImageFromFile", "LoadAnnotations"]
    for config, split, want in ((cfg, "train", own), (cfg, "test", of_mm), (built(cfg, Asked()), "test", own)):
        steps = [step.type for step in config[f"{split}_dataloader"].dataset.pipeline]
        assert [name for name in steps if "Load" in name] == want


def test_a_reader_named_by_the_user_is_kept():
    cfg = load_config("cascade_swin_nano_shapes", {"train_dataloader.dataset.pipeline.1.type": "LoadImageFromFile"})
    assert cfg.train_dataloader.dataset.pipeline[1].type == "LoadImageFromFile"


def test_an_image_of_another_size_than_annotated_is_refused(write):
    image = write(encoded("PNG"))
    assert LoadImage().transform({**image, "width": 128, "height": 64})["img_shape"] == (64, 128)
    with pytest.raises(ConfigError, match=r"is 128x64, but annotated as 64x128"):
        LoadImage().transform({**image, "width": 64, "height": 128})
    assert LoadImage(skip_unreadable=True).transform({**image, "width": 64, "height": 128}) is None


def mosaic_part(draw, size, label):
    (height, width), masks, boxes = size, np.zeros((2, *size), np.uint8), []
    for i, mask in enumerate(masks):
        x, y = (int(draw.integers(2, side // 3)) + i * side // 2 for side in (width, height))
        boxes.append([x, y, x + width // 5, y + height // 5])
        mask[y : y + height // 5, x : x + width // 5] = 1
    image = np.where(masks.any(0)[..., None], 200, 20).repeat(3, -1).astype(np.uint8)
    instances = {"gt_bboxes": HorizontalBoxes(boxes, dtype=torch.float32), "gt_masks": BitmapMasks(masks, *size)}
    labels = {"gt_bboxes_labels": np.array([label, label + 1]), "gt_ignore_flags": np.zeros(2, bool)}
    return {"img": image, "img_shape": size, **instances, **labels}


@pytest.mark.parametrize("seed", range(4))
def test_mosaic_has_the_masks_of_its_objects(seed):
    draw = np.random.default_rng(seed)
    random.seed(seed)
    sizes = [(60, 80), (80, 60), (50, 50), (40, 90)]
    first, *others = (mosaic_part(draw, size, 10 * i) for i, size in enumerate(sizes))
    step = Mosaic(img_scale=(64, 96))
    mixed = step({**first, "mix_results": others})
    masks = mixed["gt_masks"].masks  # [objects, H, W]
    assert len(masks) == len(mixed["gt_bboxes"]) == len(mixed["gt_bboxes_labels"]) > 2
    differ = (mixed["img"][..., 0] > 150) & (mixed["img"][..., 0] != step.pad_val) != masks.any(0)
    assert differ.mean() < 0.02  # edges, which images have interpolated
    for mask, box in zip(masks, mixed["gt_bboxes"].tensor.tolist()):
        if not mask.any():  # at the edge
            assert min(box[2] - box[0], box[3] - box[1]) < 2
            continue
        rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
        found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert np.allclose(found, box, atol=2.5), (found, box)
    assert set(mixed["gt_bboxes_labels"]) <= {label + 10 * i for i in range(4) for label in (0, 1)}


@pytest.mark.long
def test_mosaic_draws_only_images_of_the_data_set():
    random.seed(0)
    assert {i for _ in range(40) for i in Mosaic(img_scale=(64, 96)).get_indexes(range(2))} == {0, 1}


@pytest.mark.parametrize("size", [(40, 90), (90, 40), (64, 64), (30, 97)])
def test_an_image_fits_a_rectangle_whichever_way_it_lies(size):
    image = {"img": np.zeros((*size, 3), np.uint8)}
    h, w = TRANSFORMS.build(dict(type="vitdense.FitImage", scale=(96, 48)))(dict(image))["img"].shape[:2]
    assert max(h / 48, w / 96) == 1
    assert abs(h / w - size[0] / size[1]) < 1 / min(h, w)
    ours = TRANSFORMS.build(dict(type="vitdense.FitImage", scale=(96, 96)))(dict(image))
    theirs = TRANSFORMS.build(dict(type="mmdet.Resize", scale=(96, 96), keep_ratio=True))(dict(image))
    assert ours["scale_factor"] == theirs["scale_factor"]


@pytest.mark.parametrize(("smallest", "largest"), [((30, 30), (60, 60)), ((40, 20), (80, 50))])
def test_random_crops_of_rectangles(smallest, largest):
    """With squares the crops of mmdet's range; with a rectangle between it and a larger one."""
    image = {"img": np.arange(100 * 90 * 3, dtype=np.int64).reshape(100, 90, 3)}
    step = dict(type="vitdense.CropBetween", smallest=smallest, crop_size=largest)
    range_of_both = dict(type="mmdet.RandomCrop", crop_type="absolute_range", crop_size=(smallest[0], largest[0]))
    for seed in range(20):
        crops = []
        for one in (step, range_of_both):
            np.random.seed(seed)  # noqa: NPY002 -- mmdet's generator
            crops.append(TRANSFORMS.build(one)(dict(image))["img"])
        h, w = crops[0].shape[:2]
        assert smallest[0] <= w <= largest[0]
        assert smallest[1] <= h <= largest[1]
        assert smallest[0] != smallest[1] or np.array_equal(*crops)
