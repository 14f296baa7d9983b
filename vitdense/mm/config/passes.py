"""The one list of what changes a config between its file and the Runner, in order.

Settings come first, then what the user's own ``--cfg-options`` say, verbatim: they may change what followed from a
setting. Later passes complete what they leave open; one that would change what they say is refused.
"""

import copy

from mmengine.config import Config

from vitdense.mm.config import model, options, run, settings, start
from vitdense.mm.config.base import Asked, Change, Pass, run_passes
from vitdense.mm.config.classes import follow_classes
from vitdense.seams import call

TIMES = ("train_cfg.*", "param_scheduler.*", "default_hooks.*", "custom_hooks.*", "model.*initial_epoch")
SIZES = ("*_dataloader.*", "tta_pipeline.*", "model.data_preprocessor.*", "model.backbone.img_size", "model.test_cfg.*")
LOGGERS = ("visualizer", "visualizer.*", "default_hooks.logger.log_metric_by_epoch")
NUMBERS = tuple(f"model.*num_{of}classes" for of in ("", "things_", "stuff_"))  # of classes
LABELS = ("*_dataloader.*.metainfo*", "*_dataloader.*.type", "*_dataloader.*.values*", *NUMBERS, "model.*class_weight*")
METRICS = tuple(f"*_evaluator.{part}{key}" for part in ("", "*.") for key in ("ann_file", "drop_doubles", "type"))
READERS, LEARNED = ("*_dataloader.*.type", "tta_pipeline.*"), ("train_dataloader", "val_dataloader")
FRESH = ("default_hooks.*.fresh", "custom_hooks.*.fresh")
TESTED = ("model", "model.*", "test_dataloader.dataset*.pipeline*")


def _by_extensions(command: str) -> Pass:
    def change(cfg: Config, asked: Asked) -> None:
        if asked.args is not None:
            call(command, "change", cfg, asked.args)

    return Pass("extensions", ("*",), change)


# By every command.
LOADING = (
    Pass("scope of a base vitdense::...", ("*_scope_",), options.drop_scope),
    Pass("settings", ("settings", "settings.*"), options.merge_settings),
    Pass("settings.max_epochs or max_iters", TIMES, lambda cfg, asked: settings.set_length(cfg, asked.options)),
    Pass("settings.image_size", SIZES, lambda cfg, asked: settings.set_image_size(cfg)),
    Pass("settings.log_to", LOGGERS, lambda cfg, asked: settings.set_loggers(cfg)),
    Pass("data_root", ("*_dataloader.*", "*_evaluator", "*_evaluator.*"), options.move_data),
    Pass("readers of images", READERS, lambda cfg, asked: run.own_readers(cfg, LEARNED)),
    Pass("--cfg-options", ("*",), options.merge_given),
    Pass("hooks that are left out", ("default_hooks", "default_hooks.*"), run.leave_out_hooks),
    Pass("num_workers=0", tuple(f"*_dataloader.{key}" for key in run.OF_WORKERS), run.drop_worker_keys),
    Pass("classes of the training data", (*LABELS, *METRICS), lambda cfg, asked: follow_classes(cfg)),
    Pass("--launcher or --work-dir", ("launcher", "work_dir"), run.name_run),
)
# By a training, after `LOADING`: the config that is saved, and starts the same training anew.
TRAINING = (
    Pass("work folder of a training", (), start.check_folder),
    Pass("--amp", ("optim_wrapper.type", "optim_wrapper.dtype", "optim_wrapper.loss_scale"), run.train_in),
    Pass("--auto-scale-lr", ("auto_scale_lr.enable",), run.scale_rate),
    Pass("--shard", ("shard",), run.shard),
    Pass("log of a short run", ("*.logger.ignore_last", "*.logger.interval"), run.log_short_runs),
    Pass("optim_wrapper.accumulative_counts", ("default_hooks.checkpoint.interval",), run.save_whole_steps),
    Pass("names of checkpoints", (), run.check_saves),
    Pass("--fresh", ("default_hooks", "default_hooks.exact_load*"), start.keep_fresh),
    _by_extensions("train"),
)
# By the start of a training, after `TRAINING`.
STARTING = (
    Pass("--resume", ("resume", "load_from", *FRESH), start.resume),
    Pass("classes of the checkpoint", (*LABELS, *METRICS), start.follow_outputs),
    Pass("checks", (), start.check_training),
    Pass("several processes", (), start.agree_on),
)
# By a test, after `LOADING`.
TESTING = (
    Pass("CHECKPOINT", ("load_from", "resume", "shard", *FRESH), start.load_tested),
    Pass("folder of a test", ("work_dir",), run.name_test),
    Pass("--amp of a test", ("test_cfg.fp16",), run.test_in),
    Pass("classes of the checkpoint to test", (*LABELS, *METRICS), start.follow_outputs),
    _by_extensions("test"),
    Pass("checks of a test", (), lambda cfg, asked: asked.check(cfg, ("test",))),
)
# By training and test, of a copy: what is built, which is in no saved config.
BUILDING = (
    Pass("weights that a checkpoint replaces", ("model.*init_cfg*",), start.drop_weights_of_start),
    Pass(
        "readers of test images", READERS, lambda cfg, asked: run.own_readers(cfg, ("test_dataloader", "tta_pipeline"))
    ),
    Pass("--tta", TESTED, model.augment_tests),
    Pass("--tiles", TESTED, model.tile_tests),
    Pass("exported file", TESTED, model.test_exported),
    Pass("masks as run-length codes", ("model.*.type", "*_dataloader.*.with_mask"), model.encode_masks),
    Pass("processes on CPUs", ("model_wrapper_cfg*",), run.wrap_on_cpus),
    Pass("hooks of every run", ("custom_hooks", "custom_hooks.*"), run.add_hooks),
    Pass("visualizer of this run", ("visualizer.name",), run.name_visualizer),
)
# By a prediction, of a copy.
PREDICTING = (
    Pass("weights that the checkpoint replaces", ("model.*init_cfg*",), start.drop_weights_of_start),
    Pass("masks as run-length codes", ("model.*.type",), model.encode_predicted_masks),
)
# Keys that several passes of one command write, and these passes in their order. --cfg-options may write any.
SHARED = {
    "work_dir": ("--launcher or --work-dir", "folder of a test"),
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


def completed(cfg: Config, asked: Asked, changes: list[Change] | None = None) -> Config:
    """A config as every command takes it: what `LOADING` makes of the content of its file."""
    asked = Asked(**{**vars(asked), "options": options.resolve_options(cfg, asked.options)})
    run_passes(LOADING, cfg, asked, changes)
    return cfg


def built(cfg: Config, asked: Asked, passes: tuple[Pass, ...] = BUILDING, changes: list | None = None) -> Config:
    """A copy of a config for what builds it, by `BUILDING` or `PREDICTING`; the config stays as it is saved."""
    cfg = copy.deepcopy(cfg)
    getattr(cfg, "given", {}).clear()  # options may say what is not built, such as weights that a checkpoint replaces
    run_passes(passes, cfg, asked, changes)
    return cfg
