"""One table of what data sets have wrong: `new`, `check`, a training and a test say the same of each."""

import copy
import io
import json
from pathlib import Path

import numpy as np
import pytest
from kinds import (
    SPLITS,
    Coco,
    H,
    Maps,
    Panoptic,
    Tools,
    Voc,
    VocFolder,
    W,
    Yolo,
    base_configs,
    encoded,
    photo,
    png_of,
    square,
)
from mmengine.registry import DATASETS
from PIL import Image

from vitdense.mm.checks.data import evaluators
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.classes import follow_classes
from vitdense.mm.data.faults import Fault

FINE, WARNED, REFUSED = "fine", "warned", "refused"
NAN, INF, BIG = float("nan"), float("inf"), 2**53


@pytest.fixture(scope="module")
def bases():
    return base_configs()


def both(change):
    def apply(data):
        change(data.train), change(data.val)

    return apply


def train(change):
    return lambda data: change(data.train)


def val(change):
    return lambda data: change(data.val)


def one(kind="annotations", index=0, **values):
    """Values of one item of a list; `...` removes a key."""

    def change(content):
        item = content[kind][index]
        for key, value in values.items():
            if value is ...:
                item.pop(key, None)
            else:
                item[key] = value(item) if callable(value) else value

    return change


def every(kind="annotations", step=1, **values):
    def change(content):
        for i in range(0, len(content[kind]), step):
            one(kind, i, **values)(content)

    return change


def put(key, value):
    return lambda content: content.__setitem__(key, value)


def add(kind, like=0, **values):
    return lambda content: content[kind].append({**copy.deepcopy(content[kind][like]), **values})


def also(*changes):
    def change(of):
        for each in changes:
            each(of)

    return change


def renumber(kind, key, number):
    def change(content):
        for item in content[kind]:
            item["id"] = number(item["id"])
        for item in content["annotations"]:
            for part in (item, *item.get("segments_info", ())):
                if key in part:
                    part[key] = number(part[key])

    return change


def rename(content):
    content["categories"].reverse()


def corners(item):
    x, y, w, h = item["bbox"]
    return [x, y, x + w, y + h]


def rle(item):
    mask = np.zeros((H, W), np.uint8)
    x, y, w, h = map(int, item["bbox"])
    mask[y : y + h, x : x + w] = 1
    flat = mask.T.ravel()
    ends = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), flat.size]
    return {"size": [H, W], "counts": np.diff(ends).tolist()}


def rle_of(size=(H, W), counts=None):
    return lambda item: {"size": [*size], "counts": rle(item)["counts"] if counts is None else counts}


def packed(item):
    from pycocotools import mask

    found = mask.frPyObjects(rle(item), H, W)
    return {**found, "counts": found["counts"].decode()}


def moved(dx, dy=0):
    return lambda item: square(item["bbox"][0] + dx, item["bbox"][1] + dy, *item["bbox"][2:])


def double(content):
    for item in list(content["annotations"]):
        content["annotations"].append({**copy.deepcopy(item), "id": item["id"] + 1000})


def at(*box):
    return {"bbox": box, "area": box[2] * box[3], "segmentation": square(*box)}


def joined(*names):
    def change(content):
        for category, name in zip(content["categories"], names):
            category["name"] = name

    return change


def image(name, content):
    return lambda data: data.files.__setitem__(name, content)


def raw(change):
    return lambda data: data.files.update({f"{s}.json": change(json.dumps(getattr(data, s))) for s in SPLITS})


def turned(size, form="JPEG"):
    def apply(data):
        for i, name in enumerate([name for name in data.files if name.endswith(".jpg")]):
            data.files[name if form == "JPEG" else f"{name[:-3]}webp"] = photo(50 + i, size, form, turned=6)

    return apply


def in_folder(data):
    for name in [name for name in data.files if name.endswith(".jpg")]:
        data.files[name.replace("/", "/a/")] = data.files.pop(name)


def webp(item):
    return item["file_name"].replace("jpg", "webp")


def absent(name):
    return lambda data: data.files.pop(name)


def shared_file(data):
    data.val = data.train
    data.options = ["--val", "train.json", "--val-images", "train"]


OWL = add("annotations", id=99, category_id=7, **at(1, 1, 9, 9))
HUGE = rle_of([10**6] * 2, [10**12])
COCO = {  # change, what is right, words of the message
    "sound": (both(lambda content: None), FINE),
    "a BOM": (raw(lambda text: b"\xef\xbb\xbf" + text.encode()), FINE),
    "names that are not ASCII": (both(joined("кот", "狗")), FINE),
    "category ids with gaps": (both(renumber("categories", "category_id", lambda i: 40 * i)), FINE),
    "annotation ids from 0": (both(renumber("annotations", None, lambda i: i - 2)), FINE),
    "image ids above 2**53": (both(renumber("images", "image_id", lambda i: BIG + i)), FINE),
    "image ids from 0": (both(renumber("images", "image_id", lambda i: i - 1)), FINE),
    "categories of the validation in another order": (val(rename), FINE),
    "run-length codes": (both(every(segmentation=rle)), FINE),
    "compressed run-length codes": (both(every(segmentation=packed)), FINE),
    "a crowd": (both(one(iscrowd=1, segmentation=rle)), FINE),
    "an image without annotations": (both(lambda content: content["annotations"].__delitem__(slice(0, 2))), FINE),
    "boxes of floating-point numbers": (both(one(**at(10.25, 10.5, 20.25, 20.75))), FINE),
    "an object of several polygons": (both(one(segmentation=square(10, 10, 9, 20) + square(21, 10, 9, 20))), FINE),
    "the area of the box beside a mask": (both(every(segmentation=lambda a: [moved(0)(a)[0][:6]])), FINE),
    "a box that an exporter rounded over the edge": (both(one(**at(59.5, 20, 21, 20))), FINE),
    "file names in folders": (also(in_folder, both(every("images", file_name=lambda a: f"a/{a['file_name']}"))), FINE),
    "photos turned by EXIF, annotated as shown": (turned((H, W)), FINE),
    "WebP turned, annotated as shown": (also(turned((H, W), "WEBP"), both(every("images", file_name=webp))), FINE),
    "rotation 0 of CVAT": (both(every(attributes={"occluded": False, "rotation": 0.0})), FINE),
    "ignore 0": (both(every(ignore=0)), FINE),
    # What is warned of
    "CVAT's rotation": (both(one(attributes={"rotation": 45.0})), WARNED, "rotation"),
    "CVAT's rotation as text": (both(one(attributes={"rotation": "45"})), WARNED, "rotation"),
    "an object twice": (both(add("annotations", id=99)), WARNED, "box and class of another"),
    "all objects twice": (both(double), WARNED, "box and class of another"),
    "half of the objects crowds": (both(every(step=2, iscrowd=1, segmentation=rle)), WARNED, "iscrowd", "only crowds"),
    "a class without area": (both(every(step=2, area=0)), WARNED, "only crowds"),
    "half of the objects ignored": (both(every(step=2, ignore=1)), WARNED, "ignore"),
    "an area of 1e11": (both(one(area=1e11)), WARNED, "area"),
    "an area in shares": (both(every(area=lambda a: a["area"] / W / H)), WARNED, "area"),
    "a polygon beside its box": (both(one(segmentation=moved(30))), WARNED, "polygon"),
    "a mask without a pixel": (both(one(segmentation={"size": [H, W], "counts": [H * W]})), WARNED, "no pixel"),
    "a box without area": (both(one(bbox=[10, 10, 0, 5])), WARNED, "no area"),
    "a box of half a pixel": (both(one(bbox=[10, 10, 0.5, 5])), WARNED, "below one pixel"),
    "a box outside": (both(one(**at(200, 10, 10, 5))), WARNED, "outside"),
    "a box over the edge": (both(one(**at(70, 10, 20, 20))), WARNED, "edge"),
    "a class without objects": (train(add("categories", id=7, name="owl")), WARNED, "owl"),
    "Roboflow's group category": (both(lambda c: c["categories"].insert(0, {"id": 0, "name": "pets"})), WARNED, "pets"),
    "a class of the validation alone": (val(also(add("categories", id=7, name="owl"), OWL)), WARNED, "owl"),
    "a file name twice": (both(one("images", 1, file_name="0.jpg")), WARNED, "file_name"),
    "most images without annotations": (train(lambda c: c.update(annotations=c["annotations"][:2])), WARNED, "without"),
    "a validation without annotations": (val(put("annotations", [])), WARNED, "evaluate"),
    "the validation is the training": (shared_file, WARNED, "train"),
    "16 bits": (image("train/0.jpg", encoded(np.full((H, W), 4000, np.uint16))), WARNED, "8 bits"),
    # What is refused
    "UTF-16": (raw(lambda text: text.encode("utf-16")), REFUSED, "train.json"),
    "cut": (raw(lambda text: text[: len(text) // 2].encode()), REFUSED, "train.json"),
    "gzip": (raw(lambda text: b"\x1f\x8b" + text.encode()), REFUSED, "train.json"),
    "two documents": (raw(lambda text: 2 * text.encode()), REFUSED, "train.json"),
    "a number of 10^5 digits": (raw(lambda text: text.replace("80", "8" * 10**5, 1).encode()), REFUSED, "train.json"),
    "a list": (raw(lambda text: b"[]"), REFUSED, "train.json"),
    "nested without end": (raw(lambda text: b"[" * 100000), REFUSED, "train.json"),
    "no categories": (both(put("categories", [])), REFUSED, "categories"),
    "annotations null": (both(put("annotations", None)), REFUSED, "annotations"),
    "an annotation null": (both(put("annotations", [None])), REFUSED, "annotations"),
    "no annotations to learn": (train(put("annotations", [])), REFUSED, "nothing to learn"),
    "image_id of no image": (both(one(image_id=99)), REFUSED, "image"),
    "image_id a string": (both(every(image_id=lambda a: str(a["image_id"]))), REFUSED, "image_id"),
    "category_id of none": (both(one(category_id=99)), REFUSED, "category"),
    "image ids twice": (both(one("images", 1, id=1)), REFUSED, "same id"),
    "annotation ids twice": (both(one("annotations", 1, id=2)), REFUSED, "same id"),
    "category ids twice": (both(one("categories", 1, id=1)), REFUSED, "same id"),
    "names twice": (both(joined("cat", "cat")), REFUSED, "same name"),
    "a name that is no text": (both(one("categories", name=7)), REFUSED, "name"),
    "an empty name": (both(one("categories", name="")), REFUSED, "name"),
    "a name with an escape": (both(one("categories", name="c\x1b[31mat")), REFUSED, "control"),
    "a file name with an escape": (both(one("images", file_name="\x1b]0;0.jpg")), REFUSED, "control"),
    "file_name absent": (both(one("images", file_name=...)), REFUSED, "file_name"),
    "an image without a size": (both(one("images", width=...)), REFUSED, "width"),
    "width 0": (both(one("images", width=0)), REFUSED, "width"),
    "width and height swapped": (both(every("images", width=H, height=W)), REFUSED, "size"),
    "a box of two numbers": (both(one(bbox=[1, 2])), REFUSED, "four numbers"),
    "a box NaN": (both(one(bbox=[1, NAN, 3, 4])), REFUSED, "four numbers"),
    "a box null": (both(one(bbox=None)), REFUSED, "bbox"),
    "an area NaN": (both(one(area=NAN)), REFUSED, "area"),
    "a bool in a box": (both(one(bbox=[True, 10, 20, 20])), REFUSED, "four numbers"),
    "boxes in shares": (both(every(bbox=lambda a: [v / W for v in a["bbox"]])), REFUSED, "in pixels"),
    "boxes as corners": (both(every(bbox=corners)), REFUSED, "corners"),
    "all polygons beside their boxes": (both(every(segmentation=moved(-9, 25))), REFUSED, "polygon"),
    "crowds only": (both(every(iscrowd=1, segmentation=rle)), REFUSED, "crowds"),
    "ignored only": (both(every(ignore=1)), REFUSED, "ignored"),
    "iscrowd a text": (both(one(iscrowd="0")), REFUSED, "iscrowd"),
    "ignore a text": (both(one(ignore="false")), REFUSED, "ignore"),
    "areas 0": (both(every(area=0)), REFUSED, "none is learned"),
    "segmentation {}": (both(one(segmentation={})), REFUSED, "segmentation"),
    "segmentation null": (both(one(segmentation=None)), REFUSED, "segmentation"),
    "segmentation absent": (both(one(segmentation=...)), REFUSED, "segmentation"),
    "segmentation flat": (both(one(segmentation=lambda a: moved(0)(a)[0])), REFUSED, "polygons"),
    "a polygon of half a point": (both(one(segmentation=[[1, 1, 9, 1, 9, 9, 1]])), REFUSED, "half a point"),
    "a polygon with NaN": (both(one(segmentation=[[NAN, 1, 9, 1, 9, 9]])), REFUSED, "finite"),
    "a polygon at 1e9": (both(one(segmentation=[[1e9, 1, 9, 1, 9, 9]])), REFUSED, "far outside"),
    "run-length codes of width and height": (both(every(segmentation=rle_of([W, H]))), REFUSED, "another size"),
    "run-length codes of 10^12 pixels": (both(one(segmentation=HUGE)), REFUSED, "another size"),
    "run-length codes that are too short": (both(one(segmentation=rle_of(counts=[0, 5]))), REFUSED, "counts"),
    "run-length codes of garbage": (both(one(segmentation=rle_of(counts="ooooooo0"))), REFUSED, "counts"),
    "another name in the validation": (val(joined("Cat", "Dog")), REFUSED, "Cat"),
    "photos turned by EXIF, annotated as stored": (turned((W, H)), REFUSED, "EXIF"),
    "an image that does not exist": (absent("train/1.jpg"), REFUSED, "not exist"),
    "an image of text": (image("train/1.jpg", b"no image"), REFUSED, "1.jpg"),
    "an image that is cut": (image("train/1.jpg", photo(1)[:-200]), REFUSED, "1.jpg"),
    "an empty image": (image("train/1.jpg", b""), REFUSED, "1.jpg"),
    "an image that is a folder": (image("train/1.jpg", Path.mkdir), REFUSED, "1.jpg"),
    "an image that links to nothing": (image("train/1.jpg", lambda path: path.symlink_to("gone")), REFUSED, "1.jpg"),
    "an image that links to itself": (image("train/1.jpg", lambda path: path.symlink_to(path.name)), REFUSED, "1.jpg"),
    "a backslash": (both(every("images", file_name=lambda a: f"a\\{a['file_name']}")), REFUSED, "backslash"),
    "an image of another size": (image("train/1.jpg", photo(1, (W, H + 9))), REFUSED, "size"),
}


# ---- YOLO


def entry(**values):
    """Other values of data.yaml; `...` removes a key."""

    def change(data):
        data.yaml = {k: v for k, v in {**data.yaml, **values}.items() if v is not ...}

    return change


def lines(*texts):
    return lambda data: setattr(data, "lines", list(texts))


def label(content, name="labels/train/0.txt"):
    return image(name, content)


def no_labels(data, of=("train", "val"), first=0):
    for name in list(data.files):
        if name.startswith(tuple(f"labels/{split}/" for split in of)) and int(name[-5]) >= first:
            del data.files[name]


BOMB = {"a": "&a [x, x]", **{b: f"&{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi")}}
BOX = "0 0.25 0.333333 0.25 0.333333"
POLYGON = "1 0.5 0.33 0.875 0.33 0.875 0.73 0.5 0.73"
YOLO = {
    "sound": (entry(), FINE),
    "names by number": (entry(names="{0: cat, 1: dog}"), FINE),
    "polygons": (lines("0 0.125 0.17 0.375 0.17 0.375 0.5 0.125 0.5", POLYGON), FINE),
    "tabs and blank lines": (lines(BOX.replace(" ", "\t"), "", "1 0.6875 0.533333 0.375 0.4  "), FINE),
    "a class as 0.0": (lines(BOX.replace("0 ", "0.0 ", 1), "1 0.6875 0.533333 0.375 0.4"), FINE),
    "an empty label file": (label(b""), FINE),
    "photos turned by EXIF": (turned((H, W)), FINE),
    "an object twice": (lines(BOX, BOX, "1 0.6875 0.533333 0.375 0.4"), WARNED, "box and class of another"),
    "a box without area": (lines(BOX, "1 0.6875 0.533333 0 0.4"), WARNED, "no area"),
    "a class without objects": (entry(names="[cat, dog, owl]"), WARNED, "owl"),
    "the validation is the training": (entry(val="images/train"), WARNED, "both"),
    "labels of one image of three": (lambda data: no_labels(data, ("train",), 1), WARNED, "without annotation"),
    "a label file of two": (label(photo(77, form="PNG"), "images/train/0.png"), WARNED, "same label file"),
    "kpt_shape": (entry(kpt_shape="[1, 3]"), REFUSED, "kpt_shape"),
    "channels: 4": (entry(channels=4), REFUSED, "channels"),
    "train empty": (entry(train="''"), REFUSED, "train"),
    "train an empty list": (entry(train="[]"), REFUSED, "train"),
    "train absent": (entry(train=...), REFUSED, "train"),
    "a folder that does not exist": (entry(train="images/nowhere"), REFUSED, "nowhere"),
    "a list file without lines": (also(label(b"\n", "t.txt"), entry(train="t.txt")), REFUSED, "t.txt"),
    "an absent image": (also(label(b"images/train/9.jpg", "t.txt"), entry(train="t.txt")), REFUSED, "9.jpg"),
    "names absent": (entry(names=...), REFUSED, "names"),
    "names empty": (entry(names="[]"), REFUSED, "names"),
    "names yes and no": (entry(names="[yes, no]"), REFUSED, "quotes"),
    "a name 007": (entry(names="[007, dog]"), REFUSED, "quotes"),
    "an empty name": (entry(names="['', dog]"), REFUSED, "name"),
    "names twice": (entry(names="[cat, cat]"), REFUSED, "name"),
    "a name with an escape": (entry(names='["c\\e[31m", dog]'), REFUSED, "control"),
    "names from 1": (entry(names="{1: cat, 2: dog}"), REFUSED, "names"),
    "another nc": (entry(nc=3), REFUSED, "nc"),
    "path a number": (entry(path=2024), REFUSED, "path"),
    "aliases that mean 10^9 words": (entry(names="[*i]", **BOMB), REFUSED, "aliases"),
    "data.yaml a list": (label(b"- a\n", "data.yaml"), REFUSED, "data.yaml"),
    "data.yaml that is no YAML": (label(b"names: [a\n", "data.yaml"), REFUSED, "data.yaml"),
    "no labels": (no_labels, REFUSED, "labels"),
    "classes from 1": (lines("1 0.5 0.5 0.2 0.2", "2 0.5 0.5 0.2 0.2"), REFUSED, "class 2"),
    "a negative class": (lines("-1 0.5 0.5 0.2 0.2"), REFUSED, "class -1"),
    "a class by name": (lines("cat 0.5 0.5 0.2 0.2"), REFUSED, "cat"),
    "boxes in pixels": (lines("0 20 20 10 10"), REFUSED, "shares"),
    "a share of 1.2": (lines("0 1.2 0.5 0.2 0.2"), REFUSED, "shares"),
    "NaN": (lines("0 nan 0.5 0.2 0.2"), REFUSED, "shares"),
    "a score after the box": (lines("0 0.5 0.5 0.2 0.2 0.9"), REFUSED, "5 values"),
    "half a point": (lines("0 0.1 0.1 0.5 0.1 0.5 0.5 0.2"), REFUSED, "7 values"),
    "commas": (lines("0,0.5,0.5,0.2,0.2"), REFUSED, "lines are no objects"),
    "a label file in UTF-16": (label(BOX.encode("utf-16")), REFUSED, "labels/train/0.txt"),
    "an image that cannot be read": (label(b"no image", "images/train/0.jpg"), REFUSED, "images/train/0.jpg"),
}

# ---- label maps


def maps(change, of=("train", "val")):
    return lambda data: data.maps.update({k: change(v.copy()) for k, v in data.maps.items() if k.startswith(of)})


def option(*options, classes=None):
    return lambda data: vars(data).update(options=[*data.options, *options], classes=classes or data.classes)


def suffix(new, form):
    def apply(data):
        for name in list(data.maps):
            data.files[name.replace(".png", new)] = encoded(Image.fromarray(data.maps.pop(name)), form)
        data.suffix = new

    return apply


def with_palettes(data):
    for name in list(data.maps):
        picture = Image.fromarray(data.maps.pop(name)).convert("P")
        picture.putpalette([v for i in range(256) for v in (i, 255 - i, 7)])
        data.files[name] = encoded(picture)


def map_file(content, name="train_maps/0.png"):
    def apply(data):
        data.maps.pop(name, None)
        if content is not None:
            data.files[name] = content

    return apply


def many(number):
    return ",".join(f"c{i}" for i in range(number))


def names_file(content):
    return also(option(classes="names.txt"), label(content, "names.txt"))


MAPS = {
    "sound": (option(), FINE),
    "without unlabelled pixels": (maps(lambda x: np.where(x == 255, 2, x).astype(x.dtype)), FINE),
    "16 bits": (maps(lambda x: x.astype(np.uint16)), FINE),
    "palettes": (with_palettes, FINE),
    "reduce_zero_label": (also(option("--reduce-zero-label"), maps(lambda x: (x + 1).astype(np.uint8))), FINE),
    "names that are not ASCII": (option(classes="кот,狗,sky"), FINE),
    "a file of names with a BOM": (names_file(b"\xef\xbb\xbfcat\r\ndog\r\nsky\r\n"), FINE),
    "photos turned by EXIF": (turned((H, W)), FINE),
    "a class absent from the validation": (maps(lambda x: np.where(x == 1, 2, x).astype(np.uint8), ("val",)), FINE),
    "a class that never occurs": (option(classes="cat,dog,sky,owl"), WARNED, "owl"),
    "JPEG": (also(suffix(".jpg", "JPEG"), option(classes=many(255))), WARNED, "JPEG"),
    "the validation is the training": (option("--val-images", "train", "--val-labels", "train_maps"), WARNED, "both"),
    "images of another suffix": (image("train/7.png", photo(7, form="PNG")), WARNED, "suffix"),
    "a value without a class": (maps(lambda x: (x + (x == 2)).astype(np.uint8)), REFUSED, "no class"),
    "256 classes, the last of them 255": (option(classes=many(256)), REFUSED, "255"),
    "a negative value": (suffix(".tif", "TIFF"), FINE),
    "floating-point values": (also(maps(lambda x: x.astype(np.float32)), suffix(".tif", "TIFF")), REFUSED, "float32"),
    "colours": (maps(lambda x: np.dstack([x, x // 2, x * 0])), REFUSED, "one channel"),
    "alpha": (maps(lambda x: np.dstack([x, x])), REFUSED, "one channel"),
    "all unlabelled": (maps(lambda x: np.full_like(x, 255)), REFUSED, "nothing to learn"),
    "a validation that is unlabelled": (maps(lambda x: np.full_like(x, 255), ("val",)), REFUSED, "nothing to evaluate"),
    "masks of 0 and 255": (
        also(option(classes="no,yes"), maps(lambda x: np.where(x == 2, 0, 255).astype(np.uint8))),
        REFUSED,
        "255",
    ),
    "another size": (maps(lambda x: x[:-4]), REFUSED, "another size"),
    "a map that does not exist": (map_file(None), REFUSED, "not exist"),
    "a map of text": (map_file(b"no image"), REFUSED, "cannot be read"),
    "a map that is cut": (map_file(encoded(Maps.labels())[:-30]), REFUSED, "0.png"),
    "an image that cannot be read": (image("train/1.jpg", b"no image"), REFUSED, "1.jpg"),
    "names in Latin-1": (names_file("k\u00e4t\ndog\nsky\n".encode("latin-1")), REFUSED, "names.txt"),
    "names twice": (option(classes="cat,cat,sky"), REFUSED, "same name"),
    "a name with an escape": (option(classes="c\x1b[31m,dog,sky"), REFUSED, "control"),
    "one name": (option(classes="cat"), REFUSED),
    "too few names": (option(classes="cat,dog"), REFUSED, "no class"),
}


# ---- panoptic


def segments(**values):
    return lambda content: [one("segments_info", **values)(item) for item in content["annotations"]]


def all_segments(change):
    return lambda content: [change(item["segments_info"]) for item in content["annotations"]]


def pngs(change, form="PNG"):
    def apply(data):
        for name in [name for name in data.files if "_png/" in name]:
            data.files[name] = encoded(change(Image.open(io.BytesIO(data.files[name]))), form)

    return apply


def of_array(change):
    return pngs(lambda picture: np.ascontiguousarray(change(np.asarray(picture))))


def panoptic_of_training(data):
    shared_file(data)
    for name in [name for name in data.files if name.startswith("train_png")]:
        data.files[name.replace("train", "val")] = data.files[name]


PANOPTIC = {
    "sound": (both(lambda c: None), FINE),
    "stuff before things": (both(rename), FINE),
    "categories of the validation in another order": (val(rename), FINE),
    "unlabelled pixels": (
        also(both(all_segments(lambda s: s.pop())), of_array(lambda x: x * (x != [3, 0, 0]).any(-1, keepdims=True))),
        WARNED,
        "sky",
    ),
    "a crowd": (both(segments(iscrowd=1)), FINE),
    "category ids with gaps": (both(renumber("categories", "category_id", lambda i: 7 * i)), FINE),
    "a BOM": (raw(lambda text: b"\xef\xbb\xbf" + text.encode()), FINE),
    "no stuff": (also(both(every("categories", isthing=1))), WARNED, "stuff"),
    "a class without segments": (both(add("categories", id=99, name="owl")), WARNED, "owl"),
    "the validation is the training": (panoptic_of_training, WARNED, "both"),
    "ids that are not in the PNGs": (both(segments(id=77)), REFUSED, "no pixel"),
    "no segments": (both(all_segments(list.clear)), REFUSED, "no annotations"),
    "a segment that is not in the file": (both(all_segments(lambda s: s.pop(0))), REFUSED, "no segment in the file"),
    "a category that is not in the file": (both(segments(category_id=77)), REFUSED, "category"),
    "iscrowd a text": (both(segments(iscrowd="0")), REFUSED, "iscrowd"),
    "an id twice": (both(all_segments(lambda s: s.append(dict(s[0])))), REFUSED, "twice"),
    "stuff in several segments": (both(segments(category_id=30)), REFUSED, "stuff"),
    "all segments crowds": (both(all_segments(lambda s: [one.update(iscrowd=1) for one in s])), REFUSED, "crowds"),
    "file_name of another image": (both(one(file_name="1.png")), REFUSED, "file_name"),
    "segments_info absent": (both(one(segments_info=...)), REFUSED, "segments_info"),
    "a segment without category_id": (both(segments(category_id=...)), REFUSED, "category_id"),
    "a box of a segment of texts": (both(segments(bbox=["a"] * 4)), REFUSED, "four numbers"),
    "an image that is annotated twice": (both(add("annotations")), REFUSED, "twice"),
    "an image without annotation": (both(lambda c: c["annotations"].pop()), REFUSED, "no annotation"),
    "an annotation of no image": (both(one(image_id=99)), REFUSED, "not in the file"),
    "instances": (both(every(segments_info=..., bbox=[1, 1, 9, 9], category_id=10)), REFUSED, "segments_info"),
    "PNGs in BGR": (of_array(lambda x: x[..., ::-1]), REFUSED, "no pixel"),
    "grey PNGs": (pngs(lambda p: p.convert("L")), REFUSED, "PNG"),
    "PNGs of another size": (of_array(lambda x: x[:-4]), REFUSED, "another size"),
    "JPEG in the place of PNGs": (pngs(lambda p: p, "JPEG"), REFUSED, "PNG"),
    "a PNG that does not exist": (absent("train_png/1.png"), REFUSED, "not exist"),
    "a PNG that is cut": (image("train_png/1.png", png_of(np.full((H, W), 3))[:40]), REFUSED, "1.png"),
    "an image that does not exist": (absent("train/1.jpg"), REFUSED, "1.jpg"),
    "all unlabelled": (also(both(all_segments(list.clear)), of_array(lambda x: x * 0)), REFUSED, "nothing to learn"),
}

# ---- Pascal VOC


def voc(*names, classes=("cat", "dog")):
    return lambda data: vars(data).update(names=list(names), dataset={"metainfo": {"classes": classes}})


XML = "Annotations/train0.xml"
NO_BOX = b"<annotation><object><name>cat</name></object></annotation>"
OWL_XML = b"<annotation><object><name>owl</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>39</xmax><ymax>39</ymax>"
OWL_XML += b"</bndbox></object></annotation>"
VOC = {
    "sound": (voc("cat", "dog"), FINE),
    "classes in another order": (voc("cat", "dog", classes=("dog", "cat")), FINE),
    "names in another case": (voc("cat", "Dog"), REFUSED, "Dog"),
    "another name": (voc("cat", "owl"), REFUSED, "owl"),
    "difficult alone": (lambda data: vars(data).update(difficult=1), REFUSED, "difficult"),
    "a name more": (voc("cat", "dog", "owl"), WARNED, "owl"),
    "a class without objects": (voc("cat", "dog", classes=("cat", "dog", "owl")), WARNED, "owl"),
    "XML that is cut": (image(XML, b"<annotation><size>"), REFUSED, "train0.xml"),
    "an object without a box": (image(XML, NO_BOX), REFUSED, "train0.xml"),
    "an image that does not exist": (absent("train/0.jpg"), REFUSED, "train0.jpg"),
    "an image of another size": (image("train/0.jpg", photo(5, (W + 9, H))), REFUSED, "size"),
}


def head(encoding, *names):
    def change(data):
        data.head = f"<?xml version='1.0' encoding='{encoding}'?>"
        data.names = [*names] or data.names

    return change


def named(*names):
    return lambda data: setattr(data, "names", [*names])


def listed(**lists):
    return lambda data: data.files.update({f"ImageSets/Main/{k}.txt": v.encode() for k, v in lists.items()})


def as_png(data):
    for name in [name for name in data.files if name.endswith(".jpg")]:
        picture = Image.open(io.BytesIO(data.files.pop(name)))
        data.files[f"JPEGImages/{name.replace('/', '')[:-4]}.png"] = encoded(picture)


def declared(encoding, content=b""):
    return image(XML, b"<?xml version='1.0' encoding='" + encoding + b"'?><annotation>" + content + b"</annotation>")


VOC_FOLDERS = {
    "sound": (named("cat", "dog"), FINE),
    "GB2312": (head("GB2312", "猫", "狗"), FINE),
    "Shift_JIS": (head("Shift_JIS", "ねこ", "いぬ"), FINE),
    "UTF-16": (head("UTF-16"), FINE),
    "windows-1252": (head("windows-1252", "chât", "dog"), FINE),
    "names with blanks": (named(" cat", "dog\n"), FINE),
    "PNG": (as_png, FINE),
    "no size": (lambda data: setattr(data, "size", ""), FINE),
    "another name in the validation": (image("Annotations/val0.xml", OWL_XML), WARNED, "owl"),
    "difficult alone": (lambda data: vars(data).update(difficult=1), REFUSED, "crowds"),
    "an encoding that does not exist": (declared(b"none"), REFUSED, "train0.xml"),
    "bytes of another encoding": (declared(b"utf-8", b"\xe9"), REFUSED, "train0.xml"),
    "XML that is cut": (image(XML, b"<annotation><size>"), REFUSED, "train0.xml"),
    "an object without a box": (image(XML, NO_BOX), REFUSED, "train0.xml"),
    "an empty name": (named("cat", ""), REFUSED, "no name"),
    "no objects": (named(), REFUSED, "categories"),
    "no list": (listed(val=""), REFUSED, "val.txt"),
    "a name without an image": (listed(train="train0\nowl\n"), REFUSED, "owl"),
    "an image of another size": (image("JPEGImages/train0.jpg", photo(5, (W + 9, H))), REFUSED, "size"),
}


TABLES = {Coco: COCO, Panoptic: PANOPTIC, Maps: MAPS, Yolo: YOLO, Voc: VOC, VocFolder: VOC_FOLDERS}


@pytest.fixture
def made(bases, tmp_path, monkeypatch):
    """The commands on a data set with a change, in place of that of a base config."""

    def make(kind, change, base=None, **attributes):
        data = kind()
        change(data)
        vars(data).update(attributes)
        monkeypatch.chdir(tmp_path)
        return Tools(data, tmp_path, bases[base or kind.format], monkeypatch)

    return make


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, rows in TABLES.items() for name in rows])
def test_rows(kind, name, made):
    if kind in (Yolo, Voc, VocFolder):
        pytest.importorskip("vitdense.extensions.formats")
    change, right, *words = TABLES[kind][name]
    tools = made(kind, change)
    said = {} if tools.asked is None else {"new": tools.new()}
    if tools.configs:  # YOLO's are written as COCO's
        said |= {"check": tools.check(), "train": tools.start("train", "val")}
    if kind in (Yolo, VocFolder) and right == WARNED:  # the lines are no longer there
        said = {"new": said["new"]}
    wrong = {tool: x for tool, x in said.items() if x.verdict != right or not all(word in x for word in words)}
    assert not wrong
    if kind != Maps and tools.configs and tools.has_truth and tools.start("test").verdict != REFUSED:
        score = tools.score()
        if any("COCO's metric counts them" in found for found in said.values()):  # what a training leaves out
            assert score < 1
        else:
            assert score == pytest.approx(1) or (right == REFUSED and not score > 0)


OF_MASKS = ["segmentation null", "segmentation absent", "segmentation flat", "all polygons beside their boxes"]
OF_MASKS += ["a polygon with NaN", "a polygon of half a point", "run-length codes of width and height"]


@pytest.mark.parametrize("name", OF_MASKS)
def test_masks_stop_a_training_only_where_it_loads_them(name, made):
    tools = made(Coco, COCO[name][0], "yolo", options=["--boxes"])
    said = {"new": tools.new(), "check": tools.check(), "train": tools.start("train", "val")}
    right = FINE if "ull" in name or "absent" in name else WARNED
    assert {tool: found.verdict for tool, found in said.items()} == dict.fromkeys(said, right)
    assert tools.score() == pytest.approx(1)


@pytest.mark.parametrize("nested", [False, True])
def test_missing_masks_name_the_way_out_if_any_step_loads_them(nested, made):
    tools = made(Coco, both(one(segmentation=[])))
    load = {"type": "LoadAnnotations", "with_mask": True}
    if nested:
        load = {"type": "RandomChoice", "transforms": [[load]]}
    tools.base = copy.deepcopy(tools.base)
    tools.base.train_dataloader.dataset.pipeline = [load]
    assert "--boxes" in tools.start("train")


def test_one_process_of_a_machine_reads(made, monkeypatch):
    tools = made(Coco, both(one(image_id=99)))
    assert tools.start("train").verdict == REFUSED
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert tools.start("train").verdict == FINE


@pytest.mark.parametrize("drop", [False, True])
def test_an_object_that_is_annotated_twice_is_dropped_by_an_option(drop, made):
    tools = made(Coco, both(double), dataset={"type": "vitdense.CocoDataset", "drop_doubles": drop})
    dataset = DATASETS.build({**tools.config().train_dataloader.dataset, "pipeline": []})
    assert len(dataset.get_data_info(0)["instances"]) == (2 if drop else 4)
    assert tools.score() == pytest.approx(1)


def test_a_metric_that_does_not_know_of_dropped_objects_is_refused(made):
    cfg = made(Coco, both(double), dataset={"type": "vitdense.CocoDataset", "drop_doubles": True}).config()
    for metric, number in (("mmdet.CocoMetric", 0), ("mmdet.CocoOccludedSeparatedMetric", 1)):
        cfg.val_evaluator = {"type": metric, "ann_file": "val.json"}
        follow_classes(cfg)
        found = list(evaluators(cfg, data_sets(cfg, ("val",))))
        assert len(found) == number
        assert all(fault.grave and "drop_doubles" in str(fault) for fault in found)


def test_what_is_damaged_or_repaired_between_two_looks_is_seen(made):
    def in_a_folder(data):
        data.train["images"][0]["file_name"] = "a/0.jpg"
        data.train["annotations"][0]["file_name"] = "a/0.png"
        data.files["train/a/0.jpg"] = data.files.pop("train/0.jpg")
        data.files["train_png/a/0.png"] = data.files.pop("train_png/0.png")

    tools, file = made(Panoptic, in_a_folder), Path("train_png/a/0.png")
    png = file.read_bytes()
    for content, right in ((png, FINE), (png[:40], REFUSED), (png, FINE)):
        file.write_bytes(content)
        assert [tools.check().verdict, tools.start("train", "val").verdict] == [right, right]


def test_a_fault_names_its_items_and_their_number():
    fault = Fault("masks have no pixel", "a.json", (1, 2), "remove them", of="annotations", total=8)
    assert str(fault) == "a.json: masks have no pixel: 2, 25 % of 8 (annotations 1, 2); remove them"
    assert str(Fault("masks have no pixel")) == "masks have no pixel"
