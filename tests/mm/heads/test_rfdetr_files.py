"""RF-DETR by name, from its authors' files, and on one's own classes."""

import argparse
import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from rfdetr_drawn import weights
from test_rfdetr import make, shapes_of

import vitdense
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.whole_models import fit_whole, trained_classes
from vitdense.mm import predictor
from vitdense.mm.checks import dry_step
from vitdense.mm.cli.new import main as new
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.model_index import find_published, list_published, trained_of
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor
from vitdense.models.vit.rfdetr import NO_CLASS

pytestmark = pytest.mark.long


def nano(classes=91):
    state = weights({key: shape for key, shape in shapes_of("Nano").items() if 0 not in shape})
    return state | {key: value[:classes] for key, value in state.items() if "class_embed" in key}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rfdetr") / "checkpoint_best_regular.pth"
    torch.save({"model": weights(shapes_of("Small")), "args": argparse.Namespace(num_classes=90, lr=1e-4)}, path)
    return path


def test_a_model_by_its_name(file, monkeypatch):
    read = predictor.read_checkpoint
    monkeypatch.setattr(predictor, "read_checkpoint", lambda name, *args: read(str(file), *args))
    model = vitdense.load("rfdetr_s", score_thr=0)
    of_tools = Predictor(*trained_of(argparse.Namespace(config="rfdetr_s", checkpoint=None, cfg_options={})))
    assert of_tools.names == model.names
    assert len(model.names) == 80
    assert model.names[79] == "toothbrush"
    rows = torch.load(file, weights_only=False)["model"]["class_embed.bias"]
    assert model.model.bbox_head.classes.bias.equal(rows[[i for i in range(91) if i not in NO_CLASS]])
    assert rows[90] == model.model.bbox_head.classes.bias[79]  # toothbrush is category 90
    found = model(np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8))
    assert found.boxes.shape == (300, 4)
    assert (found.boxes[:, 2:] <= (120, 90)).all()


def test_every_size_has_its_own_file():
    rows = [find_published(name) for name in list_published() if name.startswith("rfdetr_")]
    assert len({row.address for row in rows}) == len(rows) == 11
    for row in rows:
        head = load_config(row.config).model.bbox_head
        assert bool(head.get("with_masks")) == ("seg" in row.name)


@pytest.mark.parametrize(("rows", "classes"), [(91, 80), (91, 90), (91, 91), (4, 3)])
def test_rows_of_classes(rows, classes):
    state = nano(classes=rows)
    for key in (key for key in state if "class_embed" in key):
        state[key].T.copy_(torch.arange(float(rows)))  # the number of the row
    found, _ = fit_whole(make("Nano", num_classes=classes), state)
    kept = found["bbox_head.classes.bias"].tolist()
    assert kept == ([i for i in range(91) if i not in NO_CLASS] if classes == 80 else list(range(classes)))


@pytest.mark.parametrize(
    ("names", "rows"),
    [(["cat", "dog", "bird"], [0, 1, 2]), (["", "cat", "dog", "bird"], [1, 2, 3]), (["cat", "dog"], [0, 1])],
)
@pytest.mark.parametrize("kind", [dict, argparse.Namespace])
def test_outputs_follow_the_names_in_files_of_the_authors_trainer(kind, names, rows):
    state = nano(classes=5)
    saved = {"model": state, "args": kind(class_names=names)}
    found, report = fit_whole(make("Nano", num_classes=len(rows)), saved)
    assert found["bbox_head.classes.bias"].equal(state["class_embed.bias"][rows])
    assert found["bbox_head.selections.3.classes.bias"].equal(state["transformer.enc_out_class_embed.3.bias"][rows])
    assert list(trained_classes(saved).values()) == [name for name in names if name]
    assert f"{rows[-1]} {names[-1]}; of no class" in str(report)


def test_more_names_than_outputs_are_refused():
    with pytest.raises(CheckpointMismatchError, match="class_names"):
        fit_whole(make("Nano"), {"model": nano(), "args": {"class_names": list("ab") * 50}})


@pytest.mark.parametrize(("names", "number"), [("rfdetr", 400), ("own", 100), ("own", 200), ("own", 500)])
def test_more_and_fewer_queries(names, number):
    """The first queries of every group are taken, or all are repeated in order; the report says so."""
    if names == "own":
        cfg = load_config("rfdetr_nano_shapes").model
        state, (groups, had) = build_model(Config({"model": cfg})).state_dict(), (2, 200)
        cfg.bbox_head.num_queries = number
        model, key = build_model(Config({"model": cfg})), "bbox_head.queries.weight"
    else:
        model, (groups, had), key = make("Nano", num_queries=number), (13, 300), "query_feat.weight"
        state = nano()
    found, report = fit_whole(model, state)
    old = state[key].unflatten(0, (groups, had))
    assert found["bbox_head.queries.weight"].unflatten(0, (groups, number)).equal(old.repeat(1, 3, 1)[:, :number])
    resized = {"bbox_head.queries.weight", "bbox_head.references.weight"} if number != had else set()
    assert set(report.resized) == resized
    assert (f"{had} queries" in str(report)) == (str(number) in report.queries) == (number != had)
    with pytest.raises(CheckpointMismatchError, match="queries"):  # not so many groups
        fit_whole(model, state | {key: state[key][1:]})


@pytest.fixture
def own(file, tmp_path, monkeypatch):
    def write(densest, *options):
        monkeypatch.chdir(tmp_path)
        images = [{"id": i, "file_name": f"{i}.png", "width": 160, "height": 120} for i in range(3)]
        for i in range(3):
            cv2.imwrite(f"{i}.png", np.full((120, 160, 3), 40 * i, np.uint8))
        one = {"image_id": 1, "area": 600, "iscrowd": 0}
        boxes = enumerate([5 + k % 40, 7 + k % 30, 30, 20] for k in range(densest))
        items = [{"id": k + 1, "category_id": k % 3 + 5, "bbox": box, **one} for k, box in boxes]
        categories = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "bird"), 5)]
        content = {"images": images, "annotations": items, "categories": categories}
        (tmp_path / "a.json").write_text(json.dumps(content))
        data = ["--train", "a.json", "--val", "a.json", "--images", ".", "--method", "rfdetr"]
        assert new(["detection", "own.py", *data, *options, "--weights", str(file), "--epochs", "1"]) == 0
        return load_config("own.py")

    return write


def test_queries_and_size_of_own_data(own, file, capsys, monkeypatch):
    monkeypatch.setattr(dry_step, "find", lambda *_: ())  # a step of 310 objects and 700 queries takes long
    cfg = own(310)
    assert "310 objects" in capsys.readouterr().out
    assert cfg.model.bbox_head.num_queries == cfg.model.test_cfg.max_per_img == 700  # of 300
    assert cfg.settings.image_size == 448  # of 192 by the size of the images: 28 x 28 positions
    assert cfg.load_from == str(file)


@pytest.mark.slow
def test_own_data_of_three_classes_keep_everything_but_the_class_heads(own, file):
    cfg = own(3)
    cfg.train_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    cfg.val_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.optim_wrapper.optimizer.update(lr=0.0, weight_decay=0.0)
    runner = Runner.from_cfg(cfg)
    runner.train()
    state, saved = runner.model.state_dict(), torch.load(file, weights_only=False)["model"]
    assert state["bbox_head.classes.weight"].shape == (3, 256)
    for ours, theirs in (
        ("bbox_head.queries.weight", "query_feat.weight"),
        ("bbox_head.selections.12.proj.weight", "transformer.enc_output.12.weight"),
        ("backbone.blocks.5.mlp.fc1.weight", "backbone.0.encoder.encoder.encoder.layer.5.mlp.fc1.weight"),
    ):
        assert state[ours].equal(saved[theirs]), ours


def test_masks_and_other_methods(own):
    with pytest.raises(SystemExit):
        own(3, "--masks", "--boxes")
    with pytest.raises(SystemExit):
        own(3, "--backbone", "swin_tiny")  # of vitdense.extensions.swap, else unknown


@pytest.mark.parametrize("names", [["cat", "dog", "bird"], ["", "cat", "dog", "bird"]])
@pytest.mark.parametrize("named", ["by the file", "by the option"])
def test_a_file_of_the_authors_trainer_predicts(names, named, tmp_path, capsys):
    """Heads get as many outputs as there are names, whatever the config has."""
    state, of_file = nano(classes=5), named == "by the file"
    torch.save({"model": state, **({"args": {"class_names": names}} if of_file else {})}, tmp_path / "own.pth")
    model = vitdense.load("rfdetr_n_coco", tmp_path / "own.pth", classes=None if of_file else names)
    assert list(model.names) == ["cat", "dog", "bird"]
    first = names.index("cat")
    assert model.model.bbox_head.classes.bias.equal(state["class_embed.bias"][first : first + 3])
    assert f"{first} cat" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--classes" if not of_file else "classes: got"):
        vitdense.load("rfdetr_n_coco", tmp_path / "own.pth", classes=["a"] if of_file else None)
