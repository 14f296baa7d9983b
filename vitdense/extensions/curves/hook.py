"""The hook that draws the curves of a training."""

from mmengine.dist import master_only
from mmengine.hooks import Hook

from vitdense.mm.registry import HOOKS
from vitdense.mm.work_folder import WorkFolder


@HOOKS.register_module()
class CurvesHook(Hook):
    """Draw ``curves.png`` in the work folder at the end of a training; see `draw_curves`."""

    priority = "VERY_LOW"  # after LoggerHook

    @master_only
    def after_train(self, runner) -> None:
        from vitdense.extensions.curves.curves import draw_curves, read_scalars  # imported here, with Matplotlib

        if read_scalars(runner.work_dir):  # empty if the run is shorter than the log interval
            runner.logger.info(f"curves: {draw_curves([runner.work_dir], WorkFolder(runner.work_dir).curves)}")
