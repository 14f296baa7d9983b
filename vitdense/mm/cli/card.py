"""`python -m vitdense card`: what a user must know of a model or a recipe, from the tables of the model zoo."""

import ast
from collections.abc import Sequence

import torch

from vitdense.families import MODELS, Model, backbone_class, find_model, near_names
from vitdense.files import read_text
from vitdense.flops import count, macs, num_params
from vitdense.mm.config.arguments import Parser
from vitdense.mm.config.build import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.config.model_index import SHAPES, fetched, find_published, recipes, shape_of
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.errors import ConfigError

PATHS = {"coco": "/path/to/coco", "ade20k": "/path/to/ADEChallengeData2016", "panoptic": "/path/to/coco"}


def main(argv: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = Parser(prog="python -m vitdense card", description=__doc__)
    parser.add_argument("name", help="of a model, such as swin_tiny; of a recipe, or of a published model of mmdet")
    name = parser.parse_args(argv).name
    with exit_on_user_error():
        rows = of_model(row) if (row := find_model(name)) else of_recipe(name)
        width = max(len(key) for key, _ in rows)
        print(*(f"{key:{width}}  {value}" for key, value in rows), sep="\n")
    return 0


def of_model(row: Model) -> list[tuple[str, str]]:
    """The card of a backbone: facts by their names."""
    with torch.device("meta"), torch.no_grad():
        model = backbone_class(row.family)(row.arch, **row.options).eval()
        sizes = ((row.image_size,) * 2, SHAPES["coco"])
        costs = [(size, macs(lambda size=size: model(torch.empty(1, 3, *size)))[1] / 1e9) for size in sizes]
    others = [other.name for other in MODELS.values() if other.model == row.model and other is not row]
    weights = [
        ("weights", row.weights),
        ("trained on", row.trained_on),
        ("licence", row.licence),
        ("consent", f"asked for at {row.gate}" if row.gate else "none is asked for"),
    ]
    init = f"init_cfg=dict(type='Pretrained', checkpoint='{row.name}')"
    return [
        ("model", f"{row.name}, vitdense.{row.family}"),
        *(weights if row.weights else [("weights", "none were published")]),
        ("images", f"RGB, 0 to 1, then mean {row.mean}, std {row.std}; pretraining at {row.image_size} pixels"),
        ("maps", f"channels {list(model.out_channels)}, strides {list(model.out_strides)}"),
        ("parameters", f"{num_params(model) / 1e6:.1f} M"),
        ("multiply-adds", ", ".join(f"{cost:.1f} G at {h}x{w}" for (h, w), cost in costs)),
        ("in Python", f'vitdense.create("{row.name}"{", pretrained=True" if row.weights else ""})'),
        (
            "in a config",
            f"backbone=dict(type='vitdense.{row.family}', arch='{row.arch}'{', ' + init if row.weights else ''})",
        ),
        *([("other weights", ", ".join(others))] if others else []),
    ]


def of_recipe(name: str) -> list[tuple[str, str]]:
    """The card of a recipe, or of a model that mmdet or mmseg published."""
    published = find_published(name)
    try:
        path = find_config(published.config if published else name)
    except ConfigError as error:
        near = near_names(name)
        raise ConfigError(f"{error}; or the model {near[0]}?" if near else str(error)) from error
    cfg = load_config(path)
    recipe = next((row for row in recipes() if row["Name"] == path.stem), {"Name": path.stem})
    with torch.device("meta"):
        model = build_model(cfg).eval()
    height, width = shape_of(recipe)
    parts = count(model, (height, width))
    totals, by = recipe.get("Metadata", {}), recipe.get("Paper", {})
    figures = {key: value for result in recipe.get("Results", ()) for key, value in result["Metrics"].items()}
    figures = figures or (published.figures if published else {})
    source = f"; by {by['Title']}, {by['URL']}" if by else ""
    printed = f"; published {totals['Parameters']} M, {totals['FLOPs']} G" if "FLOPs" in totals else ""
    data = next((key for key in PATHS if path.stem.endswith(key)), None)
    options = f" --cfg-options data_root={PATHS[data]}" if data else ""
    title = (ast.get_docstring(ast.parse(read_text(path))) or name).splitlines()[0]
    return [
        ("recipe", f"{name}: {title.rstrip('.')}"),
        ("published", f"{', '.join(f'{key} {value}' for key, value in figures.items()) or 'nothing'}{source}"),
        *([("note", recipe["Note"])] if "Note" in recipe else []),
        ("trained model", f"{published.address}, licence {published.licence}" if published else "none was published"),
        *(("starts from", f"{_weights(value)} ({key})") for key, value in fetched(cfg).items()),
        ("parameters", f"{sum(part.params for part in parts) / 1e6:.1f} M"),
        ("multiply-adds", f"{sum(part.macs for part in parts) / 1e9:.1f} G at {height}x{width}{printed}"),
        ("train", f"vitdense train {published.config if published else name}{options}"),
        ("load", f'vitdense.load("{name if published else f"work_dirs/{path.stem}"}")'),
    ]


def _weights(checkpoint: str) -> str:
    """Weights that a recipe starts from."""
    row = find_model(checkpoint)
    gate = f", consent is asked for at {row.gate}" if row and row.gate else ""
    return f"{row.name}, {row.trained_on}, licence {row.licence}{gate}" if row else checkpoint
