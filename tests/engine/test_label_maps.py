import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.engine.config import ConfigError
from vitdense.engine.label_maps import MAPS_READ
from vitdense.engine.preflight import check


def segmentation(root, num_classes, prefixes=("images", "maps"), split="train", head=None, **dataset):
    """A config of a segmentor with labels of its own below `root`, as small as the checks allow."""
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


@pytest.fixture
def maps(tmp_path):
    """Writes label maps, each of the given raw values, with an image beside each."""
    pytest.importorskip("mmseg")

    def write(*contents, dtype=np.uint8):
        for i, content in enumerate(contents):
            for folder, pixels in (("images", np.zeros((4, 4, 3), np.uint8)), ("maps", np.asarray(content, dtype))):
                (tmp_path / folder).mkdir(exist_ok=True)
                pixels = pixels if pixels.ndim > 1 else np.tile(pixels, (4, 4))
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
        ([0, 1, 2], 3, {"reduce_zero_label": True, "split": "val"}),  # it may well lack the last class
        (range(300), 2, {"pipeline": []}),  # does not load labels
    ],
)
def test_label_maps_that_fit(maps, values, num_classes, options):
    cfg = segmentation(maps(values, dtype=np.uint16 if max(values) > 255 else np.uint8), num_classes, **options)
    check(cfg, ("train", "val"))


@pytest.mark.parametrize(
    ("values", "num_classes", "options", "fault", "fits"),
    [
        (
            range(151),
            150,
            {},
            "hold 150, which no class",
            ["reduce_zero_label=True", "num_classes=151", "ignore_index"],
        ),
        (range(13), 11, {}, "hold 11-12, which no class", ["num_classes=13"]),
        ([*range(14), 255], 11, {"reduce_zero_label": True}, "hold 12-13, which no class", ["num_classes=13"]),
        ([*range(11), 11], 11, {}, "hold 11, which", ["reduce_zero_label=True", "num_classes=12", "ignore_index=11"]),
        ([0, 1, 200], 2, {}, "hold 200, which", ["ignore_index=200"]),
        ([0, 1, 128, 200], 2, {}, "hold 128, 200, which", []),
        ([0, 1, 255], 2, {"head": {"ignore_index": 9}}, "hold 255, which", ["ignore_index=255"]),
        ([0, 1, 300], 45, {}, "hold 300, which .*8 bits alone", []),  # 44 in the 8 bits that mmseg reads
        (range(11), 11, {"reduce_zero_label": True}, "start at class 0", ["reduce_zero_label=False"]),
        ([0, 1, 255], 2, {"reduce_zero_label": True, "split": "val"}, "start at class 0", ["reduce_zero_label=False"]),
        ([255], 11, {}, "have no pixel with a label", []),
        ([0], 11, {"reduce_zero_label": True}, "have no pixel with a label", ["reduce_zero_label=False"]),
        ([0, 255], 2, {}, "hold 0 and 255 alone.* write 1 in place of 255", []),
    ],
)
def test_label_maps_that_do_not_fit_name_the_settings_that_do(maps, values, num_classes, options, fault, fits):
    root = maps(values, dtype=np.uint16 if max(values) > 255 else np.uint8)
    cfg = segmentation(root, num_classes, **options)
    with pytest.raises(ConfigError, match=f"label maps {fault}.* in 1 of 1 maps.*0000.png") as raised:
        check(cfg, ("train", "val"))
    _, found, advice = str(raised.value).partition("What fits: ")
    assert bool(found) == bool(fits)
    parts = advice.split("; or ") if found else []
    assert len(parts) == len(fits)
    assert all(part.startswith(fit) for part, fit in zip(parts, fits))
    assert found or "No setting fits" in str(raised.value)


def test_the_histogram_shows_runs_with_their_shares(maps):
    with pytest.raises(ConfigError, match=r"raw values 0 \(50 %\), 3-4 \(50 %\) in 2 of 2 maps, 4 first in .*0001.png"):
        check(segmentation(maps([0, 0, 0, 3], [0, 3, 4, 4]), 4), ("train",))
    with pytest.raises(ConfigError, match=r"0 \(.*, 14 \(.*, \.\.\. 4 runs \.\.\., 24 \(.*, 38 \("):
        check(segmentation(maps(range(0, 40, 2), [0]), 4), ("train",))


def test_the_loader_of_label_maps_is_found_inside_other_steps(maps):
    cfg = segmentation(maps([0, 1, 2]), 2)
    steps = cfg.train_dataloader.dataset.pipeline
    cfg.train_dataloader.dataset.pipeline = [steps[0], dict(type="TestTimeAug", transforms=[[steps[1]], [steps[2]]])]
    with pytest.raises(ConfigError, match="hold 2, which no class"):
        check(cfg, ("train",))


def test_a_rare_last_class_is_looked_for_in_more_maps(maps):
    contents = [[0, 1, 2] for _ in range(2 * MAPS_READ)]
    contents[1] = [0, 1, 2, 3]  # not among those read at first
    check(segmentation(maps(*contents), 3, reduce_zero_label=True), ("train",))


def test_label_maps_of_one_channel_only(maps):
    colours = np.random.default_rng(0).integers(0, 255, (4, 4, 3))
    with pytest.raises(
        ConfigError, match=r"0000.png has shape \(4, 4, 3\) and type uint8.*index of each pixel's colour"
    ):
        check(segmentation(maps(colours), 3), ("train",))
    with pytest.raises(ConfigError, match="Its channels are alike: save the first alone"):
        check(segmentation(maps(np.ones((4, 4, 3))), 3), ("train",))


def test_label_maps_that_are_not_there(maps):
    root = maps([0, 1], [0, 1])
    with pytest.raises(ConfigError, match=r"0000.jpg has no label map .*0000_labels.png; seg_map_suffix"):
        check(segmentation(root, 2, seg_map_suffix="_labels.png"), ("train",))
    with pytest.raises(ConfigError, match="the data set is empty"):
        check(segmentation(root, 2, img_suffix=".jpeg"), ("train",))
    (root / "maps/0001.png").write_bytes(b"nothing")
    check(segmentation(root, 2, indices=1), ("train",))
    with pytest.raises(ConfigError, match=r"0001.png cannot be read \(UnidentifiedImageError"):
        check(segmentation(root, 2), ("train",))


def test_label_maps_of_a_list_and_of_a_choice_of_classes(maps):
    root = maps([0, 1], [150], [0, 149])
    (root / "good.txt").write_text("0000\n0002\n")
    check(segmentation(root, 150, ann_file="good.txt"), ("train",))
    ade = dict(type="ADE20KDataset", ann_file="good.txt")
    check(segmentation(root, 2, **ade, metainfo={"classes": ["wall", "rug"]}), ("train",))  # others are ignored
    with pytest.raises(ConfigError, match="no pixel with a label"):
        check(segmentation(root, 2, **ade, metainfo={"classes": ["sky", "rug"]}), ("train",))


ADE = {"type": "ADE20KDataset", "metainfo": None}


@pytest.mark.parametrize("split", ["training", "validation"])
def test_ade20k_counts_from_one(shared_data, split):
    pytest.importorskip("mmseg")
    root, prefixes = shared_data / "ade/ADEChallengeData2016", (f"images/{split}", f"annotations/{split}")
    check(segmentation(root, 150, prefixes, **ADE), ("train",))
    with pytest.raises(ConfigError, match=r"have 0 for unlabelled pixels.*What fits: reduce_zero_label=True") as raised:
        check(segmentation(root, 150, prefixes, **ADE, reduce_zero_label=False), ("train",))
    assert "num_classes=151" not in str(raised.value)  # the type of the data set has its classes


@pytest.mark.parametrize("split", ["train", "val"])
def test_camvid_counts_from_zero(shared_data, split):
    pytest.importorskip("mmseg")
    root, prefixes = shared_data / "camvid", (f"images/{split}", f"annotations/{split}")
    check(segmentation(root, 11, prefixes, split=split), ("train", "val"))
    with pytest.raises(ConfigError, match=r"start at class 0.*What fits: reduce_zero_label=False"):
        check(segmentation(root, 11, prefixes, split=split, reduce_zero_label=True), ("train", "val"))
