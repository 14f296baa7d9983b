"""A row of the array as a user runs it: the commands, in this process, and what was seen of them."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from conftest import REPO
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.utils import ManagerMixin
from pairs_options import CLASSIFIES, OPTIONS, last_of
from PIL import Image
from torch import nn

import vitdense
from vitdense.__main__ import main
from vitdense.mm.data.shapes import CLASSES, draw_panoptic_dataset
from vitdense.mm.train.checkpoints import read_checkpoint
from vitdense.models.base import Backbone

DRAW = dict(num_train=4, num_val=4, image_size=(96, 96))
STOP = 2  # iterations of a training that is interrupted
SPLITS = ("train", "val", "test")


class Recipe(NamedTuple):
    """A model. `new`: arguments of `vitdense new`; `file`: what a config of it has otherwise, by dotted keys."""

    base: str
    task: str
    metric: str
    new: tuple[str, ...]
    file: Mapping[str, Any] = {}
    unit: str = "iters"
    optimizer: str = "adamw"
    replaces_init: bool = False  # the base has an init_cfg of its backbone


def given(**paths: str) -> tuple[str, ...]:
    """Options of `vitdense new` and their paths below the data set."""
    return tuple(
        part for name, path in paths.items() for part in (f"--{name.replace('_', '-')}", f"data/shapes/{path}")
    )


IMAGES = given(images="train", val_images="val")
BOXES = IMAGES + given(train="annotations/instances_train.json", val="annotations/instances_val.json")
SEGMENTS = IMAGES + given(train="panoptic/panoptic_train.json", val="panoptic/panoptic_val.json")
SEGMENTS += given(segments="panoptic/train", val_segments="panoptic/val")
MAPS = IMAGES + given(labels="semantic/train", val_labels="semantic/val")
MAPS += ("--classes", ",".join(("background", *CLASSES)))
CROP = [dict(type="vitdense.SeedFromSample"), dict(type="vitdense.LoadImage"), dict(type="LoadAnnotations")]
CROP += [dict(type="RandomCrop", crop_size=(96, 96)), dict(type="RandomFlip", prob=0.5), dict(type="PackSegInputs")]
UPERNET = {"train_dataloader.dataset.pipeline": CROP, "model.data_preprocessor.size": (96, 96)}
RETINANET: dict[str, Any] = {"model.backbone.init_cfg": None, "data_root": "data/shapes/"}
RETINANET["model.bbox_head.num_classes"] = len(CLASSES)
for split, kind in zip(SPLITS, ("train", "val", "val")):
    data = dict(type="vitdense.ShapesDataset", data_root="data/shapes/", data_prefix=dict(img=f"{kind}/"))
    data["ann_file"] = f"annotations/instances_{kind}.json"
    RETINANET |= {f"{split}_dataloader.dataset.{key}": value for key, value in data.items()}
    if split != "train":
        RETINANET[f"{split}_evaluator.ann_file"] = "data/shapes/annotations/instances_val.json"
MMDET = "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py"
RECIPES = {
    "cascade": Recipe("cascade_swin_nano_shapes", "detection", "coco/bbox_mAP", BOXES, replaces_init=True),
    "rfdetr": Recipe("rfdetr_seg_nano_shapes", "detection", "coco/bbox_mAP", BOXES),
    "eomt": Recipe("eomt_nano_shapes", "panoptic", "coco_panoptic/PQ", SEGMENTS),
    "upernet": Recipe("upernet_swin_nano_shapes", "segmentation", "mIoU", MAPS, UPERNET, replaces_init=True),
    "retinanet": Recipe(MMDET, "detection", "coco/bbox_mAP", ("--boxes", *BOXES), RETINANET, "epochs", "sgd"),
}
ALWAYS: dict[str, Any] = {f"{split}_dataloader.dataset.draw": DRAW for split in SPLITS}
ALWAYS["default_hooks.probe"] = dict(type="PairsProbe")


@HOOKS.register_module()
class PairsProbe(Hook):
    """A training or a test, from inside."""

    priority = "VERY_LOW"
    latest: ClassVar["PairsProbe | None"] = None
    interrupts: ClassVar[bool] = False  # by SIGTERM, as a scheduler does

    def before_test(self, runner: Any) -> None:
        self.runner, PairsProbe.latest = runner, self

    def before_train(self, runner: Any) -> None:
        self.before_test(runner)
        self.iterations, self.validations, self.linear_calls = [], [], 0
        self.start = {key: value.clone() for key, value in runner.model.state_dict().items()}
        next(x for x in runner.model.backbone.modules() if isinstance(x, nn.Linear)).register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.linear_calls += torch.is_grad_enabled()

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.iterations.append([sample.img_path for sample in data_batch["data_samples"]])
        if self.interrupts and runner.iter + 1 == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        self.validations.append(runner.iter)


class Refused(Exception):
    """A command ended with status 2 and one line."""


class Pass(NamedTuple):
    """A forward pass of a backbone; the side is the longer one of its input."""

    training: bool
    images: int
    side: int


class Seen(NamedTuple):
    """What a command printed, and what was seen of it; data types are those of the outputs of linear layers."""

    said: str
    passes: list[Pass]
    dtypes: set[torch.dtype]
    probe: Any = None


@contextlib.contextmanager
def watched() -> Iterator[Seen]:
    """What is seen inside, in a process as new: mmengine has loggers, visualizers and scopes once."""
    kinds = [ManagerMixin]
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        kind._instance_dict.clear()
    seen = Seen("", [], set())

    def look(module: nn.Module, args: tuple, output: Any) -> None:
        if torch.compiler.is_exporting():  # of which a size that is read becomes part
            return
        if isinstance(module, Backbone):
            seen.passes.append(Pass(module.training, len(args[0]), max(args[0].shape[-2:])))
        elif isinstance(module, nn.Linear):
            seen.dtypes.add(output.dtype)

    handle = nn.modules.module.register_module_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


class Shared:
    """What the rows share: data, and per recipe a short training, made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.other_data = folder, folder / "shapes", folder / "other shapes"
        for root in (self.data, self.other_data):
            draw_panoptic_dataset(root, **DRAW)

    @cache  # noqa: B019
    def base(self, name: str) -> str:
        """The config that those of a recipe inherit."""
        if name != "retinanet":
            return str(REPO / f"configs/demo/{RECIPES[name].base}.py")
        path = str(self.folder / "swapped.py")
        assert main(["swap", MMDET, "--backbone", "deit_tiny", "--out", path]) == 0
        return path

    @cache  # noqa: B019
    def trained(self, name: str) -> "Row":
        """A training with the first values of all options."""
        folder, here = self.folder / name, Path.cwd()
        folder.mkdir()
        os.chdir(folder)
        try:
            row = Row({option.name: next(iter(option.values)) for option in OPTIONS} | {"recipe": name}, folder, self)
            row.train()
        finally:
            os.chdir(here)
        return row


class Row:
    """The commands of a row.

    Args:
        values: By the name of the option.
        folder: The current folder.
        shared: What rows share.
    """

    def __init__(self, values: Mapping[str, str], folder: Path, shared: Shared) -> None:
        self.values, self.folder, self.shared = values, folder, shared
        self.recipe = RECIPES[values["recipe"]]
        self.seen: dict[str, Seen] = {}
        self.batch = int(values["batch"])
        self.per_epoch = DRAW["num_train"] // self.batch
        self.by_epoch = "epochs" in (values["length"], self.recipe.unit if values["length"] == "option" else "")
        self.iterations = 3 * self.per_epoch if self.by_epoch else 4
        self.made_before = STOP if values["start"] in ("resume", "copy") else 0  # by the part that was interrupted
        self.loaders = ("train",) if values["val"] == "none" else ("train", "val")
        self.views = (2 if values["recipe"] == "upernet" else 6) if values["tta"] == "on" else 1  # flips, and scales
        shutil.copytree(shared.data, folder / "data/shapes")

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def given(self, command: str) -> tuple[list[str], dict[str, Any]]:
        """Arguments of a command, and what the config file of this row has for it."""
        chosen = (option.values[self[option.name]] for option in OPTIONS if option.command == command)
        parts = [part for value in chosen for part in (value(self) if callable(value) else value)]
        file = {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
        words = [part for part in parts if isinstance(part, str)]
        options = [word for word in words if "=" in word]
        flags = [word for word in words if "=" not in word]
        return [*flags, *(["--cfg-options", *options] if options else [])], file

    def run(self, name: str, *args: Any, status: int = 0) -> None:
        """Run a command as users do, but in this process; what was seen is kept under a name."""
        PairsProbe.latest, argv, out = None, sys.argv, io.StringIO()
        with watched() as seen, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                code = main([*map(str, args)])
            except SystemExit as end:
                code = end.code
            except BaseException:
                code = None
                traceback.print_exc()
            finally:
                sys.argv = argv
        said = out.getvalue()
        self.seen[name] = seen._replace(said=said, probe=PairsProbe.latest)
        if code != status:
            errors = [line for line in said.splitlines() if line.startswith("error: ")]
            if code == 2 and errors:
                raise Refused(errors[-1])
            last = said.strip().splitlines()[-1:]
            raise AssertionError(
                f"{last} of: cd {self.folder} && vitdense {shlex.join(map(str, args))}\n{said[-6000:]}"
            )

    def config(self, file: Mapping[str, Any]) -> Path:
        """The config of this row: a file; one on top of that of `vitdense new`; or one with its bases written out."""
        base, content = self.shared.base(self["recipe"]), {**self.recipe.file, **ALWAYS, **file}
        if self["config"] == "new":
            self.run("new", "new", self.recipe.task, "new.py", "--base", base, "--no-estimate", *self.recipe.new)
            of_data = re.compile(r".*dataset\.(?!pipeline)|data_root|.*evaluator|.*num_classes")
            base, content = "new.py", {key: value for key, value in content.items() if not of_data.match(key)}
        nested: dict[str, Any] = {"_base_": base}
        for key, value in content.items():
            *parents, last = key.split(".")
            node = nested
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        path = self.folder / "row.py"
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in nested.items()), encoding="utf-8")
        if self["config"] == "written":
            path = self.folder / "full.py"
            self.run("check", "check", "row.py", "--write", path)
        return path

    def train(self) -> None:
        """Train, also in parts."""
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
            shutil.copytree(self.shared.trained(self["recipe"]).work, self.work)
            where.append("--overwrite")
        self.run("train", "train", self.path, *where, *flags)
        self.before = self.work
        if self["moved"] == "moved":
            self.work = Path(shutil.move(self.work, self.folder / "moved ü"))

    @property
    def probe(self) -> PairsProbe:
        """Of the training; of the rest of it where it was interrupted."""
        return self.seen["train"].probe

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        """The last checkpoint."""
        return read_checkpoint(str(last_of(self.work)))

    @property
    def kept(self) -> Path:
        """A checkpoint of another training of the recipe."""
        return last_of(self.shared.trained(self["recipe"]).work)

    @property
    def fresh(self) -> list[str]:
        """Patterns for --fresh."""
        return [f".*({'|'.join(CLASSIFIES)}).*", *([r".+\.lora\..+"] if self["finetune"] == "lora" else [])]

    @property
    def init_cfg(self) -> dict[str, Any]:
        """Of a backbone that starts from its weights."""
        path, state = (
            self.shared.folder / f"{self['recipe']} backbone.pth",
            read_checkpoint(str(self.kept))["state_dict"],
        )
        torch.save({key.removeprefix("backbone."): x for key, x in state.items() if key.startswith("backbone.")}, path)
        replaces = {"_delete_": True} if self.recipe.replaces_init else {}
        return {**replaces, "type": "Pretrained", "checkpoint": str(path)}

    @property
    def model(self) -> list[Path]:
        """How commands name what was trained."""
        named = {"folder": [], "config": [self.work], "file": [last_of(self.work)]}[self["named"]]
        return [self.work / self.path.name, *named] if named else [self.work]

    def test(self) -> None:
        """Evaluate."""
        self.run("test", "test", *self.model, *self.given("test")[0])
        lines = (re.fullmatch(r"(\S+) +(-?[0-9.]+|nan)", line) for line in self.seen["test"].said.splitlines())
        self.metrics = {line[1]: float(line[2]) for line in lines if line}

    @cached_property
    def photos(self) -> dict[str, Image.Image]:
        """By the names of their files."""
        noise = np.random.default_rng(0).integers(0, 255, (61, 97, 3), dtype=np.uint8)
        if self["photos"] == "odd":
            return {"a photo.png": Image.fromarray(noise), "grey é.png": Image.fromarray(noise[:, :64, 0])}
        return {path.name: Image.open(path) for path in sorted((self.shared.data / "val").iterdir())[:2]}

    def predict(self) -> None:
        """Predict on photos, by the command or in Python."""
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

    def _predict_by_command(self, flags: list[str]) -> None:
        is_training_set, is_segmentor = self["by"] == "as dataset", self.recipe.task == "segmentation"
        self.run(
            "predict",
            "predict",
            *self.model,
            "photos",
            "--as-dataset" if is_training_set else "--out-dir",
            "out",
            *flags,
        )
        out = self.folder / "out"
        folder = out / "labels" if is_segmentor else self.folder / "photos" if is_training_set else out
        names = [Path(name).with_suffix(".png") if is_segmentor else name for name in self.photos]
        self.sizes = [Image.open(folder / name).size[::-1] for name in names]
        content = [json.loads(path.read_text()) for path in out.glob("*.json")]
        found = [one for part in content for one in (part if isinstance(part, list) else part["annotations"])]
        self.scores = [one["score"] for one in found if "score" in one]
        assert bool(content) != is_segmentor

    def export(self) -> None:
        """Export."""
        self.exported = None if self["export"] == "none" else self.folder / f"model.{self['export']}"
        if self.exported:
            self.run("export", "export", *self.model, *self.given("export")[0], "--out", self.exported)

    @cached_property
    def program(self) -> dict[str, str]:
        """What was exported, in the words of the options."""
        if self.exported is None:
            return {}
        if self["export"] == "pt2":
            program = torch.export.load(self.exported)
            kinds, takes_photos = {x.dtype for x in program.state_dict.values()}, False
            is_half, is_int8, is_static = torch.float16 in kinds, False, not program.range_constraints
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

    def everything(self) -> None:
        """All steps; and then what every option promises, all that is not kept in one message."""
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
