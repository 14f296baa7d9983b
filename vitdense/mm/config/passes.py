"""The list of passes that change a config between its file and the Runner, in order.

Settings come first, then the user's ``--cfg-options`` as given, which may change what followed from a setting. Later
passes complete the config; a pass that would change a given option is refused.
"""

import copy

from mmengine.config import Config

from vitdense.mm.config import model, options, run, settings, start
from vitdense.mm.config.base import Asked, Change, Pass, run_passes
from vitdense.mm.config.classes import follow_classes
from vitdense.mm.config.kinds import check_kinds
from vitdense.seams import call


def _by_extensions(command: str) -> Pass:
    def change(cfg: Config, asked: Asked) -> None:
        if asked.args is not None:
            call(command, "change", cfg, asked.args)

    return Pass("extensions", change)


# For every command.
LOADING = (
    Pass("scope of a base vitdense::...", options.drop_scope),
    Pass("kinds of values", lambda cfg, asked: check_kinds(cfg)),
    Pass("settings", options.merge_settings),
    Pass("settings.max_epochs or max_iters", lambda cfg, asked: settings.set_length(cfg)),
    Pass("settings.image_size", lambda cfg, asked: settings.set_image_size(cfg)),
    Pass("settings.log_to", lambda cfg, asked: settings.set_loggers(cfg)),
    Pass("data_root", options.move_data),
    Pass("readers of images", lambda cfg, asked: run.own_readers(cfg, ("train_dataloader", "val_dataloader"))),
    Pass("--cfg-options", options.merge_given),
    Pass("kinds of given values", lambda cfg, asked: check_kinds(cfg)),
    Pass("hooks that are left out", run.leave_out_hooks),
    Pass("num_workers=0", run.drop_worker_keys),
    Pass("classes of the training data", lambda cfg, asked: follow_classes(cfg)),
    Pass("--launcher or --work-dir", run.name_run),
)
SHARE_BATCH = Pass("settings.total_batch_size", run.share_batch)  # `vitdense check` applies it, too
# For a training, after `LOADING`: makes the config that is saved.
TRAINING = (
    Pass("work folder of a training", start.check_folder),
    Pass("--amp", run.train_in),
    SHARE_BATCH,
    Pass("--auto-scale-lr", run.scale_rate),
    Pass("log of a short run", run.log_short_runs),
    Pass("optim_wrapper.accumulative_counts", run.save_whole_steps),
    Pass("names of checkpoints", run.check_saves),
    Pass("--fresh", start.keep_fresh),
    _by_extensions("train"),
)
# For the start of a training, after `TRAINING`.
STARTING = (
    Pass("--resume", start.resume),
    Pass("classes of the checkpoint", start.follow_outputs),
    Pass("checks", lambda cfg, asked: asked.check(cfg, ("train",) if cfg.get("val_cfg") is None else ("train", "val"))),
    Pass("several processes", start.agree_on),
)
# For a test, after `LOADING`.
TESTING = (
    Pass("CHECKPOINT", start.load_tested),
    Pass("folder of a test", run.name_test),
    Pass("--amp of a test", run.test_in),
    Pass("classes of the checkpoint to test", start.follow_outputs),
    _by_extensions("test"),
    Pass("checks of a test", lambda cfg, asked: asked.check(cfg, ("test",))),
)
# For training and test, on a copy: changes that are built but not saved.
BUILDING = (
    Pass("weights that a checkpoint replaces", start.drop_weights_of_start),
    Pass("readers of test images", lambda cfg, asked: run.own_readers(cfg, ("test_dataloader", "tta_pipeline"))),
    Pass("--tta", model.augment_tests),
    Pass("--tiles", model.tile_tests),
    Pass("exported file", model.test_exported),
    Pass("masks as run-length codes", model.encode_masks),
    Pass("processes on CPUs", run.wrap_on_cpus),
    Pass("hooks of every run", run.add_guard),
    Pass("visualizer of this run", run.name_visualizer),
)
# For a prediction, on a copy.
PREDICTING = (
    Pass("weights that the checkpoint replaces", start.drop_weights_of_start),
    Pass("masks as run-length codes", lambda cfg, asked: model.use_rle(cfg.model)),
    Pass("backbone without values", model.empty_backbone),
)


def completed(cfg: Config, asked: Asked, changes: list[Change] | None = None) -> Config:
    """Complete a config from its file for any command, by `LOADING`."""
    asked = Asked(**{**vars(asked), "options": options.resolve_options(cfg, asked.options)})
    run_passes(LOADING, cfg, asked, changes)
    return cfg


def built(cfg: Config, asked: Asked, passes: tuple[Pass, ...] = BUILDING, changes: list | None = None) -> Config:
    """A copy of a config to build from, by `BUILDING` or `PREDICTING`; the config itself stays as it is saved."""
    cfg = copy.deepcopy(cfg)
    getattr(cfg, "given", {}).clear()  # passes may now change given options, such as weights that a checkpoint replaces
    run_passes(passes, cfg, asked, changes)
    return cfg
