"""Sheets of what detectors and segmentors see."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import HAS_RESEARCH, needs_research
from PIL import Image

import vitdense
from vitdense.extensions.show import maps as show
from vitdense.extensions.show.pictures import heat
from vitdense.extensions.show.sheet import _attention, _marked, contact_sheet, sheet_rows
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError

pytestmark = pytest.mark.long
SIZE = (96, 160)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)).save(path)
    return path


def model_of(config, repo, **options):
    cfg = load_config(config, options)
    model = build_model(cfg).eval()
    model.cfg = cfg
    return model


CASES = {
    "cascade_swin_nano_shapes": [
        "image",
        *(f"{part}: {what}" for part in ("backbone", "neck") for what in ("principal", "channel")),
        *(f"attention: stages.{stage}.blocks.{block}.attn" for stage in range(4) for block in range(2)),
        "effective receptive field",
        *(f"position bias: stages.{stage}.blocks.1.attn.bias" for stage in range(4)),
    ],
    "eomt_nano_shapes": [
        "image",
        "backbone: principal",
        "backbone: channel",
        *(f"attention: blocks.{block}.attn" for block in range(4)),
        "effective receptive field",
    ],
}
if HAS_RESEARCH:  # attention of none
    CASES["upernet_swin_mixer_nano_camvid"] = [row for row in CASES["eomt_nano_shapes"] if "attention" not in row]


@pytest.mark.parametrize("config", CASES)
def test_rows_of_a_sheet(config, image, repo):
    rows = sheet_rows(model_of(config, repo), image)
    assert len(rows) == len(CASES[config])
    whole = rows[0][1][0][1]
    for (title, pictures), want in zip(rows, CASES[config]):
        assert title.startswith(want)
        if not title.startswith("position bias"):
            assert {picture.shape for _, picture in pictures} == {whole.shape}


def test_layers_are_those_that_run_or_one_of_them_by_name(image, repo):
    options = {"model.backbone.out_indices": (0, 1), "model.neck.in_channels": [32, 64]}
    model = model_of("cascade_swin_nano_shapes", repo, **options)
    titles = [title for title, _ in sheet_rows(model, image)]
    want = [f"attention: stages.{stage}.blocks.{block}.attn" for stage in range(2) for block in range(2)]
    assert [title for title in titles if title.startswith("attention")] == want
    biases = [f"position bias: stages.{stage}.blocks.1.attn.bias" for stage in range(2)]
    assert [title for title in titles if title.startswith("position")] == biases
    titles = [title for title, _ in sheet_rows(model, image, layers=["stages.1.blocks.0.attn"])]
    assert [title for title in titles if title.startswith("attention")] == want[2:3]
    names = r"stages.0.blocks.0.attn, .*stages.1.blocks.1.attn$"
    for absent in ("stages.2.blocks.0.attn", "stages.9"):
        with pytest.raises(ConfigError, match=f"layer: got '{absent}', expected one of {names}"):
            sheet_rows(model, image, layers=[absent])


@pytest.mark.parametrize(
    ("arch", "signed"), [pytest.param("cait_xxs24", True, marks=needs_research), ("deit_tiny", False)]
)
def test_pictures_of_signed_weights_say_so(arch, signed):
    """CaiT mixes heads after the softmax: weights of either sign. Their size is drawn."""
    model = vitdense.create(arch, out_indices=(0,))
    layer, query = show.attention_layers(model)["blocks.0.attn"], (0.3, 0.7)
    pixels, image = np.zeros((48, 64, 3), np.uint8), torch.randn(1, 3, 48, 64)
    weights = show.attention(model, image, layer, query).weights.numpy()
    assert (weights.min() < 0) == signed
    rows = _attention(SimpleNamespace(extract_feat=model), pixels, image, layer, query)
    assert {", absolute weights" in name for name, _ in rows} == {signed}
    maps = [np.abs(weights).mean(0), *np.abs(weights)]
    for (_, picture), size in zip(rows, maps, strict=True):
        np.testing.assert_array_equal(picture, _marked(heat(pixels, size, (16, 16)), query))


def test_backbone_of_another_project(image, repo):
    backbone = {"_delete_": True, "type": "mmdet.ResNet", "depth": 18}
    options = {"model.backbone": backbone, "model.neck.in_channels": [64, 128, 256, 512]}
    (*_, (title, fields)) = sheet_rows(model_of("cascade_swin_nano_shapes", repo, **options), image)
    assert title == "effective receptive field"
    assert [caption for caption, _ in fields] == [f"map {i}, stride {4 << i}" for i in range(4)]


@pytest.mark.parametrize("name", ["none.jpg", "text.jpg"])
def test_image_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(ConfigError, match=name):
        contact_sheet(None, "not asked for", tmp_path / name, tmp_path / "sheet.png")


@pytest.mark.parametrize(("name", "kind"), [("sheet", "PNG"), ("sheet.jpg", "JPEG")])
def test_the_sheet_is_a_picture_of_its_suffix(image, repo, tmp_path, name, kind):
    model = model_of("cascade_swin_nano_shapes", repo)
    meta = {"dataset_meta": {"classes": model.cfg.get("classes", ("a",) * model.roi_head.bbox_head[0].num_classes)}}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, tmp_path / "model.pth")
    out = contact_sheet(model.cfg, str(tmp_path / "model.pth"), image, tmp_path / name)
    assert out == tmp_path / name
    sheet = Image.open(out)
    assert sheet.format == kind
    assert sheet.size[0] == 10 + 7 * 250  # seven pictures: the mean and six heads
