"""A row of the array as a user runs it: the commands, in this process, and what was seen of them."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from commands import forget, run_command
from conftest import REPO
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from pairs_options import CLASSIFIES, FIRST, OPTIONS, last_of
from PIL import Image
from torch import nn

import vitdense
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.data.shapes import CLASSES, draw_dataset
from vitdense.models.base import Backbone

DRAW = dict(num_train=4, num_val=4, image_size=(96, 96))
STOP = 2  # iterations of a training that is interrupted
SPLITS = ("train", "val", "test")


class Recipe(NamedTuple):
    base: str
    task: str
    metric: str
    new: list[str]  # arguments of `vitdense new`
    file: Mapping[str, Any] = {}  # what a config of it has otherwise, by dotted keys
    unit: str = "iters"
    optimizer: str = "adamw"
    replaces_init: bool = False  # the base has an init_cfg of its backbone


def of_shapes(options: str) -> list[str]:
    return [word if word.startswith("--") else f"data/shapes/{word}" for word in options.split()]


IMAGES = of_shapes("--images train --val-images val")
BOXES = IMAGES + of_shapes("--train annotations/instances_train.json --val annotations/instances_val.json")
SEGMENTS = IMAGES + of_shapes("--train panoptic/panoptic_train.json --val panoptic/panoptic_val.json")
SEGMENTS += of_shapes("--segments panoptic/train --val-segments panoptic/val")
MAPS = IMAGES + of_shapes("--labels semantic/train --val-labels semantic/val")
MAPS += ["--classes", ",".join(("background", *CLASSES))]
CROP = [dict(type="vitdense.SeedFromSample"), dict(type="vitdense.LoadImage"), dict(type="LoadAnnotations")]
CROP += [dict(type="RandomCrop", crop_size=(96, 96)), dict(type="RandomFlip", prob=0.5), dict(type="PackSegInputs")]
SHALLOW = {"model.backbone.arch.depths": (2, 1, 1, 1)}  # of a Swin: exports take two thirds of the time
UPERNET = {**SHALLOW, "train_dataloader.dataset.pipeline": CROP, "model.data_preprocessor.size": (96, 96)}
RETINANET: dict[str, Any] = {"model.backbone.init_cfg": None, "data_root": "data/shapes/"}
RETINANET["model.bbox_head.num_classes"] = len(CLASSES)
for split, kind in zip(SPLITS, ("train", "val", "val")):
    data = dict(type="vitdense.ShapesDataset", data_root="data/shapes/", data_prefix=dict(img=f"{kind}/"))
    data["ann_file"] = f"annotations/instances_{kind}.json"
    RETINANET |= {f"{split}_dataloader.dataset.{key}": value for key, value in data.items()}
    if split != "train":
        RETINANET[f"{split}_evaluator.ann_file"] = "data/shapes/annotations/instances_val.json"
RETINANET["model.backbone.arch"] = dict(_delete_=True, embed_dims=192, depth=4, num_heads=3)
MMDET = "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py"
RECIPES = {
    "cascade": Recipe("cascade_swin_nano_shapes", "detection", "coco/bbox_mAP", BOXES, SHALLOW, replaces_init=True),
    "rfdetr": Recipe("rfdetr_seg_nano_shapes", "detection", "coco/bbox_mAP", BOXES),
    "eomt": Recipe("eomt_nano_shapes", "panoptic", "coco_panoptic/PQ", SEGMENTS),
    "upernet": Recipe("upernet_swin_nano_shapes", "segmentation", "mIoU", MAPS, UPERNET, replaces_init=True),
    "retinanet": Recipe(MMDET, "detection", "coco/bbox_mAP", ["--boxes", *BOXES], RETINANET, "epochs", "sgd"),
}
ALWAYS: dict[str, Any] = {f"{split}_dataloader.dataset.draw": DRAW for split in SPLITS}
ALWAYS["default_hooks.probe"] = dict(type="PairsProbe")


@HOOKS.register_module()
class PairsProbe(Hook):
    priority = "VERY_LOW"
    latest: ClassVar["PairsProbe | None"] = None
    interrupts: ClassVar[bool] = False  # by SIGTERM, as a scheduler does

    def before_test(self, runner):
        self.runner, PairsProbe.latest = runner, self

    def before_train(self, runner):
        self.before_test(runner)
        self.iterations, self.validations, self.linear_calls = [], [], 0
        self.start = {key: value.clone() for key, value in runner.model.state_dict().items()}
        next(x for x in runner.model.backbone.modules() if isinstance(x, nn.Linear)).register_forward_hook(self._count)

    def _count(self, *_):
        self.linear_calls += torch.is_grad_enabled()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.iterations.append([sample.img_path for sample in data_batch["data_samples"]])
        if self.interrupts and runner.iter + 1 == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    def after_val_epoch(self, runner, metrics=None):
        self.validations.append(runner.iter)


class Refused(Exception):
    """A command ended with status 2 and one line."""


@contextlib.contextmanager
def watched():
    """What is seen inside: forward passes of backbones, with the longer side of their inputs, and data types of the
    outputs of linear layers."""
    seen = SimpleNamespace(said="", passes=[], dtypes=set(), probe=None)

    def look(module, args, output):
        if torch.compiler.is_exporting():  # a size that is read becomes part of the program
            return
        if isinstance(module, Backbone):
            one = SimpleNamespace(training=module.training, images=len(args[0]), side=max(args[0].shape[-2:]))
            seen.passes.append(one)
        elif isinstance(module, nn.Linear):
            seen.dtypes.add(output.dtype)

    forget()
    handle = nn.modules.module.register_module_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


class Shared:
    """Shared by the rows: data, and a short training per recipe, made on demand."""

    def __init__(self, folder):
        self.folder, self.data, self.other_data = folder, folder / "shapes", folder / "other shapes"
        for root in (self.data, self.other_data):
            draw_dataset(root, **DRAW)

    @cache  # noqa: B019
    def base(self, name):
        if name != "retinanet":
            return str(REPO / f"configs/demo/{RECIPES[name].base}.py")
        path = str(self.folder / "swapped.py")
        assert run_command(["swap", MMDET, "--backbone", "deit_tiny", "--out", path])[0] == 0
        return path

    @cache  # noqa: B019
    def trained(self, name):
        row = Row(FIRST | {"recipe": name}, self.folder / name, self)
        row.train()
        return row.work


class Row:
    """The commands of a row: its values by the names of options, the current folder, what rows share."""

    def __init__(self, values, folder, shared):
        self.values, self.folder, self.shared = values, folder, shared
        self.recipe = RECIPES[values["recipe"]]
        self.seen = {}
        self.batch = int(values["batch"])
        self.per_epoch = DRAW["num_train"] // self.batch
        self.by_epoch = "epochs" in (values["length"], self.recipe.unit if values["length"] == "option" else "")
        self.iterations = 3 * self.per_epoch if self.by_epoch else 4
        self.made_before = STOP if values["start"] in ("resume", "copy") else 0  # by the part that was interrupted
        self.loaders = ("train",) if values["val"] == "none" else ("train", "val")
        self.views = (2 if values["recipe"] == "upernet" else 6) if values["tta"] == "on" else 1  # flips, and scales
        shutil.copytree(shared.data, folder / "data/shapes")

    def __getitem__(self, name):
        return self.values[name]

    def given(self, command):
        chosen = (option.values[self[option.name]] for option in OPTIONS if option.command == command)
        parts = [part for value in chosen for part in (value(self) if callable(value) else value)]
        file = {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
        words = [part for part in parts if isinstance(part, str)]
        options = [word for word in words if "=" in word]
        flags = [word for word in words if "=" not in word]
        return [*flags, *(["--cfg-options", *options] if options else [])], file

    def run(self, name, *args, status=0):
        PairsProbe.latest, words = None, [*map(str, args)]
        os.chdir(self.folder)
        with watched() as seen:
            code, seen.said = run_command(words)
        seen.probe = PairsProbe.latest
        self.seen[name] = seen
        if code != status:
            errors = [line for line in seen.said.splitlines() if line.startswith("error: ")]
            if code == 2 and errors:
                raise Refused(errors[-1])
            raise AssertionError(f"cd {self.folder} && vitdense {shlex.join(words)}\n{seen.said[-6000:]}")

    def config(self, file):
        """The config of this row: a file; one on top of `vitdense new`'s; or one with its bases written out."""
        base, content = self.shared.base(self["recipe"]), {**self.recipe.file, **ALWAYS, **file}
        if self["config"] == "new":
            self.run("new", "new", self.recipe.task, "new.py", "--base", base, *self.recipe.new)
            of_data = re.compile(r".*dataset\.(?!pipeline)|data_root|.*evaluator|.*num_classes")
            base, content = "new.py", {key: value for key, value in content.items() if not of_data.match(key)}
        nested = Config()
        nested.merge_from_dict(content)
        path = self.folder / "row.py"
        lines = (f"{key} = {value!r}\n" for key, value in {"_base_": base, **nested.to_dict()}.items())
        path.write_text("".join(lines), encoding="utf-8")
        if self["config"] == "written":
            path = self.folder / "full.py"
            self.run("check", "check", "row.py", "--write", path)
        return path

    def train(self):
        flags, file = self.given("train")
        self.path = self.config(file)
        where = [] if self["work_dir"] == "default" else ["--work-dir", self["work_dir"]]
        self.work = self.folder / (where[1] if where else "work_dirs/row")
        if self.made_before:
            self.run("whole", "train", self.path, "--work-dir", "whole", *flags)
            PairsProbe.interrupts = True
            try:
                self.run("first", "train", self.path, *where, *flags, status=143)
            finally:
                PairsProbe.interrupts = False
            if self["start"] == "copy":
                self.work = self.work.rename(self.folder / "copy")
                where = ["--work-dir", "copy"]
            where.append("--resume")
        elif self["start"] == "overwrite":
            shutil.copytree(self.shared.trained(self["recipe"]), self.work)
            where.append("--overwrite")
        self.run("train", "train", self.path, *where, *flags)
        self.before = self.work
        if self["moved"] == "moved":
            self.work = Path(shutil.move(self.work, self.folder / "moved ü"))

    @property
    def probe(self):
        return self.seen["train"].probe

    @cached_property
    def checkpoint(self):
        return read_checkpoint(str(last_of(self.work)))

    @property
    def checkpoints(self):
        return {path.name for path in self.work.glob("*.pth") if path.name.startswith(("iter_", "epoch_"))}

    @property
    def kept(self):
        return last_of(self.shared.trained(self["recipe"]))

    @property
    def fresh(self):
        return [f".*({'|'.join(CLASSIFIES)}).*", *([r".+\.lora\..+"] if self["finetune"] == "lora" else [])]

    @property
    def init_cfg(self):
        path = self.shared.folder / f"{self['recipe']} backbone.pth"
        state = read_checkpoint(str(self.kept))["state_dict"]
        torch.save({key.removeprefix("backbone."): x for key, x in state.items() if key.startswith("backbone.")}, path)
        replaces = {"_delete_": True} if self.recipe.replaces_init else {}
        return {**replaces, "type": "Pretrained", "checkpoint": str(path)}

    @property
    def model(self):
        config = self.work / self.path.name
        return {"folder": [self.work], "config": [config, self.work], "file": [config, last_of(self.work)]}[
            self["named"]
        ]

    def test(self):
        self.run("test", "test", *self.model, *self.given("test")[0])
        lines = (re.fullmatch(r"(\S+) +(-?[0-9.]+|nan)", line) for line in self.seen["test"].said.splitlines())
        self.metrics = {line[1]: float(line[2]) for line in lines if line}

    @cached_property
    def photos(self):
        noise = np.random.default_rng(0).integers(0, 255, (61, 97, 3), dtype=np.uint8)
        if self["photos"] == "odd":
            return {"a photo.png": Image.fromarray(noise), "grey é.png": Image.fromarray(noise[:, :64, 0])}
        return {path.name: Image.open(path) for path in sorted((self.shared.data / "val").iterdir())[:2]}

    def predict(self):
        folder, flags = self.folder / "photos", self.given("predict")[0]
        folder.mkdir()
        for name, image in self.photos.items():
            image.save(folder / name)
        if self["by"] in ("command", "as dataset"):
            return self._predict_by_command(flags)
        options = {"onednn": "--no-onednn" not in flags, "tiles": 48 if "--tiles" in flags else None}
        options |= {"dtype": torch.bfloat16} if "--amp" in flags else {}
        options |= {"score_thr": 0.0} if "--score-thr" in flags else {}
        with watched() as self.seen["predict"]:
            model, paths = vitdense.load(*self.model, **options), [folder / name for name in self.photos]
            wanted = list(model(paths))
            self.seen["predict"].passes.clear()
            opened = [Image.open(path) for path in paths]
            arrays = (np.array(image.convert("RGB")) for image in opened)
            found = list(model({"paths": paths, "pillow": opened, "stream": arrays}[self["by"]]))
        for one, same in zip(found, wanted):
            for part in ("boxes", "scores", "labels", "semantic", "panoptic"):
                np.testing.assert_array_equal(getattr(one, part), getattr(same, part), part)
        self.sizes = [one.image.shape[:2] for one in found]
        self.scores = [score for one in found if one.scores is not None for score in one.scores]

    def _predict_by_command(self, flags):
        is_training_set, is_segmentor = self["by"] == "as dataset", self.recipe.task == "segmentation"
        to = "--as-dataset" if is_training_set else "--out-dir"
        self.run("predict", "predict", *self.model, "photos", to, "out", *flags)
        out = self.folder / "out"
        folder = out / "labels" if is_segmentor else self.folder / "photos" if is_training_set else out
        names = [Path(name).with_suffix(".png") if is_segmentor else name for name in self.photos]
        self.sizes = [Image.open(folder / name).size[::-1] for name in names]
        content = [json.loads(path.read_text()) for path in out.glob("*.json")]
        found = [one for part in content for one in (part if isinstance(part, list) else part["annotations"])]
        self.scores = [one["score"] for one in found if "score" in one]
        assert bool(content) != is_segmentor

    def export(self):
        self.exported = None if self["export"] == "none" else self.folder / f"model.{self['export']}"
        if self.exported:
            self.run("export", "export", *self.model, *self.given("export")[0], "--out", self.exported)

    @cached_property
    def program(self):
        if self.exported is None:
            return {}
        if self["export"] == "pt2":
            program = torch.export.load(self.exported)
            kinds, takes_photos = {x.dtype for x in program.state_dict.values()}, False
            image = next(node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
            is_half, is_int8 = torch.float16 in kinds, False
            is_static = all(isinstance(side, int) for side in image.meta["val"].shape)
        else:
            import onnx

            graph = onnx.load(self.exported).graph
            image, kinds = graph.input[0].type.tensor_type, {one.data_type for one in graph.initializer}
            is_half, is_int8 = onnx.TensorProto.FLOAT16 in kinds, onnx.TensorProto.INT8 in kinds
            takes_photos = image.elem_type == onnx.TensorProto.UINT8
            is_static = all(side.dim_value for side in image.shape.dim)
        return {
            "precision": "int8" if is_int8 else "half" if is_half else "float32",
            "preprocessing": "on" if takes_photos else "off",
            **({} if takes_photos else {"static": "static" if is_static else "dynamic"}),  # photos have any size
            "maps": "on" if "map0 [" in self.seen["export"].said else "off",
        }

    def everything(self):
        for step in (self.train, self.test, self.predict, self.export):
            step()
        broken = []
        for option in OPTIONS:
            try:
                got, expected = option.promise(self, self[option.name]) or (None, None)
                assert got == expected, f"got {got}, expected {expected}"
            except AssertionError as error:
                broken.append(f"{option.name}={self[option.name]}: {error}")
        assert not broken, "\n".join(broken)
