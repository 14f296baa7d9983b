"""A training keeps finite weights, checkpoints, its work folder and its place in the data."""

import functools
import json
import multiprocessing
import os
import re
import shutil
import signal
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from mmengine.hooks import EarlyStoppingHook, Hook, LoggerHook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS
from mmseg.evaluation import IoUMetric

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.mm.checkpoints import AtomicLocalBackend, read_checkpoint
from vitdense.mm.config.load import load_config
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import StopSignal
from vitdense.mm.train import launch
from vitdense.mm.train.guards import StepError
from vitdense.mm.train.hooks import check_whole
from vitdense.mm.work_folder import WorkFolder

pytestmark = pytest.mark.long
LENGTH = 6


@HOOKS.register_module(name="GuardsAt", force=True)
class At(Hook):
    action = None

    def __init__(self, iteration, stage="train"):
        self.iteration, self.stage = iteration, stage

    def act(self, runner, stage, made):
        if (made, stage) == (self.iteration, self.stage):
            type(self).action(runner)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.act(runner, "train", runner.iter + 1)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.act(runner, "images", runner.iter)

    def after_val_epoch(self, runner, metrics=None):
        self.act(runner, "metrics", runner.iter)

    def before_save_checkpoint(self, runner, checkpoint):
        self.act(runner, "save", checkpoint["meta"]["iter"])


@HOOKS.register_module(name="GuardsSeen", force=True)
class Seen(Hook):
    names = ()

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        Seen.names += tuple(Path(sample.img_path).name for sample in data_batch["data_samples"])


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MMLogger, "_instance_dict", OrderedDict())  # named by the second, which runs can share

    def config(work_dir="work", epochs=False, **options):
        cfg = load_config("upernet_swin_nano_shapes", {"data_root": f"{tmp_path}/shapes/"}, work_dir)
        cfg.model.backbone.arch = dict(embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
        cfg.model.decode_head.update(in_channels=[8, 16, 32, 64], channels=8)
        cfg.model.auxiliary_head.update(in_channels=32, channels=8)
        for split in ("train", "val", "test"):
            loader = cfg[f"{split}_dataloader"]
            loader.update(batch_size=2, num_workers=0, persistent_workers=False)
            loader.dataset.draw = dict(num_train=12, num_val=2, image_size=(64, 64))
        cfg.train_cfg.update(max_iters=LENGTH, val_interval=100)
        cfg.experiment_name = work_dir  # or runs of one second share their best score
        cfg.param_scheduler = [dict(type="ConstantLR", factor=1.0, by_epoch=False, begin=0, end=LENGTH)]
        cfg.default_hooks.checkpoint.update(interval=1, max_keep_ckpts=2, save_best=None)
        if epochs:  # of six iterations each
            cfg.train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=2, val_interval=100)
            cfg.train_dataloader.sampler = dict(type="vitdense.SeededEpochSampler", shuffle=True)
            cfg.param_scheduler[0].end = 2 * LENGTH
            cfg.default_hooks.checkpoint.update(by_epoch=True)
        cfg.merge_from_dict(options)
        return cfg

    return config


def checkpoints(folder="work"):
    return sorted(path.name for path in Path(folder).glob("iter_*.pth"))


def files(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def is_finite(name):
    return all(x.isfinite().all() for x in read_checkpoint(name)["state_dict"].values())


def assert_equal(want, got):
    assert all(torch.equal(x, got[key]) for key, x in want.items())


def assert_ends_as_the_whole_run(name="iter_6.pth"):
    want, got = (read_checkpoint(f"{folder}/{name}") for folder in ("whole", "work"))
    assert_equal(want["state_dict"], got["state_dict"])
    assert got["meta"]["iter"] == want["meta"]["iter"]


def stop(runner=None):
    os.kill(os.getpid(), signal.SIGUSR1)


def poison(runner):
    def overflow(optimizer, *_):
        optimizer.param_groups[0]["params"][0].data.fill_(torch.nan)

    runner.optim_wrapper.optimizer.register_step_post_hook(overflow)


def test_a_step_that_is_not_finite_is_refused(make):
    said = r"iteration 2: the gradients are not finite.*decode\.loss_ce nan.*shapes/train/0000"
    with pytest.raises(StepError, match=f"(?s){said}"):
        launch.train(make(**{"optim_wrapper.optimizer.lr": 1e12}))
    assert checkpoints() == ["iter_1.pth"]
    assert is_finite("work/iter_1.pth")


@pytest.mark.parametrize("name", ["eomt", "rfdetr", "dino_swin", "sparse_rcnn_swin", "mask2former_swin"])
def test_a_matching_without_finite_costs_is_refused_as_gradients_are(name, tmp_path, monkeypatch):
    """Weights that an overflow made NaN. SciPy, which matches, would be the first to say so."""
    monkeypatch.chdir(tmp_path)
    cfg = load_config(f"{name}_nano_shapes", {"data_root": f"{tmp_path}/shapes/"}, "work")
    cfg.train_dataloader.update(batch_size=1, num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.draw = dict(num_train=4, num_val=1, image_size=(64, 64))
    cfg.update({f"{split}_{part}": None for split in ("val", "test") for part in ("cfg", "dataloader", "evaluator")})
    cfg.train_cfg = dict(type="IterBasedTrainLoop", max_iters=4)
    cfg.optim_wrapper.optimizer.lr = 1e12
    said = r"(?s)iteration \d: the (costs of matching|gradients).* are not finite.*shapes/train/0000"
    with pytest.raises(StepError, match=said):
        launch.train(cfg)


def test_weights_that_are_not_finite_replace_no_checkpoint(make, monkeypatch):
    monkeypatch.setattr(At, "action", poison)
    with pytest.raises(StepError, match=r"not finite: backbone\."):
        launch.train(make(custom_hooks=[dict(type="GuardsAt", iteration=3)]))
    assert checkpoints() == ["iter_2.pth", "iter_3.pth"]
    assert all(is_finite(f"work/{name}") for name in checkpoints())


def test_weights_that_are_not_finite_keep_the_best_checkpoint(make, monkeypatch):
    monkeypatch.setattr(At, "action", poison)
    options = {"train_cfg.val_interval": 1, "default_hooks.checkpoint.save_best": "mIoU"}
    options["default_hooks.checkpoint.interval"] = 100
    with pytest.raises(StepError, match="not finite"):
        launch.train(make(custom_hooks=[dict(type="GuardsAt", iteration=2)], **options))
    (best,) = Path("work").glob("best_*.pth")
    assert is_finite(str(best))


def test_a_work_folder_is_used_once(make, monkeypatch):
    def fail(*_, **options):
        raise ConfigError("does not start")

    launch.train(make())
    with pytest.raises(ConfigError, match=r"iter_6\.pth; --resume goes on with it, --overwrite starts anew"):
        launch.train(make())
    Path("other").mkdir()
    with FileLock("other/.lock"), pytest.raises(ConfigError, match="other is in use by another training"):
        launch.train(make("other"))
    with pytest.raises(ConfigError, match=r"--overwrite.*--resume"):
        launch.train(make(), overwrite=True, resume="auto")
    Path(f"work/.{'a1' * 16}.pth").write_bytes(b"of a killed save")
    before = files("work")
    monkeypatch.setattr(At, "before_train_iter", fail)
    with pytest.raises(ConfigError, match="does not start"):
        launch.train(make(custom_hooks=[dict(type="GuardsAt", iteration=0)], randomness=dict(seed=5)), overwrite=True)
    assert before - files("work") == {f".{'a1' * 16}.pth"}
    assert "seed=5" not in Path("work/upernet_swin_nano_shapes.py").read_text()
    launch.train(make(randomness=dict(seed=5)), overwrite=True)
    assert checkpoints() == checkpoints("work/replaced_1") == ["iter_5.pth", "iter_6.pth"]
    assert "seed=5" not in Path("work/replaced_1/upernet_swin_nano_shapes.py").read_text()


def test_a_copied_work_folder_does_not_change_the_original(make, monkeypatch):
    """Also the best checkpoint, which mmengine removes by its path."""
    options = {"train_cfg.val_interval": 1, "default_hooks.checkpoint.save_best": "mIoU"}
    launch.train(make(**options))
    shutil.copytree("work", "copy")
    for folder in ("work", "copy"):
        for name in ("iter_6.pth", "last_checkpoint"):
            Path(folder, name).unlink()
    before = files("work")
    monkeypatch.setattr(IoUMetric, "compute_metrics", lambda *_: {"mIoU": 100.0})  # better than any
    launch.train(make("copy", **options), resume="auto")
    assert files("work") == before
    assert len(list(Path("copy").glob("best_*.pth"))) == 1
    assert load_config("copy").work_dir == "copy"
    assert load_config("copy").get("load_from") is None  # a new training from it begins as this one


@pytest.fixture
def saved(tmp_path):
    def write(**changes):
        optimizer = {"state": {0: {"exp_avg": torch.ones(500)}}, "param_groups": []}
        content = {"meta": {"epoch": 0, "iter": 1}, "optimizer": optimizer, "param_schedulers": [], "state_dict": {}}
        content["message_hub"] = {"log_scalars": {}, "runtime_info": {}, "resumed_keys": {}}
        content = {key: value for key, value in (content | changes).items() if value is not None}
        torch.save(content, tmp_path / "saved.pth")
        return content, str(tmp_path / "saved.pth")

    return write


@pytest.mark.parametrize("absent", ["optimizer", "param_schedulers", "message_hub", "meta"])
def test_half_a_checkpoint_is_not_resumed(saved, absent):
    check_whole(*saved())
    with pytest.raises(CheckpointMismatchError, match=rf"saved\.pth has no {absent}"):
        check_whole(*saved(**{absent: None}))


def test_damaged_checkpoints_are_not_resumed(saved):
    content, path = saved()
    damaged = bytearray(Path(path).read_bytes())
    damaged[damaged.index(np.ones(500, np.float32).tobytes()) + 1000] ^= 1
    Path(path).write_bytes(damaged)
    with pytest.raises(CheckpointMismatchError, match=r"saved\.pth is damaged: the checksum of .*data/"):
        check_whole(content, path)
    with pytest.raises(CheckpointMismatchError, match=r"state of the optimizer in .*saved\.pth is not finite"):
        check_whole(*saved(optimizer={"state": {0: {"exp_avg": torch.tensor([1, torch.nan])}}}))


def test_changed_trainings_are_not_resumed(make):
    launch.train(make())
    with pytest.raises(ConfigError, match="optimizer of the checkpoint is for other parameters"):
        launch.train(make(**{"model.backbone.frozen_stages": 1}), resume="work/iter_5.pth")
    with pytest.raises(CheckpointMismatchError, match=r"resume: .* other sizes than the model for .*bias_table"):
        launch.train(make(**{"model.backbone.window_size": 5}), resume="work/iter_5.pth")


@pytest.mark.parametrize(
    ("epochs", "at"), [(True, 8), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 4), (True, 2)))]
)
def test_a_signal_saves_and_the_resumed_run_is_equal(make, monkeypatch, epochs, at):
    launch.train(make("whole", epochs))
    monkeypatch.setattr(At, "action", stop)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(StopSignal, match=rf"SIGUSR1 after iteration {at}; --resume goes on from iter_{at}\.pth"):
        launch.train(make("work", epochs, custom_hooks=[dict(type="GuardsAt", iteration=at)]))
    assert signal.getsignal(signal.SIGUSR1) == before
    launch.train(make("work", epochs), resume="auto")
    assert_ends_as_the_whole_run("epoch_2.pth" if epochs else "iter_6.pth")


def test_an_epoch_resumes_with_the_unused_images(make, monkeypatch):
    monkeypatch.setattr(Seen, "names", ())
    launch.train(make("whole", epochs=True, custom_hooks=[dict(type="GuardsSeen")]))
    want, Seen.names = Seen.names, ()
    monkeypatch.setattr(At, "action", stop)
    hooks = [dict(type="GuardsSeen"), dict(type="GuardsAt", iteration=8)]
    with pytest.raises(StopSignal):
        launch.train(make("work", epochs=True, custom_hooks=hooks))
    options = {"train_dataloader.batch_size": 4, "custom_hooks": hooks[:1]}
    launch.train(make("work", epochs=True, **options), resume="auto")
    assert Seen.names == want
    assert read_checkpoint("work/epoch_2.pth")["meta"]["epoch"] == 2
    options["train_dataloader.batch_size"] = 3
    with pytest.raises(ConfigError, match="3 images a step"):
        launch.train(make("work", epochs=True, **options), resume="work/iter_8.pth")


def test_an_average_is_validated_and_a_run_without_it_resumes_from_the_raw_weights(make, monkeypatch):
    seen, key = [], "decode_head.conv_seg.weight"
    monkeypatch.setattr(At, "action", lambda runner: seen.append(runner.model.state_dict()[key].clone()))
    hooks = [dict(type="EMAHook", momentum=0.5), dict(type="GuardsAt", iteration=LENGTH, stage="images")]
    launch.train(make("whole"))
    launch.train(make(custom_hooks=hooks, **{"train_cfg.val_interval": LENGTH}))
    saved = read_checkpoint("work/iter_6.pth")
    assert seen[0].equal(saved["state_dict"][key])
    assert not seen[0].equal(saved["ema_state_dict"][f"module.{key}"])  # the raw weights
    Path("work/last_checkpoint").write_text("iter_5.pth")
    launch.train(make(), resume="auto")
    assert_ends_as_the_whole_run()


def kill(runner=None, number=signal.SIGTERM):
    for _ in range(2):
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, number)
        os.kill(os.getpid(), number)


# States that decide over a training: the best checkpoint, the average of the weights, early stopping.
DECIDING = {
    "default_hooks.checkpoint.save_best": "mIoU",
    "default_hooks.checkpoint.interval": 100,
    "default_hooks.ema": dict(type="EMAHook", momentum=0.3),
    "default_hooks.stop": dict(type="EarlyStoppingHook", monitor="mIoU", min_delta=1000, patience=9),
}
CASES = [(False, 4, "train"), (False, 4, "images"), (False, 2, "metrics"), (True, 12, "train"), (True, 6, "images")]


@pytest.mark.parametrize(
    ("epochs", "stop", "stage"),
    [(False, 6, "images"), *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES)],
)
def test_a_run_stopped_in_a_validation_repeats_it_on_resume(make, monkeypatch, epochs, stop, stage):
    def run(folder, hook, **resume):
        ended = {"validated": []}
        monkeypatch.setattr(At, "after_val", lambda self, runner: ended["validated"].append(runner.iter))
        monkeypatch.setattr(At, "after_train", lambda self, runner: ended.update(runner=runner))
        options = {"train_cfg.val_interval": 1 if epochs else 2, "custom_hooks": [dict(type="GuardsAt", **hook)]}
        try:
            launch.train(make(folder, epochs, **DECIDING, **options), **resume)
        except StopSignal as stop:
            ended["stop"] = str(stop)
        return ended

    want = run("whole", {"iteration": 0})
    monkeypatch.setattr(At, "action", kill)
    first = run("work", {"iteration": stop, "stage": stage})
    assert f"SIGTERM after iteration {stop}; --resume goes on from iter_{stop}.pth" in first["stop"]
    got = run("work", {"iteration": 0}, resume="auto")
    assert want["validated"] == ([6, 12] if epochs else [2, 4, 6])
    assert first["validated"] + got["validated"] == want["validated"]
    for runner in (want["runner"], got["runner"]):
        (stopping,) = (hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook))
        assert stopping.wait_count == len(want["validated"]) - 1
    values, others = (runner.message_hub.runtime_info["best_score"] for runner in (want["runner"], got["runner"]))
    assert values == others
    assert_equal(*(runner.model.state_dict() for runner in (want["runner"], got["runner"])))
    assert [p.name for p in Path("work").glob("best_*")] == [p.name for p in Path("whole").glob("best_*")]


def test_early_stopping_between_checkpoints_saves_one_before_other_hooks_fail(make, monkeypatch):
    early = dict(type="EarlyStoppingHook", monitor="mIoU", min_delta=1000, patience=2)
    options = {"train_cfg.val_interval": 1, "default_hooks.checkpoint.interval": 100, "default_hooks.stop": early}
    monkeypatch.setattr(LoggerHook, "after_train", lambda *_: 1 / 0)  # as on a full disk
    with pytest.raises(ZeroDivisionError):
        launch.train(make(**options))
    assert checkpoints() == ["iter_3.pth"]


def test_the_best_checkpoint_of_accumulated_steps_lacks_no_gradients(make):
    options = {"optim_wrapper.accumulative_counts": 3, "train_cfg.val_interval": 3}
    options |= {"default_hooks.checkpoint.save_best": "mIoU", "default_hooks.checkpoint.interval": 3}
    launch.train(make(**options))
    (log,) = (path.read_text(encoding="utf-8") for path in Path("work").glob("*/*.log"))
    assert "Saving checkpoint" in log
    assert "are not in the checkpoint" not in log


@pytest.mark.parametrize("clip", [None, dict(max_norm=1.0), dict(clip_value=1.0, type="value")])
def test_the_rate_in_the_log_is_the_scaled_one_and_the_norm_is_computed_once(make, monkeypatch, clip):
    norms = []
    for name in ("get_total_norm", "clip_grad_norm_"):
        real = getattr(torch.nn.utils, name)
        counted = functools.wraps(real)(lambda *args, real=real, **options: norms.append(1) or real(*args, **options))
        monkeypatch.setattr(torch.nn.utils, name, counted)
    cfg = make(**{"default_hooks.logger.interval": 1})
    cfg.optim_wrapper.clip_grad = clip
    cfg.auto_scale_lr = dict(base_batch_size=4)
    rate = cfg.optim_wrapper.optimizer.lr
    launch.train(cfg, auto_scale_lr=True)
    assert len(norms) == LENGTH
    (file,) = Path("work").glob("*/vis_data/scalars.json")
    records = map(json.loads, file.read_text().splitlines())
    assert [record["base_lr"] for record in records if "base_lr" in record] == pytest.approx([rate / 2] * LENGTH)


def test_signals_to_data_workers_and_in_a_save(make, monkeypatch):
    """Twice, to all processes: the workers leave it to the main one."""
    monkeypatch.setattr(At, "action", kill)
    workers = {"train_dataloader.num_workers": 1}
    with pytest.raises(StopSignal, match="SIGTERM after iteration 2"):
        launch.train(make(custom_hooks=[dict(type="GuardsAt", iteration=2, stage="save")], **workers))
    assert checkpoints() == ["iter_1.pth", "iter_2.pth"]
    assert is_finite("work/iter_2.pth")


def test_checkpoints_and_stops_wait_for_the_step_of_an_accumulation(make, monkeypatch, capsys):
    """Gradients of an incomplete step are in no checkpoint. The signal is the exit status."""
    options = {"optim_wrapper.accumulative_counts": 3, "default_hooks.checkpoint.interval": 2}
    launch.train(make("whole", **options))
    assert checkpoints("whole") == ["iter_3.pth", "iter_6.pth"]
    monkeypatch.setattr(At, "action", lambda runner: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as end, exit_on_user_error():
        launch.train(make(custom_hooks=[dict(type="GuardsAt", iteration=2)], **options))
    assert end.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err.splitlines()[-1].startswith("stopped by SIGINT after iteration 3")
    launch.train(make(**options), resume="auto")
    assert_ends_as_the_whole_run()


def test_accumulated_iterations_are_a_step_of_all_their_images(make):
    """Gradients are divided once: two images, twice, are four at once."""
    head = {"dropout_ratio": 0.0, "norm_cfg": {"type": "GN", "num_groups": 2}}
    model = {"backbone": {"drop_path_rate": 0.0}, "decode_head": head, "auxiliary_head": head}
    rule = {"optim_wrapper.optimizer": dict(type="SGD", lr=1.0, weight_decay=0.0, _delete_=True)}
    launch.train(make("whole", model=model, **rule, **{"train_dataloader.batch_size": 4, "train_cfg.max_iters": 3}))
    launch.train(make(model=model, **rule, **{"optim_wrapper.accumulative_counts": 2}))
    want, got = (read_checkpoint(f"{name}.pth")["state_dict"] for name in ("whole/iter_3", "work/iter_6"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_rate_is_scaled_by_the_images_of_a_step_of_the_optimizer(make):
    options = {"optim_wrapper.accumulative_counts": 2, "default_hooks.logger.interval": 50}
    launch.train(make(epochs=True, auto_scale_lr={"base_batch_size": 8}, **options), auto_scale_lr=True)
    (log,) = Path("work").glob("*/*.log")
    lines = log.read_text()
    assert "Scaling the original LR by 0.5." in lines  # two images, twice
    logged = [int(found) for found in re.findall(r"\(train\)\s+\[ *(\d+)/12\]", lines)]
    assert logged == [6, 12]


@pytest.mark.parametrize("error", [OSError(28, "full"), RuntimeError("[pair.cc:5] Connection closed by peer")])
def test_a_full_disk_or_an_ended_process_is_one_line_that_names_the_saved_checkpoint(make, monkeypatch, error):
    put = AtomicLocalBackend.put

    def fails(self, obj, filepath):
        if "iter_3" in str(filepath):
            raise error
        put(self, obj, filepath)

    monkeypatch.setattr(AtomicLocalBackend, "put", fails)
    with pytest.raises(ConfigError, match=r"(full|peer\. Another .*); --resume goes on from iter_2\.pth"):
        launch.train(make())


def test_class_names_like_templates_are_read_back_from_the_work_folder(make, monkeypatch):
    names = ("{{$HOME:x}}", "{{ fileBasename }}", "{{_base_.model}}", *"abcdef")
    cfg = make(**{"train_dataloader.dataset.metainfo": {"classes": names}})
    WorkFolder("work").write_config(cfg)
    assert tuple(load_config("work").train_dataloader.dataset.metainfo.classes) == names
