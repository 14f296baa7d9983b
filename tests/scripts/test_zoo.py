"""docs/model-zoo.md is what scripts/zoo.py writes; README and the configs have the same figures."""

import ast
import re

import pytest
from conftest import HAS_RESEARCH, REPO, needs_research
from conftest import RECIPES as CONFIGS

import zoo  # a tool, which needs mm
from vitdense.families import MODELS

PAGE = zoo.PAGE.read_text()
RECIPES = {recipe["Name"]: recipe for recipe in zoo.recipes() if (REPO / recipe["Config"]).is_file() or HAS_RESEARCH}
of_each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe["Name"])


def shown_backbone(row):
    name, weights = zoo.parts(row)
    lines = re.findall(rf"^\| {name} \| (.*?) \| \d+ \| (.*) \|$", PAGE, re.M)
    found = [rest for names, rest in lines if names == "none" or f"`{weights}`" in names]
    assert len(found) == 1, f"{row.name}: run `make zoo`"
    return found[0].split(" | ")


def shown_recipe(recipe):
    (counts,) = re.findall(rf"^\| `{recipe['Name']}.py` \|.*\| (\S+ M, \S+ G) \| \S+ \|$", PAGE, re.M)
    return counts


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@needs_research
def test_tables_match_the_model_table_and_the_metafile():
    assert zoo.filled(PAGE, zoo.tables(shown_backbone, shown_recipe)) == PAGE, "run `make zoo`"


@pytest.mark.slow
def test_all_counts():
    assert zoo.filled(PAGE, zoo.tables(zoo.count_backbone, zoo.count_recipe)) == PAGE, "run `make zoo`"


@pytest.mark.docs
@pytest.mark.parametrize(
    "name",
    [
        *("swin_tiny.ms_in1k", "mvitv2_tiny.fb_in1k", "deit_tiny.fb_in1k"),
        *(pytest.param(name, marks=needs_research) for name in ("nat_mini.shi_in1k", "resnet18.tv_in1k")),
    ],
)
def test_counts_of_a_backbone(name):
    assert [*map(str, zoo.count_backbone(MODELS[name]))] == shown_backbone(MODELS[name])


@pytest.mark.docs
def test_counts_of_a_recipe():
    recipe = RECIPES["mask_rcnn_swin_t_coco"]
    assert zoo.count_recipe(recipe) == shown_recipe(recipe)


@needs_research
def test_every_recipe_is_in_the_metafile():
    found = [path for path in CONFIGS if path.stem.rpartition("_")[2] in zoo.SHAPES]
    found = [path for path in found if not {"demo", "extensions"} & {*path.parts}]
    found += [path for path in CONFIGS if path.stem == "shapes_nano"]  # in the wheel, with its weights
    assert {path.stem for path in found} == RECIPES.keys()
    assert {str(path.relative_to(REPO)) for path in found} == {recipe["Config"] for recipe in RECIPES.values()}


@of_each_recipe
def test_docstring_of_a_config_has_the_figures_of_the_page(recipe):
    text = " ".join(ast.get_docstring(ast.parse((REPO / recipe["Config"]).read_text())).split())
    assert set(numbers(zoo.figures(recipe))) <= set(numbers(text))
    printed = [recipe.get("Metadata", {}).get(key) for key in ("Parameters", "FLOPs")]
    for total in re.findall(r"([\d.]+) M,? (?:and )?([\d.]+) G", text):
        millions, billions = map(float, total)
        params, macs = numbers(shown_recipe(recipe))
        counted = millions == pytest.approx(params, abs=0.101) and billions == pytest.approx(macs, rel=1e-3)
        assert counted or [millions, billions] == printed


@pytest.mark.parametrize(
    ("page", "heading", "length"), [("configs/README.md", "Recipes", 73), ("README.md", "Models to begin with", 7)]
)
def test_tables_of_recipes_have_the_figures_of_the_page(page, heading, length):
    (table,) = re.findall(rf"^## {heading}\n\n(\|.*?)\n\n", (REPO / page).read_text(), re.M | re.S)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == length
    for configs, *_, published, params, flops in rows:
        totals = params, flops
        for i, name in enumerate(re.findall(r"`(\w+)\.py`", configs)):
            recipe = RECIPES[name]
            known = numbers(zoo.figures(recipe))
            assert numbers(published) == known[: len(numbers(published))], name
            assert ("none" in published) == ("Results" not in recipe or published.startswith("none /")), name
            printed = recipe.get("Metadata", {})
            for total, key, counted in zip(totals, ("Parameters", "FLOPs"), numbers(shown_recipe(recipe))):
                shown = numbers(total.split(", ")[min(i, total.count(", "))])[0]
                assert ("(" in total) == (key not in printed), name
                assert shown == printed[key] if key in printed else abs(shown - counted) <= 0.5, name
