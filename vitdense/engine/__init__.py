"""Training, testing and prediction by mmengine: metrics, hooks, reproducible data order, preflight checks.

Importing this package registers the file backend ``vitdense.atomic`` and nothing else.
"""

from importlib.util import find_spec

from vitdense.ops.finder import INSTALL_MM

if find_spec("mmengine") is None:
    raise ModuleNotFoundError(
        f"the recipes, tools and commands need mmengine, mmcv and mmdet or mmseg; in a clone of vitdense: {INSTALL_MM}",
        name="mmengine",
    )
import vitdense.engine.checkpoints  # noqa: F401
