import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.mm.checks import data
from vitdense.mm.data.faults import refuse
from vitdense.mm.errors import ConfigError


def segmentation(root, num_classes, prefixes=("images", "maps"), split="train", head=None, **dataset):
    """A minimal config of a segmentor whose data set is in `root`."""
    dataset = {
        "type": "BaseSegDataset",
        "data_root": str(root),
        "data_prefix": {"img_path": prefixes[0], "seg_map_path": prefixes[1]},
        "metainfo": {"classes": [f"class {i}" for i in range(num_classes)]},
        "pipeline": [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations"}, {"type": "PackSegInputs"}],
        **dataset,
    }
    return Config(
        {
            "default_scope": "mmseg",
            f"{split}_dataloader": {"dataset": {key: value for key, value in dataset.items() if value is not None}},
            "model": {"decode_head": {"num_classes": num_classes, **(head or {})}},
        }
    )


def check(cfg, splits):
    """The checks of the data alone: the configs here have nothing to train with."""
    refuse((*data.files(cfg, splits), *data.label_maps(cfg, splits)))


@pytest.fixture
def maps(tmp_path):
    """Writes label maps of the given raw values, and an image for each."""
    pytest.importorskip("mmseg")

    def write(*contents, dtype=np.uint8):
        for i, content in enumerate(contents):
            labels = np.asarray(content, dtype)
            labels = labels if labels.ndim > 1 else np.tile(labels, (4, 4))
            for folder, pixels in (("images", np.zeros((*labels.shape[:2], 3), np.uint8)), ("maps", labels)):
                (tmp_path / folder).mkdir(exist_ok=True)
                Image.fromarray(pixels).save(tmp_path / folder / f"{i:04}.{'jpg' if folder == 'images' else 'png'}")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("values", "num_classes", "options"),
    [
        (range(11), 11, {}),
        ([*range(11), 255], 11, {}),
        ([0, 3], 11, {}),  # not every class in the sample
        (range(151), 150, {"reduce_zero_label": True}),
        ([0, 2, 255], 3, {"reduce_zero_label": True}),
        ([*range(11), 11], 11, {"head": {"ignore_index": 11}}),
        ([0, 1], 1, {"head": {"out_channels": 1}}),
        ([0, 1, 255], 2, {}),
        ([0, 1, 2], 3, {"reduce_zero_label": True, "split": "val"}),  # a validation set may lack the last class
        (range(300), 2, {"pipeline": []}),  # does not load labels
    ],
)
def test_label_maps_that_fit(maps, values, num_classes, options):
    cfg = segmentation(maps(values, dtype=np.uint16 if max(values) > 255 else np.uint8), num_classes, **options)
    check(cfg, ("train", "val"))


@pytest.mark.parametrize(
    ("values", "num_classes", "options", "outside"),
    [
        (range(151), 150, {}, "150"),
        (range(13), 11, {}, "11, 12"),
        ([*range(14), 255], 11, {"reduce_zero_label": True}, "12, 13"),
        ([0, 1, 255], 2, {"head": {"ignore_index": 9}}, "255"),
        ([0, 1, 300], 45, {}, "300"),  # 44 in the 8 bits that mmseg reads
    ],
)
def test_values_without_class_are_refused(maps, values, num_classes, options, outside):
    root = maps([0, 1], values, dtype=np.uint16 if max(values) > 255 else np.uint8)
    with pytest.raises(ConfigError, match=rf"hold {outside} \(first in .*0001.png.* 0 \(.*num_classes={num_classes},"):
        check(segmentation(root, num_classes, **options), ("train", "val"))


@pytest.mark.parametrize(
    ("values", "num_classes", "options"),
    [(range(11), 11, {}), ([0, 1, 255], 2, {"split": "val"})],
)
def test_reduce_zero_label_that_ignores_a_class_is_refused(maps, values, num_classes, options):
    with pytest.raises(ConfigError, match=r"Got raw values 0 \(.*reduce_zero_label=False"):
        check(segmentation(maps(values), num_classes, reduce_zero_label=True, **options), ("train", "val"))


@pytest.mark.parametrize(
    ("values", "fix"),
    [([0, 1, 2, 7], r"hold 7 .*Got raw values 0 \("), ([0, 1, 2, 6], r"Got raw values 0 \(.*reduce_zero_label=True")],
)
def test_unlabelled_pixels_read_as_class_0_are_refused(maps, values, fix):
    root, loveda = maps(values), dict(type="LoveDADataset", metainfo=None, img_suffix=".jpg")  # classes 1 to 7
    check(segmentation(root, 7, **loveda), ("train",))
    with pytest.raises(ConfigError, match=fix):
        check(segmentation(root, 7, **loveda, reduce_zero_label=False), ("train",))


def test_already_reduced_labels_pass_without_reduce_zero_label(maps):
    root = maps([0, 1, 6, 255])
    loveda = dict(type="LoveDADataset", metainfo=None, img_suffix=".jpg", reduce_zero_label=False)
    check(segmentation(root, 7, **loveda), ("train",))


def test_histogram_has_the_share_of_each_value(maps):
    with pytest.raises(ConfigError, match=r"raw values 0 \(50 %\), 3 \(25 %\), 4 \(25 %\) in 2 of 2 maps"):
        check(segmentation(maps([0, 0, 0, 3], [0, 3, 4, 4]), 4), ("train",))
    with pytest.raises(ConfigError, match=r" 0 \(.*, 38 \(.*, \.\.\. 20 more"):
        check(segmentation(maps(range(0, 80, 2), [0]), 4), ("train",))


@pytest.mark.parametrize("pixels", [np.random.default_rng(0).integers(0, 255, (4, 4, 3)), np.ones((4, 4, 3))])
def test_label_maps_of_three_channels_name_the_file_and_its_shape(maps, pixels):
    with pytest.raises(ConfigError, match=r"\(4, 4, 3\).*0000.png"):
        check(segmentation(maps(pixels), 3), ("train",))


def test_missing_label_map_names_the_file_and_the_setting(maps):
    with pytest.raises(ConfigError, match=r"seg_map_suffix.*0000_labels.png"):
        check(segmentation(maps([0, 1]), 2, seg_map_suffix="_labels.png"), ("train",))


def test_data_set_without_images_names_the_setting(maps):
    with pytest.raises(ConfigError, match="img_suffix"):
        check(segmentation(maps([0, 1]), 2, img_suffix=".jpeg"), ("train",))


@pytest.mark.parametrize("decoder", ["pillow", "cv2"])
def test_unreadable_label_map_names_the_file(maps, decoder):
    root = maps([0, 1], [0, 1])
    (root / "maps/0001.png").write_bytes(b"nothing")
    check(segmentation(root, 2, indices=1), ("train",))
    cfg = segmentation(root, 2)
    cfg.train_dataloader.dataset.pipeline[1].imdecode_backend = decoder
    with pytest.raises(ConfigError, match=r"cannot be read .*0001.png"):
        check(cfg, ("train",))


def test_label_maps_of_a_file_list_and_of_a_subset_of_classes(maps):
    root = maps([0, 1], [150], [0, 149])
    (root / "good.txt").write_text("0000\n0002\n")
    check(segmentation(root, 150, ann_file="good.txt"), ("train",))
    ade = dict(type="ADE20KDataset", ann_file="good.txt")
    check(segmentation(root, 2, **ade, metainfo={"classes": ["wall", "rug"]}), ("train",))  # others are ignored


ADE = {"type": "ADE20KDataset", "metainfo": None}


@pytest.mark.parametrize("split", ["training", "validation"])
def test_ade20k_maps_need_reduce_zero_label(shared_data, split):
    pytest.importorskip("mmseg")
    root, prefixes = shared_data / "ade/ADEChallengeData2016", (f"images/{split}", f"annotations/{split}")
    check(segmentation(root, 150, prefixes, **ADE), ("train",))
    with pytest.raises(ConfigError, match="reduce_zero_label=True"):
        check(segmentation(root, 150, prefixes, **ADE, reduce_zero_label=False), ("train",))


@pytest.mark.parametrize("split", ["train", "val"])
def test_camvid_maps_refuse_reduce_zero_label(shared_data, split):
    pytest.importorskip("mmseg")
    root, prefixes = shared_data / "camvid", (f"images/{split}", f"annotations/{split}")
    check(segmentation(root, 11, prefixes, split=split), ("train", "val"))
    with pytest.raises(ConfigError, match="reduce_zero_label=False"):
        check(segmentation(root, 11, prefixes, split=split, reduce_zero_label=True), ("train", "val"))


@pytest.mark.parametrize("size", [(8, 4), (4, 4)])
def test_label_maps_of_another_size_than_their_image_are_refused(maps, size):
    root = maps(np.zeros((4, 8)))
    check(segmentation(root, 2), ("train",))
    Image.new("L", (size[1], size[0])).save(root / "maps/0000.png")
    with pytest.raises(
        ConfigError, match=rf"another size than their image: .*0000\.png \({size[1]}x{size[0]}, the image 8x4"
    ):
        check(segmentation(root, 2), ("train",))
