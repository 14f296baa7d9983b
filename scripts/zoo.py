"""Write the tables of docs/model-zoo.md: the model table and configs/metafile.yml, with counts of our models.

It takes minutes. Models are on the meta device, without weights.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from cost import CostCounter
from vitdense.families import MODELS, Model, backbone_class
from vitdense.files import atomic_write, read_text
from vitdense.flops import count, macs, num_params
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.model_index import INDEX

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs/model-zoo.md"
TRAINED_ON = {  # the end of the names of weights -> the data
    "in1k": "ImageNet-1k",
    "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "inw21k": "ImageNet-21k, release of winter 2021",
    "in21k_ft_in1k": "ImageNet-21k, then 1k",
    "in22k_ft_in1k": "ImageNet-22k, then 1k",
    "dist_in1k": "ImageNet-1k, distilled",
    "distilled_in1k": "ImageNet-1k, distilled",
    "dino": "ImageNet-1k without labels, DINO",
    "mae": "ImageNet-1k without labels, MAE",
    "fcmae": "ImageNet-1k without labels, FCMAE",
    "fcmae_ft_in1k": "ImageNet-1k, first without labels, FCMAE",
    "lvd142m": "LVD-142M without labels, DINOv2",
    "lvd1689m": "LVD-1689M without labels, DINOv3",
    "sat493m": "SAT-493M, satellite images, without labels, DINOv3",
    "robbyant": "LingBot-Vision",
    "c_radio": "features of other foundation models, C-RADIO",
    **dict.fromkeys(("r896", "r1024"), "images and videos with masks, SAM 2"),
    **dict.fromkeys(("r896_2pt1", "r1024_2pt1"), "images and videos with masks, SAM 2.1"),
    "fb": "Perception Encoder",
    "webli": "WebLI, images and texts",
    "mim_in22k": "ImageNet-22k without labels, EVA-02",
    "mim_m38m": "Merged-38M without labels, EVA-02",
    "mim_in22k_ft_in1k": "ImageNet-22k without labels, then 1k",
    "mim_in22k_ft_in22k_in1k": "ImageNet-22k without labels, then 22k and 1k",
    "mim_m38m_ft_in22k_in1k": "Merged-38M without labels, then ImageNet-22k and 1k",
}
SHAPES = {"coco": (800, 1280), "ade20k": (512, 2048), "panoptic": (640, 640)}  # at which papers count


def recipes() -> list[dict[str, Any]]:
    """The recipes in configs/metafile.yml."""
    return yaml.safe_load(read_text(INDEX))["Models"]


def shape_of(recipe: Mapping[str, Any]) -> tuple[int, int]:
    """Image height and width in pixels at which a recipe is counted."""
    default = SHAPES.get(recipe["Name"].rpartition("_")[2], SHAPES["coco"])
    return tuple(recipe.get("Metadata", {}).get("Shape") or default)


def table(head: str, rows: list[tuple]) -> str:
    """A table of a page."""
    lines = [head, "|".join(["", *["---"] * (head.count("|") - 1), ""])]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def count_backbone(row: Model) -> tuple[str, ...]:
    """M; G at the size of the weights, and at 800x1280; kernels and GB there."""
    with torch.device("meta"), torch.no_grad():
        model = backbone_class(row.family)(row.arch, **row.options).eval()
        own, large = (torch.empty(1, 3, *size) for size in ((row.image_size,) * 2, SHAPES["coco"]))
        multiply_adds = [macs(lambda x=x: model(x))[1] / 1e9 for x in (own, large)]
        model, large = model.bfloat16(), large.bfloat16()
        model(large)  # makes constants of this size
        with CostCounter(model) as counter:
            model(large)
    millions, billions = f"{num_params(model) / 1e6:.1f}", [f"{number:.1f}" for number in multiply_adds]
    return millions, ", ".join(billions), f"{counter.cost.kernels}, {counter.cost.bytes / 1e9:.2f}"


def count_recipe(recipe: Mapping[str, Any]) -> str:
    """M and G of the whole model."""
    with torch.device("meta"):
        model = build_model(load_config(REPO / recipe["Config"])).eval()
    rows = count(model, shape_of(recipe))
    return f"{sum(row.params for row in rows) / 1e6:.1f} M, {sum(row.macs for row in rows) / 1e9:.1f} G"


def figures(recipe: Mapping[str, Any]) -> str:
    """What was published for a recipe: AP of boxes / masks, or mIoU; empty if nothing."""
    found = {name: value for part in recipe.get("Results", ()) for name, value in part["Metrics"].items()}
    if "mask AP" in found:
        return f"{found.get('box AP', '-')} / {found['mask AP']}"
    if "mIoU(ms+flip)" in found:
        return f"{found.get('mIoU', '-')}; {found['mIoU(ms+flip)']}"
    return str(next(iter(found.values()), ""))


def tables(of_backbone: Callable[[Model], tuple], of_recipe: Callable[[Mapping[str, Any]], str]) -> dict[str, str]:
    """The tables of the page by their headings, with counts by these functions."""
    found = {}
    head = "| name | weights | image | M | G, at 800x1280 | kernels, GB |"
    for family, rows in grouped(MODELS.values(), lambda row: row.family).items():
        lines = []
        for group in grouped(rows, lambda row: (parts(row)[0], row.arch, row.image_size, str(row.options))).values():
            weights = " ".join(f"`{parts(row)[1]}`" for row in group if row.weights) or "none"
            lines.append((parts(group[0])[0], weights, group[0].image_size, *of_backbone(group[0])))
        found[family] = table(head, lines)
    lines = []
    for name, group in grouped((row for row in MODELS.values() if row.weights), lambda row: parts(row)[1]).items():
        hosts = [re.sub(r"(https://)?([\w.-]+).*", r"\2", row.weights) for row in group]
        facts = [row.licence for row in group], hosts, [row.family for row in group]
        lines.append((f"`{name}`", trained_on(group[0]), *(", ".join(dict.fromkeys(fact)) for fact in facts)))
    found["Weights"] = table("| weights | trained on | licence | from | families |", lines)
    lines = []
    for recipe in recipes():
        paper, printed = recipe.get("Paper"), recipe.get("Metadata", {})
        total = f"{printed['Parameters']} M, {printed['FLOPs']} G" if "FLOPs" in printed else ""
        by = [f"[{paper['Title']}]({paper['URL']})"] if paper else []
        by += [recipe["Note"]] if "Note" in recipe else []
        shape = "x".join(map(str, shape_of(recipe)))
        lines.append(
            (f"`{recipe['Name']}.py`", figures(recipe) or "none", "; ".join(by), total, of_recipe(recipe), shape)
        )
    found["Recipes"] = table("| config | published | by | published total | counted total | at |", lines)
    return found


def filled(text: str, found: Mapping[str, str]) -> str:
    """A page with these tables in place of the first ones after their headings.

    Raises:
        ValueError: A heading is missing, or has no table.
    """
    for heading, new in found.items():
        old = rf"(?m)(^##+ {re.escape(heading)}\n(?:(?:[^|#\n].*)?\n)*)(?:\|.*\n)+"
        text, times = re.subn(old, lambda match, new=new: match[1] + new, text)
        if times != 1:
            raise ValueError(f"{PAGE}: got {times} tables after a heading {heading!r}, expected one")
    return text


def trained_on(row: Model) -> str | None:
    """The data of a row's weights, and how labels were used."""
    name = parts(row)[1]
    return TRAINED_ON.get(name) or TRAINED_ON.get(name.partition("_")[2])


def parts(row: Model) -> tuple[str, str]:
    """``swin_base_384.ms_in22k`` -> ``swin_base_384``, ``ms_in22k``."""
    return row.name.partition(".")[::2]


def grouped(rows: Iterable[Model], key: Callable[[Model], Any]) -> dict[Any, list[Model]]:
    """Rows by `key`, in their order."""
    groups: dict[Any, list[Model]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with atomic_write(PAGE) as scratch:
        scratch.write_text(filled(read_text(PAGE), tables(count_backbone, count_recipe)), encoding="utf-8")


if __name__ == "__main__":
    main()
