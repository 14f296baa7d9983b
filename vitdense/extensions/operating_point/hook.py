"""The hook that lets a COCO metric keep its evaluation."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import HOOKS


@HOOKS.register_module()
class KeepMatchesHook(Hook):
    """Lets the COCO metric of a test keep its evaluation."""

    def before_test(self, runner: Runner) -> None:
        metric_of(runner).evaluations = []


def metric_of(runner: Runner) -> object:
    metrics = runner.test_evaluator.metrics
    found = next((one for one in metrics if hasattr(one, "evaluations")), None)
    if found is None:
        names = ", ".join(type(one).__name__ for one in metrics)
        raise ConfigError(f"--operating-point: got the metrics {names}, expected a COCO metric of a detector")
    return found
