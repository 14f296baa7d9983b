"""Make the pictures of docs/images: all of them, or those that are named."""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image, ImageDraw

import vitdense  # first: it makes mmcv importable without a compiler
from attention_cost import attention_costs, plot_attention
from cost import DEVICES, ModelCost, count
from counting import build
from tiles import SIDE, mosaic
from vitdense.extensions.bands.step import LoadBands
from vitdense.files import atomic_write, read_text
from vitdense.mm.config.load import load_config
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.data.shapes import draw_image
from vitdense.mm.predictor import load_model
from vitdense.mm.work_folder import find_checkpoint
from vitdense.results import draw
from vitdense.results.tiles import cut

REPO = Path(__file__).parents[1]
DEMO = "cascade_swin_nano_shapes"  # a model to train
STREETS = "eomt_deit_t_camvid"  # another, and photos of COCO val2017 to show it, all under CC BY 2.0
PHOTOS = ("000000423617.jpg", "000000184324.jpg")
REGION = (0, 5066, 1000, 5750)  # of the page of errors: another class
TURNED, TURNED_SHAPES = "rfdetr_oriented_nano_shapes", (4, 162, 175)
OWN_PHOTOS = tuple(f"val2017/000000{x}.jpg" for x in (343937, 423617, 377575))  # credits: docs/images/photos.txt
METHODS = {  # in the names of configs: name, marker
    "mask_rcnn": ("Mask R-CNN", "o"),
    "cascade": ("Cascade Mask R-CNN", "s"),
    "atss": ("ATSS", "^"),
    "reppoints_v2": ("RepPoints V2", "v"),
    "sparse_rcnn": ("Sparse R-CNN", "D"),
    "htcpp": ("HTC++", "P"),
    "rfdetr": ("RF-DETR", "*"),
    "lwdetr": ("LW-DETR", "X"),
}
FAMILIES = {
    **{"swin": "Swin", "mvitv2": "MViTv2", "nat": "NAT", "deit": "DeiT", "adapter_deit": "DeiT, ViT-Adapter"},
    **{"vit": "ViT", "eva02": "EVA-02", "dinov2": "DINOv2", "convnext": "ConvNeXt"},
}
OWN = {"rfdetr": "dinov2", "lwdetr": "vit"}  # family of a method whose configs do not name one
COUNTED = (  # names of `benchmark.build`
    *("swin_tiny", "swin_small", "swin_base", "swinv2_tiny", "mvitv2_tiny", "mvitv2_base", "nat_tiny"),
    *("deit_small", "vit_base", "vitdet_base", "resnet50"),
)


class Published(NamedTuple):
    """A row of the README's table of recipes with box AP."""

    method: str
    family: str
    size: str
    box_ap: float
    gmacs: float


def published() -> Iterator[Published]:
    """The detectors of the README's table whose box AP was published, and their FLOPs."""
    table = read_text(REPO / "configs/README.md").partition("\n## Recipes\n")[2]
    for line in re.findall(r"^\| `.+_coco\.py`.*\|$", table, re.M):
        config, ap, _, flops = (cell.strip() for cell in line.strip("|").split("|"))
        name = re.match(rf"`({'|'.join(METHODS)})_(?:({'|'.join(FAMILIES)})_)?(\w)_coco\.py`", config)
        number = re.match(r"\d+\.\d", ap)
        if name and number:
            method, family, size = name.groups()
            yield Published(method, family or OWN[method], size, float(number[0]), float(re.search(r"\d+", flops)[0]))


def ap_flops(path: Path) -> None:
    """Box AP over FLOPs."""
    rows = list(published())
    figure = Figure((9, 7), layout="constrained")
    axes = figure.subplots()
    colours = dict(zip(FAMILIES, [f"C{i}" for i in range(10) if i != 7]))  # C7 is grey, as the markers of the legend
    for method, family in dict.fromkeys((row.method, row.family) for row in rows if row.method in ("cascade", *OWN)):
        series = sorted((row.gmacs, row.box_ap) for row in rows if (row.method, row.family) == (method, family))
        axes.plot(*zip(*series), color=colours[family], alpha=0.4)
    for row in rows:
        point = row.gmacs, row.box_ap
        axes.plot(*point, METHODS[row.method][1], color=colours[row.family], markersize=7)
        axes.annotate(row.size.upper(), point, xytext=(5, -3), textcoords="offset points", fontsize=8)
    ticks = (10, 20, 40, 80, 160, 300, 600, 1000, 2000)
    axes.set(xscale="log", xlabel="FLOPs of an image (G multiply-adds)", ylabel="box AP on COCO val, published")
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.margins(0.08)
    axes.grid(alpha=0.3)
    used = dict.fromkeys(row.method for row in rows)
    handles = [Line2D([], [], marker=METHODS[m][1], linestyle="", color="grey", label=METHODS[m][0]) for m in used]
    handles += [Line2D([], [], color=colours[family], linewidth=4, label=FAMILIES[family]) for family in FAMILIES]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    save(figure, path)


def counted(name: str) -> ModelCost:
    """The cost of a backbone at one image of 800x1280 in half precision."""
    model = build(name, 0.0).to("meta", torch.bfloat16)
    return count(model, torch.empty(1, 3, 800, 1280, dtype=torch.bfloat16, device="meta"))


def counted_costs(path: Path) -> None:
    """Roofline time of a forward pass, by what it is made of."""
    device = DEVICES["h200"]
    figure = Figure((9, 4.2), layout="constrained")
    axes = figure.subplots()
    seconds = [counted(name).forward.seconds(device) for name in COUNTED]
    lefts = [0.0] * len(COUNTED)
    for part, times in zip(("multiply-adds", "bytes of memory", "launches of kernels"), zip(*seconds)):
        milliseconds = [1e3 * time for time in times]
        axes.barh(COUNTED, milliseconds, left=lefts, label=part)
        lefts = [left + time for left, time in zip(lefts, milliseconds)]
    axes.invert_yaxis()
    axes.set_xlabel("sum of rooflines of an H200, ms, forward pass at 800x1280: it ranks, it does not predict")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    save(figure, path)


def attention_cost(path: Path) -> None:
    """The picture of docs/systems.md."""
    sizes = [(side, side) for side in (32, 64, 128, 224, 448)]
    plot_attention(attention_costs("deit_tiny", sizes, (1, 4, 16)), path)


def streets(path: Path) -> None:
    """Photos as a model of CamVid sees them, with the legend of the last one. The model must be trained, and COCO's
    validation be in `data/coco`."""
    model = vitdense.load(REPO / "work_dirs" / STREETS)
    height, pictures = 340, []
    for result in (model(REPO / "data/coco/val2017" / name) for name in PHOTOS):
        drawn, (h, w, _) = result.plot(), result.image.shape
        pictures.append(drawn.crop((0, 0, w, h)).resize((round(w * height / h), height)))
    legend = drawn.crop((w, 0, drawn.width, height))
    with atomic_write(path) as scratch:
        beside(*pictures, legend).quantize(255).save(scratch, format="png", optimize=True)


def photos(path: Path) -> None:
    """Photos with the objects that the model of docs/images/photos.txt finds. It must be trained into
    `work_dirs/photos`, and COCO's photos be in `data/coco`."""
    model, height, pictures = vitdense.load(REPO / "work_dirs/photos", score_thr=0.6), 300, []
    for name in OWN_PHOTOS:
        drawn = model(REPO / "data/coco" / name).plot()
        pictures.append(drawn.resize((round(drawn.width * height / drawn.height), height), Image.Resampling.LANCZOS))
    with atomic_write(path) as scratch:
        beside(*pictures).quantize(255).save(scratch, format="png", optimize=True)


def beside(*pictures: Image.Image) -> Image.Image:
    """Pictures on one, from left to right."""
    page = Image.new("RGB", (sum(x.width + 8 for x in pictures) - 8, max(x.height for x in pictures)), "white")
    left = 0
    for picture in pictures:
        page.paste(picture, (left, 0))
        left += picture.width + 8
    return page


def oriented(path: Path) -> None:
    """Validation images as the nano model of oriented boxes sees them, twice as large. It must be trained."""
    model = vitdense.load(REPO / "work_dirs" / TURNED, score_thr=0.4)
    images = (Image.open(REPO / f"data/turned/val/{number:06}.jpg") for number in TURNED_SHAPES)
    pictures = [model(image.resize((2 * image.width, 2 * image.height))).plot() for image in images]
    with atomic_write(path) as scratch:
        beside(*pictures).quantize(255).save(scratch, format="png", optimize=True)


def inside(path: Path) -> None:
    """The sheet of docs/extensions/show.md: some rows of the trained detector's. It must be trained."""
    from vitdense.extensions.show.sheet import sheet_rows

    cfg, checkpoint = load_config(DEMO), find_checkpoint(str(REPO / "work_dirs" / DEMO))
    layers = [f"stages.2.blocks.{block}.attn" for block in (0, 1)]
    rows = sheet_rows(load_model(cfg, checkpoint, "cpu"), REPO / "data/shapes/val/000018.jpg", (0.45, 0.3), layers)
    rows = [row for row in rows if not row[0].startswith(("position bias: stages.0", "position bias: stages.2"))]
    with atomic_write(path) as scratch:
        Image.fromarray(draw.contact_sheet(rows, width=160)).quantize(192).save(scratch, format="png", optimize=True)


def errors(path: Path) -> None:
    """A part of the page of docs/extensions/errors.md, of the model in the package; chromium must be installed."""
    with TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "vitdense", "test", "shapes_nano", "--report", "."], cwd=folder, check=True
        )
        options = (
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--window-size=1000,9000",
            "--screenshot=page.png",
        )
        subprocess.run(["chromium", *options, "report.html"], cwd=folder, check=True)
        page = Image.open(Path(folder, "page.png")).convert("RGB").crop(REGION)
    with atomic_write(path) as scratch:
        page.quantize(192).save(scratch, format="png", optimize=True)


def rectangle(path: Path) -> None:
    """An image of 2:1, stretched to a square, and in a rectangle of as many pixels."""
    image = Image.fromarray(draw_image(np.random.default_rng(4), (224, 448))[0])
    small(beside(image, image.resize((160, 160)), image.resize((224, 112))), path)


def tiles(path: Path) -> None:
    """An image of 2,000 pixels, the part of it with most objects as a model sees the whole image, and as a tile."""
    canvas, objects = mosaic(np.random.default_rng([0, 0]))
    image, places = Image.fromarray(canvas), cut(canvas.shape[:2], SIDE, 0.2)
    corners = np.array([[x, y, x + w, y + h] for _, (x, y, w, h) in objects])
    inside = (corners[:, :2] >= places[:, None, :2]) & (corners[:, 2:] <= places[:, None, 2:])  # [tiles, N, 2]
    place = places[inside.all(-1).sum(1).argmax()].tolist()
    whole, tile = image.resize((SIDE, SIDE)), image.crop(place)
    of_whole = [round(edge * SIDE / image.width) for edge in place]
    part = whole.crop(of_whole).resize(tile.size, Image.Resampling.NEAREST)
    ImageDraw.Draw(whole).rectangle(of_whole, outline="red", width=2)
    for box in corners:
        ImageDraw.Draw(tile).rectangle([*(box[:2] - place[:2] - 3), *(box[2:] - place[:2] + 3)], outline="red")
    small(beside(whole, part, tile), path)


def bands(path: Path) -> None:
    """Two classes that differ in the fifth band alone: bands 1, 2 and 3; band 5; and bands 5, 1 and 2."""
    rng = np.random.default_rng(11)
    drawn, instances = draw_image(rng, (224, 272))
    pixels = np.dstack([drawn, rng.normal(128, 5, (*drawn.shape[:2], 2))])  # [H, W, 5]
    for i, one in enumerate(instances):
        pixels[one.mask, :3] = rng.normal(170, 2, (one.mask.sum(), 3))
        pixels[one.mask, 4] += 100 * (-1) ** i
    shown = [LoadBands(5, shown=each).picture(pixels) for each in ((1, 2, 3), (5, 5, 5), (5, 1, 2))]
    small(beside(*map(Image.fromarray, shown)), path)


def small(picture: Image.Image, path: Path) -> None:
    with atomic_write(path) as scratch:
        picture.quantize(48).save(scratch, format="png", optimize=True)


def save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as scratch:
        figure.savefig(scratch, dpi=110, format="png")


PICTURES: dict[str, Callable[[Path], None]] = {
    picture.__name__: picture
    for picture in (
        ap_flops,
        counted_costs,
        attention_cost,
        streets,
        photos,
        oriented,
        inside,
        errors,
        rectangle,
        tiles,
        bands,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; default: all")
    parser.add_argument("--out-dir", type=Path, default=REPO / "docs/images")
    args = parser.parse_args()
    if unknown := {*args.names} - {*PICTURES}:
        parser.error(f"NAME: got {', '.join(unknown)}, expected some of {', '.join(PICTURES)}")
    for name in args.names or PICTURES:
        with exit_on_user_error():
            PICTURES[name](args.out_dir / f"{name}.png")
        print(args.out_dir / f"{name}.png")


if __name__ == "__main__":
    main()
