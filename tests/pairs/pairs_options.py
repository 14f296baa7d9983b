"""The options that a user combines, what each promises, and which contradict each other."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitdense.layers.blocks import DropPath
from vitdense.layers.lora import LowRankUpdate
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.precision import cpu_has_bfloat16


class Option(NamedTuple):
    """What a user sets.

    A value is a list of what it adds to the command: flags, ``key=value`` of ``--cfg-options``, dicts of dotted keys
    for the config file; or a function of the row that returns one. Every row that has it keeps `promise(row, value)`,
    which asserts, or returns what is to be equal: got and expected.
    """

    name: str
    command: str
    values: Mapping[str, Sequence | Callable[[Any], Sequence]]
    promise: Callable[[Any, str], tuple[Any, Any] | None]


def counting(epochs):
    length = dict(max_epochs=12, val_interval=12) if epochs else dict(max_iters=40, val_interval=40)
    schedules = [dict(type="LinearLR", start_factor=0.5, by_epoch=False, begin=0, end=2 if epochs else 40)]
    if epochs:
        schedules += [dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1)]
    sampler = f"vitdense.Seeded{'Epoch' if epochs else 'Infinite'}Sampler"
    return {
        "train_cfg": dict(_delete_=True, type=f"{'Epoch' if epochs else 'Iter'}BasedTrainLoop", **length),
        "param_scheduler": schedules,
        "train_dataloader.sampler": dict(_delete_=True, type=sampler),
        "default_hooks.checkpoint.by_epoch": epochs,
        "log_processor.by_epoch": epochs,
    }


SGD = dict(_delete_=True, type="SGD", lr=0.001, momentum=0.9, weight_decay=1e-4)
CLASSIFIES = ("cls", "class", "conv_seg")  # parts of the names of layers of classes
KINDS = {
    "cascade": "CascadeRCNN", "rfdetr": "SingleStageDetector", "eomt": "Mask2Former", "upernet": "EncoderDecoder",
    "retinanet": "RetinaNet",
}  # fmt: skip


BFLOAT16 = ["--amp", "bfloat16"] if cpu_has_bfloat16() else []


def choice(*names):
    return dict.fromkeys(names, ())


def switch(*given):
    return {"off": (), "on": given}


def loaders(key, value):
    return lambda row: [f"{split}_dataloader.{key}={value}" for split in row.loaders]


def last_of(work):
    return work / Path((work / "last_checkpoint").read_text()).name


# Promises: functions of a row and a value, or what returns one.


def holds(pattern):
    """The work folder has such files, besides an overwritten training's, if an option is on."""
    return lambda row, value: (
        any("replaced_" not in str(path.relative_to(row.work)) for path in row.work.rglob(pattern)),
        value not in ("off", "none"),
    )


def in_bfloat16(command):
    return lambda row, value: (torch.bfloat16 in row.seen[command].dtypes, value == "bfloat16" and cpu_has_bfloat16())


def in_tiles(command, images):
    """The backbone sees more than whole images."""
    return lambda row, value: (
        sum(one.images for one in row.seen[command].passes) > images * (row.views if command == "test" else 1),
        value == "48",
    )


def data(row, value):
    root = str(row.shared.other_data if value == "other" else "data/shapes")
    assert all(image.startswith(root) for images in row.probe.iterations for image in images), root


def image_size(row, value):
    crops = row.recipe.task == "segmentation"  # images to validate keep their size
    sides = {one.side for one in row.seen["train"].passes if one.training == crops}
    assert sides <= {int(value), -(-int(value) // 32) * 32}, sides


def due_validations(row):
    unit, every, begin = (row.per_epoch, 1, 2) if row.by_epoch else (1, 2, 3)
    number = row.iterations // unit
    every, begin = {"interval": (every, 0), "begin": (1, begin)}.get(row["val"], (number, 0))
    times = (time for time in range(1, number + 1) if time >= begin and (time % every == 0 or time == number))
    return [] if row["val"] == "none" else [time * unit for time in times]


def val(row, value):
    parts = [row.seen[name].probe for name in ("first", "train") if name in row.seen]
    made = {time for part in parts for time in part.validations}
    return sorted(made | {row.made_before} & {*due_validations(row)}), due_validations(row)


def start(row, value):
    if value == "overwrite":
        assert not (row.work / "iter_1.pth").exists() or row.by_epoch is False
    elif value != "empty" and row["recipe"] != "retinanet":  # whose pipeline, mmdet's, has no seed by sample
        whole = read_checkpoint(str(last_of(row.folder / "whole")))["state_dict"]
        wrong = [key for key, x in row.checkpoint["state_dict"].items() if not torch.allclose(x, whole[key])]
        assert not wrong, f"not the weights of an uninterrupted run: {wrong[:5]}"


def weights(row, value):
    if value == "random" or row.made_before:
        return
    kept = read_checkpoint(str(row.kept))["state_dict"]
    kept = {key: x for key, x in kept.items() if x.is_floating_point() and (x.ndim > 1 or "backbone" in key)}
    heads = {key for key in kept if any(part in key for part in CLASSIFIES)}
    loaded = {"load_from": {*kept}, "fresh": kept.keys() - heads, "init": {k for k in kept if "backbone." in k}}[value]
    other = {key for key, x in kept.items() if not row.probe.start[key].cpu().equal(x)}
    assert not loaded & other, sorted(loaded & other)[:5]
    assert value != "fresh" or heads <= other, sorted(heads - other)[:5]


def finetune(row, value):
    trunk = row.probe.runner.model.backbone
    trains = {name for name, x in trunk.named_parameters() if x.requires_grad}
    assert (value == "all") == (len(trains) == len([*trunk.parameters()]))
    assert (value == "frozen") == (not trains)
    assert (value == "lora") == any(isinstance(part, LowRankUpdate) for part in trunk.modules())
    assert value != "attention" or not any("mlp" in name for name in trains)


def accumulate(row, value):
    counts = {int(one["step"]) for one in row.checkpoint["optimizer"]["state"].values() if "step" in one}  # of AdamW
    assert counts <= {row.iterations // int(value), -(-row.iterations // int(value))}, counts


def auto_scale_lr(row, value):
    runner = row.probe.runner
    ratio = row.batch * int(row["accumulate"]) / runner.cfg.auto_scale_lr.base_batch_size if value == "on" else 1
    highest = max(group["initial_lr"] for group in runner.optim_wrapper.optimizer.param_groups)
    return round(highest, 9), round(runner.cfg.optim_wrapper.optimizer.lr * ratio, 9)


def cache(row, value):
    """Maps are kept, and the trunk runs in an epoch at most."""
    assert value == "off" or row.probe.linear_calls <= row.per_epoch, row.probe.linear_calls
    return any((row.folder / "maps").rglob("*.safetensors")), value == "on"


def with_cp(row, value):
    if row["cache"] == "on":
        return None
    trains = any(x.requires_grad for x in row.probe.runner.model.backbone.parameters())
    return row.probe.linear_calls, len(row.probe.iterations) * (2 if value == "on" and trains else 1)


def interval(row, value):
    every = int(value) + (0 if row.by_epoch else -int(value) % int(row["accumulate"]))
    last = 3 if row.by_epoch else row.iterations
    due = [time for time in range(1, last + 1) if time % every == 0 or time == last][-int(row["keep"]) :]
    absent = {f"{'epoch' if row.by_epoch else 'iter'}_{time}.pth" for time in due} - row.checkpoints
    assert not absent, absent


def logger(row, value):
    files = row.work.glob("*/vis_data/scalars.json")
    logged = {record["iter"] for file in files for record in map(json.loads, file.open()) if "iter" in record}
    assert logged == {*range(1, row.iterations + 1)} if value == "1" else logged, logged


# fmt: off
OPTIONS = [
    Option("recipe", "train", choice(*KINDS), lambda row, v: (type(row.probe.runner.model).__name__, KINDS[v])),
    Option("config", "train", choice("file", "new", "written"), lambda row, v: (
        "_base_ =" in (row.work / row.path.name).read_text(), False)),
    Option("data_root", "train", {"own": (), "other": lambda row: [f"data_root={row.shared.other_data}"]}, data),
    Option("work_dir", "train", choice("default", "wörk dir/w 1", "data/shapes/../w"), lambda row, v: (
        (row.work / row.path.name).exists(), True)),
    Option("length", "train", {
        "iters": lambda row: ["--iters", "4", *([counting(epochs=False)] if row.recipe.unit == "epochs" else [])],
        "epochs": lambda row: ["--epochs", "3", *([counting(epochs=True)] if row.recipe.unit == "iters" else [])],
        "option": lambda row: ["train_cfg.max_epochs=3" if row.by_epoch else "train_cfg.max_iters=4"],
    }, lambda row, v: (len(row.probe.iterations), row.iterations - row.made_before)),
    Option("image_size", "train", {
        "64": ["--image-size", "64"], "96": ["settings.image_size=96"], "80": [{"settings.image_size": 80}],
    }, image_size),
    Option("batch", "train", {"2": ["--batch-size", "2"], "4": ["train_dataloader.batch_size=4"]}, lambda row, v: (
        {len(images) for images in row.probe.iterations}, {int(v)})),
    Option("val", "train", {
        "recipe": lambda row: ["train_cfg.val_interval=12"] if row.recipe.unit == "epochs" and row.by_epoch else [],
        "interval": lambda row: [f"train_cfg.val_interval={1 if row.by_epoch else 2}"],
        "begin": lambda row: ["train_cfg.val_interval=1", f"train_cfg.val_begin={2 if row.by_epoch else 3}"],
        "none": ["val_cfg=None", "val_dataloader=None", "val_evaluator=None"],
    }, val),
    Option("start", "train", choice("empty", "resume", "copy", "overwrite"), start),
    Option("weights", "train", {
        "random": (),
        "load_from": lambda row: [{"load_from": str(row.kept)}],
        "fresh": lambda row: [{"load_from": str(row.kept)}, "--fresh", *row.fresh],
        "init": lambda row: [{"model.backbone.init_cfg": row.init_cfg}],
    }, weights),
    Option("finetune", "train", {
        "all": (), "frozen": ["model.backbone.frozen_stages=all"], "lora": ["model.backbone.finetune=lora"],
        "attention": ["model.backbone.finetune=attention"],
    }, finetune),
    Option("cache", "train", switch("--cache-features", "maps", "--views", "1"), cache),
    Option("optimizer", "train", {"recipe": (), "sgd": [{"optim_wrapper.optimizer": SGD}]}, lambda row, v: (
        type(row.probe.runner.optim_wrapper.optimizer).__name__,
        "SGD" if "sgd" in (v, row.recipe.optimizer) else "AdamW")),
    Option("clip", "train", {
        "on": ["optim_wrapper.clip_grad.max_norm=1.0"], "off": ["optim_wrapper.clip_grad=None"],
    }, lambda row, v: (bool(row.probe.runner.optim_wrapper.clip_grad_kwargs), v == "on")),
    Option("accumulate", "train", {"1": (), "2": ["optim_wrapper.accumulative_counts=2"]}, accumulate),
    Option("auto_scale_lr", "train", switch("--auto-scale-lr"), auto_scale_lr),
    Option("amp", "train", {"float32": (), "bfloat16": BFLOAT16}, in_bfloat16("train")),
    Option("with_cp", "train", switch("model.backbone.with_cp=True"), with_cp),
    Option("drop_path", "train", {n: [f"model.backbone.drop_path_rate={n}"] for n in ("0", "0.2")}, lambda row, v: (
        any(x.drop_prob for x in row.probe.runner.model.backbone.modules() if isinstance(x, DropPath)), v != "0")),
    Option("ema", "train", switch("default_hooks.ema.type=EMAHook"), lambda row, v: (
        "ema_state_dict" in row.checkpoint, v == "on")),
    Option("stop", "train", {"off": (), "on": lambda row: [
        "default_hooks.stop.type=EarlyStoppingHook", f"default_hooks.stop.monitor={row.recipe.metric}",
        "default_hooks.stop.patience=9", "default_hooks.stop.min_delta=0.001", "default_hooks.stop.rule=greater",
    ]}, lambda row, v: (any("EarlyStopping" in type(h).__name__ for h in row.probe.runner.hooks), v == "on")),
    Option("curves", "train", {
        "on": ["default_hooks.curves.type=vitdense.CurvesHook"], "off": ["default_hooks.curves=None"],
    }, holds("curves.png")),
    Option("log_to", "train", {"none": (), "tensorboard": ["--log-to", "tensorboard"]}, holds("events.out.tfevents*")),
    Option("workers", "train", {n: loaders("num_workers", n) for n in ("0", "2")}, lambda row, v: (
        row.probe.runner.train_dataloader.num_workers, int(v))),
    Option("persistent", "train", {"on": (), "off": loaders("persistent_workers", False)}, lambda row, v: (
        row.probe.runner.train_dataloader.persistent_workers, v == "on" and row["workers"] != "0")),
    Option("seed", "train", {
        "0": ["randomness.seed=0"],
        "7": ["randomness.seed=7", f"randomness.deterministic={not torch.cuda.is_available()}"],
    }, lambda row, v: (row.probe.runner.seed, int(v))),
    Option("interval", "train", {n: [f"default_hooks.checkpoint.interval={n}"] for n in ("1", "2")}, interval),
    Option("keep", "train", {n: [f"default_hooks.checkpoint.max_keep_ckpts={n}"] for n in ("1", "3")}, lambda row, v: (
        len(row.checkpoints - {f"iter_{row.made_before}.pth"}) <= int(v), True)),
    Option("save_best", "train", {
        "none": ["default_hooks.checkpoint.save_best=None"],
        "metric": lambda row: [
            f"default_hooks.checkpoint.save_best={row.recipe.metric}", "default_hooks.checkpoint.rule=greater"],
    }, holds("best_*.pth")),
    Option("logger", "train", {"recipe": (), "1": ["default_hooks.logger.interval=1"]}, logger),
    Option("moved", "train", choice("stays", "moved"), lambda row, v: (row.before.exists(), v == "stays")),
    Option("named", "test", choice("folder", "config", "file"), lambda row, v: (bool(row.metrics), True)),
    Option("tta", "test", switch("--tta"), lambda row, v: (
        "TTA" in type(row.seen["test"].probe.runner.model).__name__, v == "on")),
    Option("tiles_test", "test", {"off": (), "48": ["--tiles", "48"]}, in_tiles("test", 4)),
    Option("amp_test", "test", {"float32": (), "bfloat16": BFLOAT16}, in_bfloat16("test")),
    Option("onednn_test", "test", {"on": (), "off": ["--no-onednn"]}, lambda row, v: (
        v == "off" and "by oneDNN" in row.seen["test"].said, False)),
    Option("out", "test", {"printed": (), "file": ["--out", "metrics.json"]}, lambda row, v: (
        v == "file" and json.loads((row.folder / "metrics.json").read_text()).keys() != row.metrics.keys(), False)),
    Option("by", "predict", choice("command", "as dataset", "paths", "pillow", "stream"), lambda row, v: (
        len(row.sizes), len(row.photos))),
    Option("photos", "predict", choice("plain", "odd"), lambda row, v: (
        row.sizes, [image.size[::-1] for image in row.photos.values()])),
    Option("tiles_predict", "predict", {"off": (), "48": ["--tiles", "48"]}, in_tiles("predict", 2)),
    Option("amp_predict", "predict", {"float32": (), "bfloat16": BFLOAT16}, in_bfloat16("predict")),
    Option("onednn_predict", "predict", {"on": (), "off": ["--no-onednn"]}, lambda row, v: None),
    Option("threshold", "predict", {"0": ["--score-thr", "0"], "0.3": ()}, lambda row, v: (
        [score for score in row.scores if score < float(v)], [])),
    Option("export", "export", {"none": ()} | {to: ["--to", to, "--unchecked"] for to in ("onnx", "pt2")},
        lambda row, v: (row.exported is None, v == "none")),
    *(Option(name, "export", values, lambda row, v, name=name: (row.program.get(name, v), v)) for name, values in {
        "precision": {"float32": (), "half": ["--half"], "int8": ["--int8"]},
        "preprocessing": switch("--with-preprocessing"),
        "static": {"dynamic": (), "static": ["--static", "128", "128"]},
        "maps": switch("--maps"),
    }.items()),
]
# fmt: on
FIRST = {option.name: next(iter(option.values)) for option in OPTIONS}


def together(word, *names, **values):
    """Options that are refused, for some recipes or for all, by one line with a given word."""
    return [({**({"recipe": name} if name else {}), **values}, word) for name in names or (None,)]


# Refused together. The array has none of these pairs; each has a row of its own.
CONTRADICTIONS = [
    *together("tiles", "upernet", "eomt", tiles_test="48"),
    *together("tiles", "upernet", "eomt", tiles_predict="48"),
    *together("tta", "cascade", "rfdetr", "eomt", tta="on"),
    *together("tta", "upernet", "retinanet", tta="on", tiles_test="48"),
    *together("--as-dataset", "eomt", by="as dataset"),
    *together("--fresh", weights="load_from", finetune="lora"),
    *together("frozen_stages=all", cache="on", finetune="all"),
    *together("finetune=None", cache="on", finetune="lora"),
    *together("finetune=None", cache="on", finetune="attention"),
    *together("its head runs", "eomt", cache="on", finetune="frozen"),
    *together("SeedFromSample", "retinanet", cache="on", finetune="frozen"),
    *together("--fresh", start="resume", weights="fresh"),
    *together("--fresh", start="copy", weights="fresh"),
    *together("interval", length="iters", interval="1", accumulate="2"),
    *together("save_best", val="none", save_best="metric"),
    *together("default_hooks.stop", val="none", stop="on"),
    *together("--int8", export="pt2", precision="int8"),
    *together("--with-preprocessing", export="pt2", preprocessing="on"),
    *together("--int8", export="onnx", maps="on", precision="int8"),
    *together("--with-preprocessing", export="onnx", maps="on", preprocessing="on"),
    *together("--maps", "eomt", "upernet", export="onnx", maps="on"),
    *together("--maps", "eomt", "upernet", export="pt2", maps="on"),
    # At 64 to 96 pixels its last map is one pixel, which a program of torch for all sizes does not take.
    *together("--static", "cascade", image_size="64", export="pt2", static="dynamic"),
    *together("--static", "retinanet", export="pt2", static="dynamic", maps="off"),
    *together("int8", "eomt", export="onnx", precision="int8"),
]
# Without a meaning: options of an export that is not made, and what is refused with --iters, with a length by
# --cfg-options. The weight gradient of torch's convolution on a map of one pixel, 3x3 in steps of 2, in bfloat16 on a
# CPU, has values that nobody wrote (torch 2.11), among them NaN.
MEANINGLESS = [
    {"recipe": "retinanet", "image_size": "64", "amp": "bfloat16"},
    {"length": "option", "interval": "1", "accumulate": "2"},
    *(
        {"export": "none", option.name: value}
        for option in OPTIONS
        if option.command == "export" and option.name != "export"
        for value in [*option.values][1:]
    ),
]
