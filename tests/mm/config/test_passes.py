"""The list of what changes a config: every pass writes what it declares, and the user's own options stay verbatim."""

import fnmatch

import pytest

from vitdense.__main__ import main
from vitdense.mm.config.base import Asked, run_passes
from vitdense.mm.config.load import CONFIGS, ConfigError, load_config
from vitdense.mm.config.loaders import in_process
from vitdense.mm.config.passes import LOADING, TRAINING

pytest.importorskip("mmdet")

NANO = sorted(path.stem for path in (CONFIGS / "demo").glob("*_nano_*.py"))
OPTIONS = {
    "settings.log_to": ["tensorboard"],
    "train_dataloader.num_workers": 0,
    "default_hooks.logger.interval": 7,
    "optim_wrapper.accumulative_counts": 3,
    "default_hooks.visualization": None,
    "work_dir": "mine",
}
ALL = (*LOADING, *TRAINING)


@pytest.fixture(scope="module")
def changes():
    """What each pass changes in every nano config, with an option of every kind."""
    found = []
    for name in NANO:
        length = "max_epochs" if "max_epochs" in load_config(name).train_cfg else "max_iters"
        size = {} if name == "upernet_swin_nano_shapes" else {"settings.image_size": 64}  # its images are not resized
        cfg = load_config(name, {**OPTIONS, **size, f"settings.{length}": 5}, changes=found)
        cfg.launcher = "pytorch"  # of --shard
        asked = Asked(amp="bfloat16", auto_scale_lr=True, shard=True, fresh=["head"])
        cfg.auto_scale_lr = {"base_batch_size": 16}
        run_passes([step for step in TRAINING if step.name != "--amp"], cfg, asked, found)
        run_passes(TRAINING, load_config(name), Asked(resume="a.pth"), found)
    return found


def test_a_pass_writes_what_it_declares(changes):
    declared = {step.name: step.writes for step in ALL}
    wrong = [
        f"{change.by}: {change.key}"
        for change in changes
        if not any(fnmatch.fnmatchcase(change.key, pattern) for pattern in declared[change.by])
    ]
    assert not wrong


def test_a_key_has_one_pass_that_writes_it(changes):
    assert len({step.name for step in ALL}) == len(ALL)
    writers = {}
    for change in changes:
        if change.by != "--cfg-options":  # which no other may change, see below
            writers.setdefault(change.key, set()).add(change.by)
    assert {key: names for key, names in writers.items() if len(names) > 1} == {}


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


@pytest.mark.parametrize(
    ("options", "asked", "named"),
    [
        ({"optim_wrapper.type": "AmpOptimWrapper"}, {"amp": "bfloat16"}, "optim_wrapper.type"),
        ({"auto_scale_lr.enable": False}, {"auto_scale_lr": True}, "auto_scale_lr.enable"),
        ({"default_hooks.exact_load.fresh": ["a"]}, {"fresh": ["b"]}, "exact_load.fresh"),
        ({"default_hooks.exact_load": None}, {"fresh": ["b"]}, "exact_load"),
        ({"load_from": "a.pth"}, {"resume": "b.pth"}, "load_from"),
        ({"default_hooks.exact_load.fresh": ["a"]}, {"resume": "b.pth"}, "exact_load.fresh"),
        (
            {"default_hooks.checkpoint.by_epoch": False, "default_hooks.checkpoint.interval": 3}
            | {"optim_wrapper.accumulative_counts": 2},
            {},
            "checkpoint.interval",
        ),
    ],
)
def test_a_pass_that_would_undo_an_option_is_refused(options, asked, named, monkeypatch):
    monkeypatch.setattr("vitdense.mm.config.passes.check_precision", lambda *_: None)
    cfg = load_config("cascade_swin_nano_shapes", options)
    with pytest.raises(ConfigError, match=named):
        run_passes(TRAINING, cfg, Asked(**asked))


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


def test_without_workers_what_needs_them_goes():
    keys = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")
    cfg = load_config("cascade_swin_nano_shapes", {"train_dataloader.num_workers": 0})
    assert not {*keys} & cfg.train_dataloader.keys()
    assert cfg.val_dataloader.persistent_workers
    loader = dict.fromkeys(keys, 1) | {"num_workers": 4, "batch_size": 2}
    assert in_process(loader) == {"num_workers": 0, "batch_size": 2}
    assert len(loader) == 7


@pytest.mark.parametrize(
    ("options", "hooks"),
    [
        ({"default_hooks.exact_load": None}, lambda cfg: "exact_load" not in cfg.default_hooks),
        ({"default_hooks.logger": None}, lambda cfg: cfg.default_hooks.logger is None),  # mmengine knows it of its own
        ({"default_hooks": None}, lambda cfg: cfg.default_hooks is None),
    ],
)
def test_none_leaves_a_hook_out(options, hooks):
    cfg = load_config("cascade_swin_nano_shapes", options)
    run_passes(TRAINING, cfg, Asked())
    assert hooks(cfg)


@pytest.mark.long
def test_check_prints_what_each_pass_changes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitdense.mm.cli.check.report", lambda *_: 0)
    options = ["--cfg-options", "settings.max_iters=5", "train_dataloader.batch_size=2"]
    assert main(["check", "rfdetr_nano_shapes", "--passes", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "--cfg-options: train_dataloader.batch_size: 8 -> 2" in lines
    assert any(line.startswith("settings.max_epochs or max_iters: train_cfg.max_iters: ") for line in lines)
    assert "the log of a short run: default_hooks.logger.ignore_last: absent -> False" in lines
