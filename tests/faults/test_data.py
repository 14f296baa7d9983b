"""Damaged annotation files and images through whole commands: `check` and training refuse the same, in one line. What a
file may have wrong in its fields is in the table of tests/mm/data/test_kinds.py."""

import json

import pytest

from vitdense.mm.checks.report import report
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_dataset
from vitdense.mm.errors import ConfigError
from vitdense.mm.train import launch

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
    return draw_dataset(tmp_path / "shapes", num_train=4, num_val=1, image_size=(64, 64))


def config(data):
    cfg = load_config("cascade_swin_nano_shapes", {"data_root": f"{data}/"}, str(data.parent / "work"))
    for split in ("train", "val", "test"):
        loader, images = cfg[f"{split}_dataloader"], split.replace("test", "val")
        loader.update(batch_size=1, num_workers=0, persistent_workers=False)
        loader.dataset = dict(
            type="CocoDataset",
            ann_file=f"{data}/annotations/instances_{images}.json",
            data_prefix=dict(img=f"{data}/{images}/"),
            metainfo=dict(classes=CLASSES),
            pipeline=loader.dataset.pipeline,
        )
    cfg.train_cfg.update(max_iters=2, val_interval=2)
    cfg.param_scheduler = []
    cfg.default_hooks.checkpoint.update(save_best=None)
    return cfg


def refused(data, capsys):
    """Whether `vitdense check` refuses the data, and what a training says; None where it trains."""
    try:
        is_refused = report(config(data)) != 0
    except ConfigError:
        is_refused = True
    capsys.readouterr()
    try:
        launch.train(config(data), overwrite=True)
    except ConfigError as error:
        return is_refused, str(error)
    return is_refused, None


def huge_mask(text):
    content = json.loads(text)
    content["annotations"][0]["segmentation"] = {"size": [10**6, 10**6], "counts": [10**12]}
    return json.dumps(content).encode()


TEXTS = {
    "RLE of 10^12": huge_mask,
    "gzip": lambda text: b"\x1f\x8b" + text.encode(),
    "cut": lambda text: text[: text.index('"annotations"') + 99].encode(),
    "two documents": lambda text: 2 * text.encode(),
    "10^5 digits": lambda text: text.replace('"width": 64', '"width": ' + "6" * 10**5, 1).encode(),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_check_and_training_refuse_a_file(data, fault, capsys):
    path = data / "annotations/instances_train.json"
    path.write_bytes(TEXTS[fault](path.read_text()))
    checked, trained = refused(data, capsys)
    assert checked
    assert trained is not None


def test_check_and_training_accept_sound_data(data, capsys):
    assert refused(data, capsys) == (False, None)


IMAGES = {
    "absent": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("gone.jpg")),
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
}


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("fault", IMAGES)
def test_images(data, split, fault, capsys):
    for path in sorted((data / split).iterdir()):
        IMAGES[fault](path)
    checked, trained = refused(data, capsys)
    assert checked
    assert split in (trained or "")
