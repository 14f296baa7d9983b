"""Registries of the scope ``vitdense``, children of mmengine's root.

``type='vitdense.Swin'`` makes mmengine import this module and then the `locations` below, from the mmdet and the
mmseg scope alike. Only mmengine is imported here; a location that needs mmdet or mmseg is listed when that is
installed, so that a user of one need not own the other.
"""

from importlib.util import find_spec

from mmengine.registry import DATA_SAMPLERS as ROOT_DATA_SAMPLERS
from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import HOOKS as ROOT_HOOKS
from mmengine.registry import METRICS as ROOT_METRICS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as ROOT_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import TRANSFORMS as ROOT_TRANSFORMS
from mmengine.registry import Registry


def _child(parent: Registry, **locations: str | tuple[str, ...]) -> Registry:
    """A registry of scope vitdense, filled on first use by importing each module whose needed package is installed.

    Args:
        parent: mmengine's registry of the same kind.
        **locations: Package that is needed = module or modules to import, relative to vitdense.
    """
    modules = {needs: (names,) if isinstance(names, str) else names for needs, names in locations.items()}
    here = [f"vitdense.{name}" for needs, names in modules.items() if find_spec(needs) for name in names]
    return Registry(parent.name, parent=parent, scope="vitdense", locations=here)


MODELS = _child(ROOT_MODELS, mmengine=("backbones", "necks"), mmdet="heads")
DATASETS = _child(ROOT_DATASETS, mmdet="datasets.shapes_det", mmseg="datasets.shapes_seg")
DATA_SAMPLERS = _child(ROOT_DATA_SAMPLERS, mmcv="engine.seeded")
TRANSFORMS = _child(ROOT_TRANSFORMS, mmcv="engine.seeded")
METRICS = _child(ROOT_METRICS, mmdet="engine.metrics")
HOOKS = _child(ROOT_HOOKS, mmengine="engine.hooks")
OPTIM_WRAPPER_CONSTRUCTORS = _child(ROOT_OPTIM_WRAPPER_CONSTRUCTORS, mmengine="engine.optim")
