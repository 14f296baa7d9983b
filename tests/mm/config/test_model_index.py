import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import vitdense
from vitdense.mm import predictor
from vitdense.mm.config import model_index as published
from vitdense.mm.config.base import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.config.model_index import find_published, list_published
from vitdense.mm.config.query import drop_weights
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.errors import ConfigError

MMDET = "mask-rcnn_swin-t-p4-w7_fpn_1x_coco"


def test_names_of_all_indices():
    names = list_published()
    for name in (MMDET, "cascade_swin_b_coco", "swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512"):
        assert names.count(name) == 1
    assert len(names) > 500


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("rfdetr_seg_n", "rfdetr_seg_n_coco"),
        ("upernet_swin_b", "upernet_swin_b_ade20k"),
        ("eomt_dinov2_s_640", "eomt_dinov2_s_640_coco_panoptic"),
        ("mask-rcnn_swin-t-p4-w7_fpn_1x", MMDET),
        *((part, None) for part in ("mask-rcnn_swin-t", "rfdetr", "rfdetr_", "fdetr_s", "rfdetr_s_co", "rfdetr_.")),
    ],
)
def test_a_name_without_its_data_set_and_no_other_part(short, name):
    assert getattr(find_published(short), "name", None) == name


@pytest.mark.parametrize(
    ("name", "config", "figure"),
    [
        (MMDET, f"mmdet::swin/{MMDET}.py", {"box AP": 42.7, "mask AP": 39.3}),
        ("cascade_vit_b_coco", "cascade_vit_b_coco", {"box AP": 54.0, "mask AP": 46.7}),
        ("mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco", None, {"box AP": 47.7, "mask AP": 44.7}),
    ],
)
def test_a_name_has_config_file_licence_and_figures(name, config, figure):
    row = find_published(name)
    assert config in (row.config, None)
    assert find_config(row.config).is_file()
    assert row.address.startswith("https://")
    assert row.licence.startswith("Apache-2.0")
    assert row.figures == figure


def test_every_own_row_has_a_licence_and_a_recipe():
    rows = [row for row in published._read("Weights") if "::" not in row.config]
    assert len(rows) >= 27
    assert {row.licence.split(" ")[0] for row in rows} == {"Apache-2.0", "MIT"}
    assert all(find_config(row.config).stem == row.name for row in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "meta", "classes"),
    [
        (MMDET, {"CLASSES": tuple(map(str, range(80)))}, ("0", "1")),  # as mmdet 2 saved it
        ("upernet_swin_t_ade20k", {}, ("wall", "building")),
    ],
)
def test_load_by_name(name, meta, classes, monkeypatch):
    cfg = load_config(find_published(name).config)
    drop_weights(cfg.model)
    saved, asked = {"meta": meta, "state_dict": build_model(cfg).state_dict()}, []
    monkeypatch.setattr(predictor, "read_checkpoint", lambda file, *_: asked.append(file) or copy.copy(saved))
    model = vitdense.load(name)
    assert asked == [find_published(name).address]
    assert tuple(model.names[:2]) == classes
    assert all(torch.equal(value, saved["state_dict"][key]) for key, value in model.model.state_dict().items())


@pytest.mark.long
def test_the_model_of_the_package_finds_shapes(monkeypatch):
    """Its weights are in the package, in half precision."""
    monkeypatch.setattr("vitdense.checkpoint.read.download", None)
    model, row = vitdense.load("shapes_nano"), find_published("shapes_nano")
    assert Path(row.address).stat().st_size <= 3e6
    assert (row.licence, row.figures) == ("Apache-2.0", {"box AP": 46.0, "mask AP": 42.5})
    right = truths = 0
    for i in range(6):
        pixels, objects = draw_image(np.random.default_rng((0, 1, i)), (256, 256))
        result = model(pixels)
        truths += len(objects)
        for one in objects:
            masks = (result.mask(j) for j in range(len(result)) if result.labels[j] == one.label)
            right += any((mask & one.mask).sum() > 0.5 * (mask | one.mask).sum() for mask in masks)
    assert right > truths / 2


@pytest.mark.long
def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no_such_model"):
        vitdense.load("no_such_model")
    with pytest.raises(ConfigError, match="rfdetr_s_coco"):
        vitdense.load("rfdetr_s_coc")
    (tmp_path / "pets").mkdir()
    with pytest.raises(ConfigError, match=r"no .*pest; did you mean .*pets\?"):
        vitdense.load(tmp_path / "pest")
    index = tmp_path / "metafile.yml"
    index.write_text(
        "Models:\n  - {Name: plain, Weights: 'http://host/a.pth', Results: [], Paper: {License: MIT}}\n"
        "  - {Name: none}\n"
        "  - {Name: two_coco, Weights: 'https://host/d.pth', Paper: {License: MIT}}\n"
        "  - {Name: two_ade20k, Weights: 'https://host/e.pth', Paper: {License: MIT}}\n"
    )
    monkeypatch.setattr(published, "INDEX", index)
    with pytest.raises(ConfigError, match=r"http://host/a\.pth, expected an address https://"):
        vitdense.load("plain")
    with pytest.raises(ConfigError, match="none"):
        vitdense.load("none")
    with pytest.raises(ConfigError, match="one published model, got two_coco, two_ade20k"):
        vitdense.load("two")
    assert find_published("two_ade20k").address == "https://host/e.pth"
