"""Damaged annotation files and images through the real commands: `check` and training refuse the same, in one line."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmdet")
from vitdense.mm.checks.report import report
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_dataset
from vitdense.mm.errors import ConfigError
from vitdense.mm.train import launch

pytestmark = pytest.mark.slow
SIZE = 64


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("drawn") / "shapes"
    draw_dataset(root, num_train=4, num_val=1, image_size=(SIZE, SIZE))
    return root


@pytest.fixture
def data(drawn, tmp_path):
    shutil.copytree(drawn, tmp_path / "shapes")
    return tmp_path / "shapes"


def config(data):
    cfg = load_config("cascade_swin_nano_shapes", {"data_root": f"{data}/"}, str(data.parent / "work"))
    for split in ("train", "val", "test"):
        loader = cfg[f"{split}_dataloader"]
        loader.update(batch_size=1, num_workers=0, persistent_workers=False)
        loader.dataset = dict(
            type="CocoDataset",
            ann_file=f"{data}/annotations/instances_{split.replace('test', 'val')}.json",
            data_prefix=dict(img=f"{data}/{split.replace('test', 'val')}/"),
            metainfo=dict(classes=CLASSES),
            pipeline=loader.dataset.pipeline,
        )
    cfg.train_cfg.update(max_iters=2, val_interval=2)
    cfg.param_scheduler = []
    cfg.default_hooks.checkpoint.update(save_best=None)
    return cfg


def outcome(run):
    """Run a command as a user does."""
    try:
        run()
    except ConfigError as error:
        return f"error: {error}"
    return "success"


def of(kind, index=0, **changes):
    def change(content):
        for key, value in changes.items():
            item = content[kind][index]
            if value is ...:
                del item[key]
            else:
                item[key] = value(item) if callable(value) else value

    return change


def of_all(kind, **changes):
    def change(content):
        for i in range(len(content[kind])):
            of(kind, i, **changes)(content)

    return change


def put(kind, value):
    return lambda content: content.__setitem__(kind, value)


def mask(value):
    return of("annotations", segmentation=value)


def box(value):
    return of("annotations", bbox=value)


NAN = float("nan")
SQUARE = [1, 1, 9, 1, 9, 9, 1, 9]
ERRORS = {  # some of those of tests/mm/data/test_kinds.py, through whole commands
    "image_id of no image": of("annotations", image_id=10**6),
    "boxes from 0 to 1": of_all("annotations", bbox=[0.1, 0.1, 0.5, 0.5]),
    "polygon NaN": mask([[NAN, *SQUARE[1:]]]),
    "RLE of 10^12": mask({"size": [10**6, 10**6], "counts": [10**12]}),
    "crowds only": of_all("annotations", iscrowd=1),
    "no annotations": put("annotations", []),
    "width and height swapped": of_all("images", width=SIZE + 8, height=SIZE - 8),
}
FINE = {
    "nothing": lambda content: None,
    "polygon outside": of("annotations", 0, segmentation=[[x + SIZE for x in SQUARE]]),
    "file_name twice": lambda content: content["images"][1].__setitem__("file_name", content["images"][0]["file_name"]),
    "box outside": box([2 * SIZE, 2, 9, 9]),
}
TEXTS = {
    "gzip": lambda text: b"\x1f\x8b" + text.encode(),
    "cut": lambda text: text[: text.index('"annotations"') + 99].encode(),
    "two documents": lambda text: 2 * text.encode(),
    "10^5 digits": lambda text: text.replace('"width": 64', '"width": ' + "6" * 10**5, 1).encode(),
}


def outcomes(data, capsys):
    """Of `vitdense check` and of a training."""
    statuses = []
    checked = outcome(lambda: statuses.append(report(config(data))))
    printed = "".join(capsys.readouterr())
    checked = f"error: {printed}" if any(statuses) else checked
    return checked, outcome(lambda: launch.train(config(data), overwrite=True))


@pytest.mark.parametrize("fault", [*ERRORS, *TEXTS])
def test_check_and_training_refuse(data, fault, capsys):
    path = data / "annotations/instances_train.json"
    if fault in ERRORS:
        content = json.loads(path.read_text())
        ERRORS[fault](content)
        path.write_text(json.dumps(content))
    else:
        path.write_bytes(TEXTS[fault](path.read_text()))
    checked, trained = outcomes(data, capsys)
    assert (checked[:5], trained[:5]) == ("error", "error"), (checked, trained)


@pytest.mark.parametrize("change", FINE)
def test_check_and_training_accept(data, change, capsys):
    path = data / "annotations/instances_train.json"
    content = json.loads(path.read_text())
    FINE[change](content)
    path.write_text(json.dumps(content))
    assert outcomes(data, capsys) == ("success", "success")


IMAGES = {
    "absent": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "no image": lambda path: path.write_bytes(b"not an image"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("gone.jpg")),
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "another size": lambda path: Image.fromarray(np.zeros((80, 64, 3), np.uint8)).save(path),
}


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("fault", IMAGES)
def test_images(data, split, fault, capsys):
    for path in sorted((data / split).iterdir()):
        IMAGES[fault](path)
    checked, trained = outcomes(data, capsys)
    assert checked.startswith("error"), checked
    assert trained.startswith("error"), trained
    assert split in trained
