"""`settings` of a config: its length and image size."""

import pytest

from vitdense.mm.checks.schedule import schedule
from vitdense.mm.config import settings
from vitdense.mm.config.base import Asked, run_passes
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.config.passes import LOADING, TRAINING
from vitdense.mm.config.query import image_size, nodes

COCO = "_base_ = 'vitdense::configs/cascade_swin_t_coco.py'\n"


@pytest.fixture
def mine(tmp_path):
    def write(text):
        (tmp_path / "mine.py").write_text(text)
        return tmp_path / "mine.py"

    return write


def apply_settings(cfg):
    cfg.given.clear()  # as of a file
    run_passes([step for step in LOADING if step.name.startswith("settings")], cfg, Asked())


def steps(cfg, split="train"):
    return {step.type: step for step in cfg[f"{split}_dataloader"].dataset.pipeline}


@pytest.mark.parametrize(("epochs", "milestones"), [(1, []), (2, [1]), (7, [5, 6]), (12, [9, 11])])
def test_schedule_in_epochs_follows_max_epochs(epochs, milestones):
    cfg = load_config("cascade_swin_t_coco", {"settings.max_epochs": epochs})
    warmup, drops = cfg.param_scheduler
    assert (cfg.train_cfg.max_epochs, drops.end, warmup.end) == (epochs, epochs, 500)  # which counts iterations
    assert drops.milestones == milestones  # 0 would lower the rate at once


def test_explicit_schedule_is_left_as_it_is(mine):
    options = {"train_cfg.max_epochs": 12, "param_scheduler.1.end": 12, "param_scheduler.1.milestones": [8, 11]}
    cfg = load_config("cascade_swin_t_coco", options)
    assert (cfg.param_scheduler[1].end, cfg.param_scheduler[1].milestones) == (12, [8, 11])
    text = f"{COCO}param_scheduler = [dict(type='MultiStepLR', end=12, milestones=[8, 11])]\nsettings = "
    assert load_config(mine(f"{text}dict(max_epochs=12)")).param_scheduler[0].milestones == [8, 11]
    with pytest.raises(ConfigError, match=r"settings\.max_epochs.*24.*36.*12"):
        load_config(mine(f"{text}dict(max_epochs=24)"))


@pytest.mark.parametrize("key", ["settings.max_iters", "train_cfg.max_iters"])
def test_schedule_in_iterations_follows_max_iters(key):
    cfg = load_config("upernet_swin_nano_camvid", {key: 5})
    assert cfg.train_cfg.max_iters == cfg.train_cfg.val_interval == 5
    assert [(part.begin, part.end) for part in cfg.param_scheduler] == [(0, 2), (0, 5)]


def test_image_size_of_a_detector_is_the_short_side_and_scales_all_sizes():
    cfg = load_config("cascade_swin_t_coco", {"settings.image_size": 400})
    assert steps(cfg, "val")["Resize"].scale == steps(cfg, "test")["Resize"].scale == (666, 400)
    plain, cropped = steps(cfg)["RandomChoice"].transforms
    assert plain[0].scales[0] == (240, 666)
    assert cropped[1].crop_size == (192, 300)


@pytest.mark.parametrize(
    ("name", "size", "crop", "scale"),
    [
        ("upernet_vit_b_ade20k", 256, (256, 256), (1024, 256)),
        ("eomt_dinov2_l_512_ade20k", (384, 640), (384, 640), (1536, 384)),  # by the short side
        ("upernet_swin_nano_camvid", 144, (144, 144), (480, 360)),  # images that validation does not resize
    ],
)
def test_image_size_of_a_segmentor_is_the_crop(name, size, crop, scale):
    cfg = load_config(name, {"settings.image_size": size})
    assert steps(cfg)["RandomCrop"].crop_size == cfg.model.data_preprocessor.size == crop
    assert steps(cfg)["RandomResize"].scale == scale
    assert cfg.model.test_cfg.get("crop_size", crop) == crop
    if name == "upernet_vit_b_ade20k":
        assert cfg.model.test_cfg.stride == (170, 170)
        assert cfg.tta_pipeline[1].transforms[0][1].scale == (768, 192)


RECTANGLES = [  # recipe, setting, size of images; other sizes in the training pipeline
    ("rfdetr_n_coco", (288, 512), (288, 512), {"smallest": (384, 216), "crop_size": (600, 338)}),
    ("rfdetr_seg_n_coco", [230, 410], (228, 408), {"crop_size": (478, 267)}),
    ("rfdetr_n_coco", 300, (288, 288), {"crop_size": (338, 338)}),
    ("lwdetr_t_coco", (448, 832), (448, 832), {"crop_size": (975, 525)}),
    ("rfdetr_keypoints_coco", (768, 432), (768, 432), {"crop_size": (506, 900)}),
    ("eomt_dinov2_s_640_coco_panoptic", (480, 864), (480, 864), {"crop_size": (864, 480), "size": (864, 480)}),
]


@pytest.mark.parametrize(("name", "setting", "size", "others"), RECTANGLES)
def test_rectangles_in_whole_windows(name, setting, size, others, monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(settings, "print_log", lambda text, logger: said.append(text))
    cfg = load_config(name, {"settings.image_size": setting})
    assert image_size(cfg) == size
    assert len(said) == (setting not in (size, list(size)))
    scales = [node["scale"] for node in nodes([cfg.train_dataloader, cfg.test_dataloader]) if "scale" in node]
    assert {*scales} == {size[::-1]}
    for key, value in others.items():
        assert {node[key] for node in nodes(cfg.train_dataloader) if key in node} == {value}
    cfg.dump(tmp_path / "again.py")  # as a work folder has it, to resume
    assert load_config(tmp_path / "again.py").train_dataloader == cfg.train_dataloader


def test_sizes_that_settings_cannot_change_are_named():
    cfg = load_config("cascade_swin_t_coco")
    cfg.custom_hooks = [{"type": "PipelineSwitchHook", "switch_pipeline": []}]
    cfg.settings = {"image_size": 400}
    with pytest.raises(ConfigError, match="switch_pipeline"):
        apply_settings(cfg)


def test_image_size_of_vitdet_changes_padding_and_positions():
    cfg = load_config("cascade_vit_b_coco", {"settings.image_size": 512})
    assert steps(cfg)["Pad"].size == (512, 512)
    assert cfg.model.data_preprocessor.pad_size_divisor == cfg.model.backbone.img_size == 512


@pytest.mark.parametrize("epochs", [12, 1])
def test_settings_in_a_config_file_and_applied_again(mine, tmp_path, epochs):
    cfg = load_config(mine(f"{COCO}settings = dict(max_epochs={epochs}, image_size=400)\n"))
    assert (cfg.train_cfg.max_epochs, steps(cfg, "val")["Resize"].scale) == (epochs, (666, 400))
    cfg.dump(tmp_path / "again.py")
    again = load_config(tmp_path / "again.py")
    assert again.param_scheduler == cfg.param_scheduler
    assert again.train_dataloader == cfg.train_dataloader


TIMES = """
_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
train_cfg = dict(val_begin=10)
custom_hooks = [dict(type='PipelineSwitchHook', switch_epoch=280, switch_pipeline=[]),
    dict(type='YOLOXModeSwitchHook', num_last_epochs=30), dict(type='EMAHook', begin_epoch=100)]
model = dict(bbox_head=dict(initial_epoch=100))
"""


@pytest.mark.parametrize(
    ("epochs", "times"), [(30, (28, 3, 10, 1, 10)), (3, (2, 0, 1, 1, 1)), (300, (280, 30, 100, 10, 100))]
)
def test_every_time_follows_the_length(mine, epochs, times):
    cfg = load_config(mine(TIMES), {"settings.max_epochs": epochs})
    hooks = cfg.custom_hooks
    found = (hooks[0].switch_epoch, hooks[1].num_last_epochs, hooks[2].begin_epoch, cfg.train_cfg.val_begin)
    assert (*found, cfg.model.bbox_head.initial_epoch) == times
    assert cfg.train_cfg.dynamic_intervals == [(280 * epochs // 300, 1)]
    assert max(step.end for step in cfg.param_scheduler if step.by_epoch) == epochs
    assert list(schedule(cfg)) == []  # nothing to say of what we did


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("name", ["cascade_swin_t_coco", "cascade_mvitv2_t_coco", "atss_swin_t_coco"])
def test_a_short_run_of_a_recipe_gives_no_warning(name, epochs):
    assert list(schedule(load_config(name, {"settings.max_epochs": epochs}))) == []


@pytest.mark.parametrize(
    "options",
    [
        {"train_cfg.val_begin": 31},
        {"train_cfg.dynamic_intervals": [(30, 1)]},
        {"custom_hooks": [{"type": "PipelineSwitchHook", "switch_epoch": 280, "switch_pipeline": []}]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_time_that_is_never_reached_is_an_error(mine, options):
    cfg = load_config(mine(TIMES), {"settings.max_epochs": 30, **options})
    (error,) = schedule(cfg)
    assert error.grave
    assert next(iter(options)) in str(error)


def test_image_size_is_from_the_test_without_validation():
    none = {f"val_{part}": None for part in ("cfg", "dataloader", "evaluator")}
    cfg = load_config("cascade_swin_t_coco", {"settings.image_size": 400, **none})
    assert steps(cfg, "test")["Resize"].scale == (666, 400)
    with pytest.raises(ConfigError, match="RandomCrop"):
        load_config("upernet_swin_nano_shapes", {"settings.image_size": 64})


def backends(cfg):
    return [backend.type for backend in cfg.visualizer.vis_backends]


def test_log_to_adds_backends_and_states_them_all(mine):
    both = ["LocalVisBackend", "TensorboardVisBackend", "WandbVisBackend"]
    path = mine(f"{COCO}settings = dict(log_to=['tensorboard', 'wandb'])\n")
    cfg = load_config(path, {"visualizer.vis_backends.2.init_kwargs.project": "pets"})
    assert backends(cfg) == both
    apply_settings(cfg)
    assert backends(cfg) == both
    cfg.settings.log_to = "wandb"
    apply_settings(cfg)
    assert backends(cfg) == ["LocalVisBackend", "WandbVisBackend"]
    assert cfg.visualizer.vis_backends[1].init_kwargs.project == "pets"
    assert cfg.visualizer.type == "DetLocalVisualizer"
    assert backends(load_config(path, {"settings.log_to": []})) == ["LocalVisBackend"]


# Its losses are over iterations, its metrics over epochs; and it may have mmengine's own backend.
MMDET = "_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'\n"
MMDET += "visualizer = dict(vis_backends=[dict(type='LocalVisBackend'), dict(type='WandbVisBackend')])\n"
NO_VISUALIZER = "model = dict(type='vitdense.Swin', arch='tiny')\n"


@pytest.mark.parametrize("lines", [MMDET, NO_VISUALIZER], ids=["mmdet", "none"])
def test_log_to_of_other_configs(mine, lines):
    cfg = load_config(mine(f"{lines}settings = dict(log_to='wandb')\n"))
    assert backends(cfg) == ["LocalVisBackend", "WandbVisBackend"]
    assert not cfg.get("default_hooks") or cfg.default_hooks.logger.log_metric_by_epoch is False


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"image_size": 0}, "image_size"),
        ({"image_size": (288, 512)}, "image_size.*keep_ratio"),  # this config keeps the ratio of an image
        *(({"image_size": size}, "image_size.*height") for size in ((288,), (288, 0), (288, 512.0), (1, 2, 3))),
        ({"max_epochs": 2.5}, "max_epochs"),
        ({"max_iters": 5}, "max_epochs"),  # the other unit
        ({"size": 3}, "size"),
        ({"log_to": ["tensorboard", "wandbb"]}, "log_to"),
        ({"total_batch_size": 4.0}, "total_batch_size"),
        ({"normalisation": "other"}, r"normalisation: got 'other', expected 'own'"),
    ],
)
def test_wrong_settings_are_refused(given, named):
    with pytest.raises(ConfigError, match=f"settings.*{named}"):
        load_config("cascade_swin_t_coco", {"settings": given})


def test_setting_own_normalisation_changes_nothing():
    cfg = load_config("cascade_swin_t_coco", {"settings.normalisation": "own"})
    assert cfg.pop("settings") == {"normalisation": "own"}
    assert cfg.to_dict() == load_config("cascade_swin_t_coco").to_dict()


@pytest.mark.parametrize(("processes", "counts", "share"), [(1, 1, 12), (3, 2, 2), (2, 4, None), (5, 1, None)])
def test_processes_and_accumulated_iterations_share_the_total_batch(processes, counts, share, monkeypatch):
    monkeypatch.setattr("vitdense.mm.config.run.get_world_size", lambda: processes)
    options = {"settings.total_batch_size": 12, "optim_wrapper.accumulative_counts": counts}
    cfg = load_config("cascade_swin_t_coco", options)
    if share is None:
        with pytest.raises(ConfigError, match=rf"got 12, expected a multiple of {processes * counts}"):
            run_passes(TRAINING, cfg, Asked())
    else:
        run_passes(TRAINING, cfg, Asked())
        assert cfg.train_dataloader.batch_size == share
