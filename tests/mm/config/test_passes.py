"""The list of what changes a config: a key has one pass that writes it, and the user's own options stay verbatim."""

import copy
import re
from contextlib import suppress
from fnmatch import fnmatch
from itertools import combinations

import pytest
import torch
from conftest import LARGER, RECIPES

from vitdense.__main__ import main
from vitdense.mm.config import load, passes, start
from vitdense.mm.config.base import Asked, build_loader, run_passes
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.config.options import move_data
from vitdense.mm.config.passes import BUILDING, LOADING, PREDICTING, STARTING, TESTING, TRAINING, built
from vitdense.mm.config.query import nodes
from vitdense.mm.precision import Inference

BASE = "_base_ = 'vitdense::configs/demo/cascade_swin_nano_shapes.py'\n"
COMMANDS = {
    "train": (*LOADING, *TRAINING, *STARTING, *BUILDING),
    "test": (*LOADING, *TESTING, *BUILDING),
    "predict": (*LOADING, *PREDICTING),
}
OPTIONS = {
    "settings.log_to": ["tensorboard"],
    "train_dataloader.num_workers": 0,
    "default_hooks.logger.interval": 7,
    "optim_wrapper.accumulative_counts": 3,
    "settings.total_batch_size": 12,
    "default_hooks.visualization": None,
    "work_dir": "mine",
}


# Keys that several passes of one command write, and these passes in their order. --cfg-options may write any.
SHARED = {
    "work_dir": ("--launcher or --work-dir", "folder of a test"),
    "default_hooks.exact_load.fresh": ("--fresh", "--resume"),  # of a training's start, so not of a resumed one
    "tta_pipeline.*": ("settings.image_size", "readers of test images"),
    "model.*": (
        *("settings.image_size", "classes of the training data"),
        *("weights that a checkpoint replaces", "exported file", "masks as run-length codes"),
    ),
    "test_dataloader.dataset.*": (
        *("settings.image_size", "readers of test images", "--tta", "--tiles", "exported file"),
        "masks as run-length codes",
    ),
}
OF_TRAININGS = (
    ({"amp": "bfloat16", "auto_scale_lr": True, "fresh": ["head"]}, {**OPTIONS, "load_from": "a.pth"}),
    ({"amp": "float16", "resume": "a.pth"}, {}),
)
OF_TESTS = (
    ({}, {"dtype": torch.bfloat16, "tiles": 64}),
    ({"tta": True}, {"dtype": torch.bfloat16}),
    ({"checkpoint": "a.onnx"}, {}),
)


def some_of_each_type(contents):
    """Configs with a type of a part that none before has."""
    seen = set()
    for content in contents:
        types = {node["type"] for node in nodes(content.to_dict()) if isinstance(node.get("type"), str)}
        if types - seen:
            yield content
        seen |= types


def recorded(every):
    some = [path for path in RECIPES if "nano" in path.stem or path.stem == "upernet_swin_t_ade20k"]  # scales in --tta
    paths = [path for path in RECIPES if path not in LARGER] if every else some
    contents = map(load._read, paths)
    found = {name: {step.name: set() for step in command} for name, command in COMMANDS.items()}

    def record(name, content, asked, options):
        cfg, changes = copy.deepcopy(content), []
        if name == "predict":
            load.completed(cfg, Asked(options), changes)
            built(cfg, asked, PREDICTING, changes)
        else:
            load.completed(cfg, Asked(options), changes)
            if asked.auto_scale_lr:
                cfg.auto_scale_lr = {"base_batch_size": 16}
            command = (*TRAINING, *STARTING) if name == "train" else TESTING
            command = [step for step in command if not (asked.exported and step.name.startswith("classes of"))]
            run_passes(command, cfg, asked, changes)
            built(cfg, asked, changes=changes)
        for change in changes:
            found[name][change.by].add(change.key)
        for wrapper in ("--tta", "--tiles"):  # a model that they wrap is as it was
            keys = found[name].get(wrapper, set())
            inner = {key.replace("model.module.", "model.", 1) for key in keys if key.startswith("model.module.")}
            keys -= inner | {key.replace("model.", "model.module.", 1) for key in inner if key in keys}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitdense.mm.config.run.check_precision", lambda *_: None)  # of another machine
        patch.setattr("vitdense.mm.precision.cpu_has_bfloat16", lambda: True)
        for content in contents if every else some_of_each_type(contents):
            content.optim_wrapper.pop("type", None)  # of our own, which --amp does not replace
            settings = of_settings(content)
            for asked, options in OF_TRAININGS:
                record("train", content, Asked(**asked), {**options, **settings})
            if not content.get("test_dataloader"):
                continue
            record("predict", content, Asked(checkpoint="a.pth"), {})
            for asked, predicts in OF_TESTS:
                if content.default_scope == "mmseg":
                    predicts = {key: value for key, value in predicts.items() if key != "tiles"}
                if "tta" not in asked or content.get("tta_model"):
                    asked = {"checkpoint": "a.pth", "inference": Inference(**predicts), **asked}
                    record("test", content, Asked(**asked), {})
    return found


def of_settings(content):
    found = {}
    for name, value, apply in (
        *((name, 5, passes.settings.set_length) for name in ("max_epochs", "max_iters")),
        ("image_size", 64, passes.settings.set_image_size),
    ):
        cfg = copy.deepcopy(content)
        cfg.settings = {name: value}
        with suppress(ConfigError):
            apply(cfg)
            found[f"settings.{name}"] = value
    with suppress(ConfigError):
        moved = {"data_root": "elsewhere/"}
        move_data(copy.deepcopy(content), Asked(moved))
        found |= moved
    return found


@pytest.mark.long
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_key_has_one_pass_that_writes_it_or_an_order_that_is_declared(every):
    needed, written = set(), recorded(every)
    for name, command in COMMANDS.items():
        for first, second in combinations([step for step in command if step.name != "--cfg-options"], 2):
            for key in written[name][first.name] & written[name][second.name]:
                declared = [names for pattern, names in SHARED.items() if fnmatch(key, pattern)]
                assert any((first.name, second.name) in combinations(names, 2) for names in declared), (
                    f"{name}: {key} is written by {first.name}, then by {second.name}"
                )
                needed |= {pattern for pattern in SHARED if fnmatch(key, pattern)}
    assert needed == set(SHARED)  # none that no command needs


def test_scope_of_a_base_of_ours_is_dropped(tmp_path):
    (tmp_path / "mine.py").write_text(BASE)
    changes = []
    cfg = load_config(tmp_path / "mine.py", changes=changes)
    assert {change.new for change in changes if change.by == LOADING[0].name} == {"absent"}
    assert "_scope_" not in cfg.pretty_text


def test_options_of_the_same_command_stay_as_given():
    """`data_root` moves data sets and metrics, once, and nothing else that the command says."""
    given = {
        "data_root": "data/coco/2017/",
        "work_dir": "data/coco/run",
        "load_from": "data/coco/a.pth",
        "model.backbone.init_cfg": {"type": "Pretrained", "checkpoint": "data/coco/b.pth"},
        "val_dataloader.dataset.data_root": "data/coco/other/",
    }
    cfg = load_config("cascade_swin_t_coco", given)
    assert (cfg.work_dir, cfg.load_from) == ("data/coco/run", "data/coco/a.pth")
    assert cfg.model.backbone.init_cfg.checkpoint == "data/coco/b.pth"
    assert cfg.train_dataloader.dataset.data_root == "data/coco/2017/"
    assert cfg.val_dataloader.dataset.data_root == "data/coco/other/"
    assert cfg.test_evaluator.ann_file == "data/coco/other/annotations/instances_val2017.json"  # equal to validation
    assert built(cfg, Asked()).model.backbone.init_cfg is None  # load_from replaces it
    assert cfg.model.backbone.init_cfg.checkpoint == "data/coco/b.pth"


SAVES_WITHIN_A_STEP = {"default_hooks.checkpoint.by_epoch": False, "default_hooks.checkpoint.interval": 3}
SAVES_WITHIN_A_STEP |= {"optim_wrapper.accumulative_counts": 2}


@pytest.mark.parametrize(
    ("options", "asked", "named"),
    [
        ({"optim_wrapper.type": "AmpOptimWrapper"}, {"amp": "bfloat16"}, "optim_wrapper.type"),
        ({"auto_scale_lr.enable": False}, {"auto_scale_lr": True}, "auto_scale_lr.enable"),
        ({"load_from": "a.pth", "default_hooks.exact_load.fresh": ["a"]}, {"fresh": ["b"]}, "exact_load.fresh"),
        ({"load_from": "a.pth", "default_hooks.exact_load": None}, {"fresh": ["b"]}, "exact_load"),
        ({}, {"fresh": ["b"]}, "--fresh: .*load_from"),
        ({"load_from": "a.pth"}, {"resume": "b.pth"}, "load_from"),
        ({"default_hooks.exact_load.fresh": ["a"]}, {"resume": "b.pth"}, "exact_load.fresh"),
        (SAVES_WITHIN_A_STEP, {}, "checkpoint.interval"),
    ],
)
def test_a_pass_that_would_undo_an_option_is_refused(options, asked, named, monkeypatch):
    monkeypatch.setattr("vitdense.mm.config.run.check_precision", lambda *_: None)
    cfg = load_config("cascade_swin_nano_shapes", options)
    with pytest.raises(ConfigError, match=named):
        run_passes((*TRAINING, STARTING[0]), cfg, Asked(**asked))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_dataloader.num_workers": 0, "train_dataloader.prefetch_factor": 4}, "prefetch_factor"),
        ({"settings.log_to": ["tensorboard"], "visualizer": None}, "visualizer"),
        ({"settings.log_to": ["tensorboard"], "visualizer.vis_backends": []}, "visualizer"),
        ({"settings.max_iters": 3, "train_cfg.max_iters": 4}, "max_iters"),
        ({"settings.max_iters": 3, "train_cfg": {"max_iters": 4}}, "max_iters"),
        ({"settings.image_size": 64, "val_dataloader.dataset.pipeline.1.scale": (128, 128)}, "image_size"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_options_that_contradict_each_other_are_refused(options, named):
    with pytest.raises(ConfigError, match=named):
        load_config("rfdetr_nano_shapes", options)


def test_worker_options_are_dropped_without_workers():
    keys = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")
    cfg = load_config("upernet_swin_nano_shapes", {"train_dataloader.num_workers": 0})
    assert not {*keys} & cfg.train_dataloader.keys()
    assert cfg.val_dataloader.persistent_workers
    assert build_loader(cfg, "val").num_workers == 0


@pytest.mark.parametrize("name", ["default_hooks.exact_load", "default_hooks.logger", "default_hooks"])
def test_none_leaves_a_hook_out(name):
    cfg = load_config("cascade_swin_nano_shapes", {name: None})
    run_passes(TRAINING, cfg, Asked())
    hooks = built(cfg, Asked()).default_hooks
    if name == "default_hooks.exact_load":
        assert "exact_load" not in hooks
    else:
        assert (hooks and hooks.logger) is None  # a key, for mmengine has a logger of its own


def test_a_checkpoint_in_the_current_folder_is_not_followed(tmp_path, monkeypatch):
    cfg = load_config("cascade_swin_nano_shapes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rest.pth").write_bytes(b"of something else")
    start.follow_outputs(cfg, Asked())


@pytest.mark.long
def test_check_prints_what_each_pass_changes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitdense.mm.checks.report.look", lambda *_: ([], []))
    options = ["--cfg-options", "settings.max_iters=5", "train_dataloader.batch_size=2"]
    assert main(["check", "rfdetr_nano_shapes", "--passes", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    of_options = lines.index("--cfg-options")
    assert lines[of_options + 1] == "    train_dataloader.batch_size: 8 -> 2"
    assert lines.index("settings.max_epochs or max_iters") < of_options
    assert "    default_hooks.logger.ignore_last: absent -> False" in lines


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("default_scope", 7, "text"),
        ("model.auxiliary_head", -1, "a list of such"),
        ("model.type", b"Swin", "a name or a class"),
        ("model.type", "", "a name or a class"),
        ("model.backbone", None, "dict(type=...)"),
        ("visualizer", 7, "dict(type=...)"),
        ("custom_hooks", [3], "a list of dicts"),
        ("param_scheduler", True, "a list of such"),
        ("model.rpn_head.num_convs", 534199, "fewer than 1000"),
        ("default_hooks.logger", 3, "a dict of dicts"),
        ("val_dataloader", {"_delete_": True, "batch_size": 2}, "val_dataloader.dataset"),
        ("test_dataloader", {"_delete_": True}, "test_dataloader.dataset"),
        ("test_evaluator", {"_delete_": True, "metric": "bbox"}, "a list of such"),
        ("train_dataloader.dataset.ann_file", True, "text"),
        ("train_dataloader.dataset.pipeline", "0", "a list of dicts"),
        ("train_dataloader.dataset.data_prefix.img", 3, "a dict of texts"),
    ],
)
def test_values_of_another_kind(tmp_path, key, value, expected):
    *path, last = key.split(".")
    nested = {last: value}
    for part in reversed(path):
        nested = {part: nested}
    ((name, part),) = nested.items()
    (tmp_path / "mine.py").write_text(f"{BASE}{name} = {part!r}\n")
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load_config(tmp_path / "mine.py")


def test_variables_and_what_a_logger_is_told_are_free(tmp_path):
    told = "dataset, depths, visualizer = 'coco', [2000], dict(init_kwargs=dict(dataset='a', type='a b'))"
    (tmp_path / "mine.py").write_text(f"{BASE}{told}\n")
    assert load_config(tmp_path / "mine.py").dataset == "coco"
