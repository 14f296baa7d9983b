"""The card of a model or a recipe has the facts of the zoo's page, and what to type."""

import re

import pytest
from conftest import REPO

pytest.importorskip("mmdet")

from vitdense.__main__ import main
from vitdense.families import find_model
from vitdense.mm.cli import card

ZOO = (REPO / "docs/model-zoo.md").read_text(encoding="utf-8")


def zoo_row(first_cell):
    (row,) = re.findall(rf"(?m)^\| `?{first_cell}`? \|.*", ZOO)
    return row


def test_a_model(capsys):
    assert main(["card", "dinov3_small"]) == 0
    printed = capsys.readouterr().out
    row = find_model("dinov3_small")
    assert all(fact in printed for fact in (row.name, row.weights, row.licence, row.gate, "LVD-1689M"))
    assert "strides [16, 16, 16, 16]" in printed
    assert f'vitdense.create("{row.name}", pretrained=True)' in printed
    for number in re.findall(r"([\d.]+) [MG]\b", printed):
        assert number in zoo_row("dinov3_small")


@pytest.mark.parametrize(("name", "file"), [("rfdetr_s", "rfdetr_s_coco"), ("linear_dinov3_s_ade20k",) * 2])
def test_a_recipe(name, file):
    facts = dict(card.of_recipe(name))
    row = zoo_row(f"{file}.py")
    for key in ("parameters", "multiply-adds", "published"):
        assert re.search(r"\d+\.\d", facts[key])[0] in row
    assert facts["train"].startswith(f"vitdense train {file} --cfg-options data_root=")
    is_gated = "dinov3" in name
    assert ("consent is asked for at" in facts["starts from"]) == is_gated
    assert facts["load"] == f'vitdense.load("{f"work_dirs/{name}" if is_gated else name}")'


def test_no_such_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["card", "swin_tny"])
    assert re.search("there is no swin_tny.* or the model swin_tiny", capsys.readouterr().err)
