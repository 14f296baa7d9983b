"""Small sound data sets of every format, to be made wrong, and what `new`, `check`, a training and a test say."""

import contextlib
import copy
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from mmdet.structures import INSTANCE_OFFSET
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, METRICS, init_default_scope
from PIL import Image

from vitdense.errors import OptionError
from vitdense.mm import checks
from vitdense.mm.checks import data as data_checks
from vitdense.mm.checks import dry_step
from vitdense.mm.checks.report import report
from vitdense.mm.cli import new
from vitdense.mm.config import own_data
from vitdense.mm.config.classes import follow_classes
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import as_list, nodes
from vitdense.mm.data import faults
from vitdense.mm.data.panoptic import ids_of_colours

W, H = 80, 60
BASES = {"coco": "cascade_swin_nano_shapes", "maps": "upernet_swin_nano_camvid", "panoptic": "eomt_nano_shapes"}
BASES |= dict.fromkeys(("yolo", "voc", "voc_folder"), "cascade_rcnn_swin_nano_shapes")
DATA_CHECKS = (data_checks.files, data_checks.classes, data_checks.contents, data_checks.overlap)
SPLITS = {"train": 3, "val": 2}


def encoded(image: Image.Image | np.ndarray, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, form, **options)
    return buffer.getvalue()


def photo(seed: int, size: tuple[int, int] = (W, H), form: str = "JPEG", turned: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    exif = Image.Exif()
    if turned:
        exif[0x0112] = turned
    return encoded(pixels, form, exif=exif)


def photos(splits: dict[str, int]) -> dict[str, bytes]:
    return {f"{split}/{i}.jpg": photo(10 * len(split) + i) for split, n in splits.items() for i in range(n)}


PHOTOS = photos(SPLITS)


def square(x: float, y: float, w: float, h: float) -> list[list[float]]:
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


class Data:
    """Files of a data set by name, or what makes one at its path; what `new` is asked, and what its config says."""

    def __init__(self) -> None:
        self.files, self.options, self.dataset = dict(PHOTOS), [], {}

    def write(self, folder: Path) -> None:
        for name, content in self.contents.items():
            path = folder / name
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                content(path) if callable(content) else path.write_bytes(content)


class Coco(Data):
    """Two objects of two classes in every image."""

    format = "coco"

    def __init__(self, splits: dict[str, int] = SPLITS) -> None:
        super().__init__()
        self.files = photos(splits)
        self.train, self.val = (self.content(split, number) for split, number in splits.items())

    def content(self, split: str, number: int) -> dict:
        images = [{"id": i + 1, "file_name": f"{i}.jpg", "width": W, "height": H} for i in range(number)]
        boxes = [[10, 10, 20, 20], [40, 20, 30, 24]]
        annotations = [
            dict(id=2 * image["id"] + k, image_id=image["id"], category_id=k + 1, iscrowd=0, bbox=box)
            for image in images
            for k, box in enumerate(boxes)
        ]
        for one in annotations:
            one.update(area=one["bbox"][2] * one["bbox"][3], segmentation=square(*one["bbox"]))
        categories = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog"), 1)]
        return {"images": images, "annotations": annotations, "categories": categories}

    @property
    def contents(self) -> dict[str, bytes]:
        texts = {f"{split}.json": json.dumps(getattr(self, split)).encode() for split in SPLITS}
        return {**texts, **self.files}

    def command(self) -> list[str]:
        folders = ["--train", "train.json", "--val", "val.json", "--images", "train", "--val-images", "val"]
        return ["detection", *folders, *self.options]

    def configs(self) -> dict[str, dict]:
        return {s: dict(type="CocoDataset", ann_file=f"{s}.json", data_prefix=dict(img=s)) for s in SPLITS}


class Panoptic(Coco):
    """A thing of each class, and stuff around them, in every image."""

    format = "panoptic"

    def content(self, split: str, number: int) -> dict:
        content = super().content(split, number)
        names = enumerate(("cat", "dog", "sky"), 1)
        content["categories"] = [{"id": 10 * i, "name": name, "isthing": int(i < 3)} for i, name in names]
        content["annotations"] = []
        for image in content["images"]:
            ids = np.full((H, W), 3, np.int32)
            ids[10:30, 10:30], ids[20:44, 40:70] = 1, 300
            name = f"{image['id'] - 1}.png"
            self.files[f"{split}_png/{name}"] = png_of(ids)
            sky = (3, 30, [0, 0, W, H], W * H - 1120)
            parts = ((1, 10, [10, 10, 20, 20], 400), (300, 20, [40, 20, 30, 24], 720), sky)
            keys = ("id", "category_id", "bbox", "area")
            segments = [dict(zip(keys, part), iscrowd=0) for part in parts]
            content["annotations"].append({"image_id": image["id"], "file_name": name, "segments_info": segments})
        return content

    def command(self) -> list[str]:
        return ["panoptic", *super().command()[1:], "--segments", "train_png", "--val-segments", "val_png"]

    def configs(self) -> dict[str, dict]:
        own = super().configs()
        for split, one in own.items():
            one.update(type="vitdense.PanopticDataset", data_prefix=dict(img=split, seg=f"{split}_png"))
        return own


def png_of(ids: np.ndarray) -> bytes:
    return encoded(np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], -1).astype(np.uint8))


class Yolo(Data):
    """The data of `Coco` as boxes in shares of the image."""

    format = "yolo"

    def __init__(self) -> None:
        super().__init__()
        self.files = {f"images/{name}": content for name, content in self.files.items()}
        self.lines = ["0 0.25 0.333333 0.25 0.333333", "1 0.6875 0.533333 0.375 0.4"]
        self.files |= {name.replace("images", "labels").replace("jpg", "txt"): None for name in self.files}
        self.yaml = {"train": "images/train", "val": "images/val", "names": "[cat, dog]"}

    @property
    def contents(self) -> dict[str, bytes]:
        text = "".join(f"{key}: {value}\n" for key, value in self.yaml.items()).encode()
        lines = "\n".join(self.lines).encode()
        return {"data.yaml": text, **{name: lines if one is None else one for name, one in self.files.items()}}

    def command(self) -> list[str]:
        return ["detection", "--yolo", "data.yaml", "--boxes", *self.options]

    def configs(self) -> dict[str, dict]:
        return {}


class Maps(Data):
    """Three classes, and 255 for unlabelled pixels."""

    format = "maps"

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.suffix = "cat,dog,sky", ".png"
        self.maps = {f"{split}_maps/{i}.png": self.labels() for split, n in SPLITS.items() for i in range(n)}

    @staticmethod
    def labels() -> np.ndarray:
        labels = np.full((H, W), 2, np.uint8)
        labels[10:30, 10:30], labels[20:44, 40:70], labels[:2] = 0, 1, 255
        return labels

    @property
    def contents(self) -> dict[str, bytes]:
        return {**self.files, **{name: encoded(one) for name, one in self.maps.items()}}

    def command(self) -> list[str]:
        folders = ["--images", "train", "--labels", "train_maps", "--val-images", "val", "--val-labels", "val_maps"]
        options = [*folders, "--classes", self.classes, "--image-suffix", ".jpg", "--label-suffix", self.suffix]
        return ["segmentation", *options, *self.options]

    def configs(self) -> dict[str, dict]:
        names = self.classes if self.classes.endswith(".txt") else tuple(self.classes.split(","))
        own = dict(type="BaseSegDataset", img_suffix=".jpg", seg_map_suffix=self.suffix, metainfo=dict(classes=names))
        own["reduce_zero_label"] = "--reduce-zero-label" in self.options
        return {s: dict(own, data_prefix=dict(img_path=s, seg_map_path=f"{s}_maps")) for s in SPLITS}


class Voc(Data):
    """The data of `Coco` in Pascal VOC's files."""

    format = "voc"

    def __init__(self) -> None:
        super().__init__()
        self.names, self.difficult, self.head = ["cat", "dog"], 0, ""
        self.size = f"<size><width>{W}</width><height>{H}</height><depth>3</depth></size>"
        self.dataset = {"metainfo": {"classes": ("cat", "dog")}}

    @property
    def contents(self) -> dict[str, bytes]:
        photos = {name: content for name, content in self.files.items() if name in PHOTOS}
        found = {f"JPEGImages/{name.replace('/', '')}": content for name, content in photos.items()}
        boxes = ((10, 10, 30, 30), (40, 20, 70, 44), (35, 2, 50, 9))
        for split, number in SPLITS.items():
            found[f"ImageSets/Main/{split}.txt"] = "".join(f"{split}{i}\n" for i in range(number)).encode()
            for i in range(number):
                objects = ""
                for name, box in zip(self.names, boxes):
                    sides = "".join(f"<{key}>{v}</{key}>" for key, v in zip(("xmin", "ymin", "xmax", "ymax"), box))
                    about = f"<name>{name}</name><difficult>{self.difficult}</difficult>"
                    objects += f"<object>{about}<bndbox>{sides}</bndbox></object>"
                text = f"{self.head}<annotation>{self.size}{objects}</annotation>"
                encoding = self.head.split("'")[3] if self.head else "utf-8"
                found[f"Annotations/{split}{i}.xml"] = text.encode(encoding)
        return found | {name: content for name, content in self.files.items() if name not in PHOTOS}

    def configs(self) -> dict[str, dict]:
        prefix = dict(sub_data_root="")
        return {s: dict(type="XMLDataset", ann_file=f"ImageSets/Main/{s}.txt", data_prefix=prefix) for s in SPLITS}


class VocFolder(Voc):
    format = "voc_folder"

    def __init__(self) -> None:
        super().__init__()
        self.dataset = {}

    def command(self) -> list[str]:
        return ["detection", "--voc", ".", "--boxes", *self.options]

    def configs(self) -> dict[str, dict]:
        return {}


def config_of(data: Data, folder: Path, splits: tuple[str, ...] = tuple(SPLITS)) -> Config:
    data.write(folder)
    found = {"default_scope": "mmdet", "model": {"type": "MaskRCNN"}, "train_cfg": {"max_epochs": 1}}
    found |= {"optim_wrapper": {}, "param_scheduler": None}
    load = {"type": "LoadAnnotations", "with_mask": True}
    if data.format == "maps":
        found |= {"default_scope": "mmseg", "model": {"type": "EncoderDecoder", "decode_head": {"num_classes": 3}}}
        del load["with_mask"]
    else:
        data.dataset["metainfo"] = {"classes": [category["name"] for category in data.train["categories"]]}
    for split in splits:
        dataset = {**data.configs()[split], **data.dataset, "data_root": str(folder)}
        dataset["pipeline"] = [{"type": "LoadImageFromFile"}, dict(load)]
        found[f"{split}_dataloader"] = {"dataset": dataset}
    return Config(found | ({"val_cfg": {}, "val_evaluator": {}} if "val" in splits else {}))


class Said(SimpleNamespace):
    @property
    def verdict(self) -> str:
        return "refused" if self.errors else "warned" if self.warnings else "fine"

    def __contains__(self, word: str) -> bool:
        return any(word in line for line in (*self.errors, *self.warnings))


def refusal(error: Exception) -> Said:
    return Said(errors=[str(error)], warnings=[])


class Tools:
    """The data checks of all commands on a data set; models are not built."""

    def __init__(self, data: Data, folder: Path, base, monkeypatch) -> None:
        self.data, self.folder, self.base, self.patch = data, folder, base, monkeypatch
        monkeypatch.setenv("TORCH_HOME", str(folder / "cache"))
        monkeypatch.setattr(checks, "CHECKS", DATA_CHECKS)
        monkeypatch.setattr(dry_step, "find", lambda *_: ())
        data.write(folder)
        self.configs, self.asked = {s: one | data.dataset for s, one in data.configs().items()}, None
        self.has_truth = any(getattr(data, "val", {}).get("annotations") or ()) or not isinstance(data, Coco)
        if hasattr(data, "command"):
            self.asked = self._read()

    def _read(self) -> Said:
        args = new._parser().parse_args([*self.data.command(), "--force", "out.py"])
        args.base = Path(BASES[self.data.format])
        try:
            with contextlib.redirect_stdout(io.StringIO()), logged(self.patch) as warnings:
                if args.task == "detection":
                    new.set_method(args)
                found = own_data.read(args)
        except OptionError as error:
            return refusal(error)
        for path, content in found.written.items():
            path.write_text(json.dumps(content), encoding="utf-8")
        for split in SPLITS:
            own = dict(found.shared) | dict(getattr(found, split)) | self.data.dataset
            kind = self.configs.get(split, {}).get("type", "CocoDataset")
            self.configs[split] = {"type": kind, **own}
            self.configs[split]["data_root"] = found.root
        return Said(errors=[], warnings=warnings)

    def config(self):
        cfg = copy.deepcopy(self.base)
        for split in ("train", "val", "test"):
            loader = cfg[f"{split}_dataloader"]
            own = self.configs[split.replace("test", "val")]
            loader.dataset = ConfigDict({"data_root": "", **copy.deepcopy(own), "pipeline": loader.dataset.pipeline})
            for metric in as_list(cfg.get(f"{split}_evaluator")):
                metric.pop("ann_file", None)
        init_default_scope(cfg.default_scope)
        follow_classes(cfg)
        return cfg

    def new(self) -> Said:
        if self.asked is None or self.asked.errors:
            return self.asked
        found = self.check()
        return Said(errors=found.errors, warnings=self.asked.warnings + found.warnings)

    def check(self) -> Said:
        try:
            cfg = self.config()
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = report(cfg)
        except OptionError as error:
            return refusal(error)
        lines = printed.getvalue().splitlines()
        found = {kind: [x for x in lines if x.startswith(kind)] for kind in ("error:", "warning:")}
        assert (status == 2) == bool(found["error:"])
        return Said(errors=found["error:"], warnings=found["warning:"])

    def start(self, *splits: str) -> Said:
        try:
            with logged(self.patch) as warnings:
                checks.check(self.config(), splits)
        except OptionError as error:
            return refusal(error)
        return Said(errors=[], warnings=warnings)

    def score(self) -> float:
        cfg = self.config()
        metric = METRICS.build(as_list(cfg.test_evaluator)[0])
        dataset = DATASETS.build({**cfg.test_dataloader.dataset, "pipeline": [], "test_mode": True})
        metric.dataset_meta = dataset.metainfo
        for i in range(len(dataset)):
            metric.process({}, [getattr(self, f"_of_{self.data.format}")(dataset.get_data_info(i), dataset)])
        with contextlib.redirect_stdout(io.StringIO()):
            values = metric.evaluate(len(dataset))
        scores = {key.rpartition("/")[2]: value for key, value in values.items()}
        parts = (("bbox_mAP", 1), ("PQ", 100), ("mAP", 1))
        return next(scores[key] / part for key, part in parts if key in scores)

    @staticmethod
    def _of_coco(sample: dict, dataset) -> dict:
        kept = [one for one in sample["instances"] if not one["ignore_flag"]]
        boxes = torch.tensor([one["bbox"] for one in kept], dtype=torch.float).reshape(-1, 4)
        found = {"bboxes": boxes, "scores": torch.ones(len(kept))}
        found["labels"] = torch.tensor([one["bbox_label"] for one in kept], dtype=torch.long)
        return {"img_id": sample["img_id"], "ori_shape": (sample["height"], sample["width"]), "pred_instances": found}

    _of_yolo = _of_voc_folder = _of_coco

    @staticmethod
    def _of_voc(sample: dict, dataset) -> dict:
        found = Tools._of_coco(sample, dataset)
        truth = {key: found["pred_instances"][key] for key in ("bboxes", "labels")}
        ignored = {key: value[:0] for key, value in truth.items()}
        return {**found, "gt_instances": truth, "ignored_instances": ignored}

    @staticmethod
    def _of_panoptic(sample: dict, dataset) -> dict:
        ids = ids_of_colours(np.asarray(Image.open(sample["seg_map_path"])))
        codes = np.full_like(ids, len(dataset.metainfo["classes"]))
        for i, one in enumerate(sample["segments_info"]):
            codes[ids == one["id"]] = one["category"] + INSTANCE_OFFSET * (i + 1)
        found = {"sem_seg": torch.from_numpy(codes)[None]}
        return {**{key: sample[key] for key in ("seg_map_path", "segments_info")}, "pred_panoptic_seg": found}


@contextlib.contextmanager
def logged(patch):
    found: list[str] = []
    patch.setattr(faults, "print_log", lambda text, **kwargs: found.append(text))
    yield found


def base_configs() -> dict:
    found = {}
    metrics = {kind: dict(type="vitdense.CocoMetric", metric="bbox") for kind in ("coco", "yolo", "voc_folder")}
    metrics["voc"] = dict(type="VOCMetric", metric="mAP", eval_mode="11points")
    for kind, name in BASES.items():
        found[kind] = load_config(name)
        for head in nodes(found[kind].model):  # as in the file
            for key in ("num_things_classes", "num_stuff_classes"):
                head.pop(key, None)
        if kind in metrics:
            found[kind].val_evaluator = found[kind].test_evaluator = metrics[kind]
    return found
