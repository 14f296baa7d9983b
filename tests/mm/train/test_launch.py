import logging
import signal
from unittest.mock import MagicMock

import cv2
import mmengine.runner
import pytest
import torch
from mmengine.config import Config
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import OPTIM_WRAPPERS

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.mm import processes
from vitdense.mm.config import run
from vitdense.mm.config.base import Asked, build_model
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.config.passes import built
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.train import launch
from vitdense.mm.train.guards import StopHook
from vitdense.mm.train.runner import Runner


@pytest.fixture
def segmentor(tmp_path):
    def make(**options):
        cfg = load_config("upernet_swin_nano_shapes", {"data_root": f"{tmp_path}/shapes/"}, str(tmp_path / "work"))
        cfg.test_dataloader.update(num_workers=0, persistent_workers=False)
        cfg.test_dataloader.dataset.draw = dict(num_train=1, num_val=4, image_size=(96, 96))
        cfg.merge_from_dict(options)
        return cfg

    checkpoint = tmp_path / "random.pth"
    model = build_model(make())
    model.init_weights()
    torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    torch.save({"meta": {}, "state_dict": model.state_dict()}, checkpoint)
    return make, str(checkpoint)


def tta_pipeline(ratios, flips):
    scales = [dict(type="Resize", scale_factor=ratio, keep_ratio=True) for ratio in ratios]
    flips = [dict(type="RandomFlip", prob=prob) for prob in flips]
    last = [[dict(type="LoadAnnotations")], [dict(type="PackSegInputs")]]
    return [dict(type="LoadImageFromFile"), dict(type="TestTimeAug", transforms=[scales, flips, *last])]


def test_tta_with_one_unchanged_image_equals_the_plain_test(segmentor, tmp_path):
    make, checkpoint = segmentor
    plain = launch.test(make(), checkpoint)
    assert 0 < plain["mIoU"] < 100
    assert launch.test(make(tta_pipeline=tta_pipeline([1.0], [0.0])), checkpoint, tta=True) == plain
    flipped = launch.test(make(tta_pipeline=tta_pipeline([1.0], [1.0])), checkpoint, tta=True)
    assert flipped != plain
    for path in (tmp_path / "shapes").glob("**/val/*"):  # mirrored images and label maps give the same scores
        mirrored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[:, ::-1]
        path.write_bytes(cv2.imencode(".png", mirrored)[1].tobytes())  # lossless: readers look at the content
    assert launch.test(make(), checkpoint) == flipped


def test_tta_loads_exactly_and_ignores_init_cfg(segmentor, tmp_path):
    make, checkpoint = segmentor
    nowhere = {"model.backbone.init_cfg": dict(type="Pretrained", checkpoint="nowhere.pth")}
    launch.test(make(**nowhere), checkpoint, tta=True)
    (report,) = tmp_path.glob("work/test/*/load_report.txt")
    assert "0 ignored, 0 kept at initialisation; 100.00 % of the parameters loaded" in report.read_text()
    assert "  loaded backbone.patch_embed." in report.read_text()
    with pytest.raises(CheckpointMismatchError, match=r"decode_head\.conv_seg\.weight"):
        launch.test(make(**{"model.decode_head.channels": 16}), checkpoint, tta=True)
    for absent in ("tta_pipeline", "tta_model"):
        with pytest.raises(ConfigError, match=f"--tta.*{absent}"):
            launch.test(make(**{absent: None}), checkpoint, tta=True)


def test_tta_pipeline_reaches_data_sets_inside_wrappers(segmentor):
    make, checkpoint = segmentor
    cfg = make()
    cfg.test_dataloader.dataset = dict(type="ConcatDataset", datasets=2 * [cfg.test_dataloader.dataset])
    tested = built(cfg, Asked(checkpoint=checkpoint, tta=True))
    types = [[step.type for step in part.pipeline] for part in tested.test_dataloader.dataset.datasets]
    assert types == 2 * [["vitdense.LoadImage", "TestTimeAug"]]
    assert cfg.model.type != tested.model.type == cfg.tta_model.type  # which leaves the config as it is saved


@pytest.mark.parametrize(("amp", "launcher", "named"), [("float16", "none", "--amp"), (None, "slurm", "--launcher")])
def test_options_that_need_a_gpu_name_themselves_without_one(tmp_path, monkeypatch, amp, launcher, named):
    for module in (run, processes):
        monkeypatch.setattr(module, "get_device", lambda: "cpu")
    cfg = load_config("cascade_swin_nano_shapes", work_dir=str(tmp_path))
    cfg.launcher = launcher
    with pytest.raises(ConfigError, match=f"{named} (float16|slurm)"):
        launch.train(cfg, amp=amp)


def test_processes_on_gpus_are_connected_as_the_config_says(monkeypatch):
    """Before the runner, which is built when the main process holds the work folder."""
    connected = []
    monkeypatch.setattr(processes, "get_device", lambda: "cuda")
    monkeypatch.setattr(processes, "init_dist", lambda launcher, **options: connected.append((launcher, options)))
    monkeypatch.setattr(processes, "set_multi_processing", lambda **options: connected.append(options))
    env = {"mp_cfg": {"mp_start_method": "fork"}, "dist_cfg": {"backend": "nccl"}}
    processes.connect("pytorch", env)
    assert connected == [{"mp_start_method": "fork", "distributed": True}, ("pytorch", {"backend": "nccl"})]
    processes.connect("none", env)
    assert len(connected) == 2


@pytest.mark.parametrize("amp", ["float16", "bfloat16"])
def test_amp_has_a_loss_scaler_for_float16_only(tmp_path, monkeypatch, amp):
    cfg = load_config("cascade_swin_nano_shapes", work_dir=str(tmp_path))
    cfg.optim_wrapper.update(type="AmpOptimWrapper", dtype="float32")
    monkeypatch.setattr(launch, "_runner", MagicMock())
    monkeypatch.setattr("vitdense.mm.config.run.check_precision", lambda *_: None)  # of another machine
    monkeypatch.setattr(amp_optimizer_wrapper, "is_cuda_available", lambda: True)
    launch.train(cfg, amp=amp)
    layer = torch.nn.Linear(2, 2)
    options = {key: cfg.optim_wrapper[key] for key in ("type", "dtype", "loss_scale") if key in cfg.optim_wrapper}
    wrapper = OPTIM_WRAPPERS.build({**options, "optimizer": torch.optim.SGD(layer.parameters(), lr=0.1)})
    if amp == "float16":
        assert (wrapper.cast_dtype, options["loss_scale"]) == (torch.float16, "dynamic")
        return
    before = layer.weight.clone()
    with wrapper.optim_context(layer):
        loss = layer(torch.ones(1, 2)).sum()
    assert loss.dtype == torch.bfloat16
    wrapper.update_params(loss)
    assert not torch.equal(layer.weight, before)


def test_a_second_ctrl_c_is_one_line_that_says_how_to_resume(tmp_path, monkeypatch, capsys):
    def interrupted(runner):
        hook = StopHook()
        for _ in range(2):  # the first one waits for the end of the iteration
            hook._receive(runner, signal.SIGINT)

    runner = Runner.__new__(Runner)
    runner.cfg, runner._work_dir, runner.logger = Config(), str(tmp_path), logging.getLogger()
    monkeypatch.setattr(Runner, "iter", 83)
    monkeypatch.setattr(mmengine.runner.Runner, "train", interrupted)
    for further in ("no checkpoint was saved yet", "--resume goes on from iter_80.pth"):
        with pytest.raises(SystemExit) as ended, exit_on_user_error():
            runner.train()
        assert ended.value.code == 130
        assert capsys.readouterr().err == f"\nstopped after iteration 83; {further}\n"
        torch.save({}, tmp_path / "iter_80.pth")


@pytest.mark.parametrize(("length", "interval"), [(6, 1), (500, 50)])
def test_a_run_shorter_than_the_interval_of_the_log_logs_every_iteration(monkeypatch, length, interval):
    cfg = load_config("cascade_swin_nano_shapes", {"settings.max_iters": length})
    cfg.default_hooks.logger.interval = 50
    monkeypatch.setattr(launch, "check", lambda cfg, splits: None)
    launch.prepare_training(cfg)
    assert cfg.default_hooks.logger.interval == interval
    assert cfg.default_hooks.logger.ignore_last is False
