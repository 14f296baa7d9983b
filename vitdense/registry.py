"""The registries of the scope ``vitdense``, children of mmengine's root, and what is registered in them.

``type='vitdense.Swin'`` makes mmengine import this module, then the `locations` below, from the mmdet and from the
mmseg scope alike. A location that needs mmdet or mmseg is listed only where that is installed, so that a user of one
need not own the other.
"""

import logging
from importlib.util import find_spec

from mmengine import registry as root
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import MMLogger
from mmengine.model import initialize
from mmengine.registry import Registry
from timm.layers import LayerNorm2d

from vitdense import backbones
from vitdense.backbones.variants import FAMILIES
from vitdense.layers.non_local import NonLocal, SAGANAttention
from vitdense.module import Module
from vitdense.necks import BiFPN, DeconvPyramid, GlobalBlock


def _child(parent: Registry, **locations: str) -> Registry:
    """A registry of scope vitdense, filled on first use by importing each module whose needed package is installed.

    Args:
        parent: mmengine's registry of the same kind.
        **locations: Package that is needed = module to import, relative to vitdense.
    """
    here = [f"vitdense.{module}" for needs, module in locations.items() if find_spec(needs)]
    return Registry(parent.name, parent=parent, scope="vitdense", locations=here)


MODULE2PACKAGE["vitdense"] = "vitdense"  # of our configs: `_base_ = "vitdense::configs/NAME.py"`

MODELS = _child(root.MODELS, mmdet="heads.detection", mmseg="heads.linear", mmengine="pretraining")
DATASETS = _child(root.DATASETS, mmdet="datasets.shapes_det", mmseg="datasets.shapes_seg", mmengine="pretraining.data")
DATA_SAMPLERS = _child(root.DATA_SAMPLERS, mmengine="engine.seeded")
TRANSFORMS = _child(root.TRANSFORMS, mmcv="engine.transforms", mmengine="pretraining.data")
METRICS = _child(root.METRICS, mmdet="engine.metrics", mmengine="pretraining.data")
HOOKS = _child(root.HOOKS, mmengine="engine.hooks")
VISBACKENDS = _child(root.VISBACKENDS, mmengine="engine.wandb_backend")
OPTIM_WRAPPER_CONSTRUCTORS = _child(root.OPTIM_WRAPPER_CONSTRUCTORS, mmengine="engine.optim")

for _module in (*(getattr(backbones, name) for name in FAMILIES), BiFPN, DeconvPyramid, GlobalBlock):
    MODELS.register_module(module=_module)
# Plugin layers for mm's ResNets.
for _module in (NonLocal, SAGANAttention):
    MODELS.register_module(module=_module)
# LayerNorm over the channels of every pixel of a map [B, C, H, W]: ViTDet's norm in box and mask heads.
MODELS.register_module(name="LN2d", module=LayerNorm2d)


class _ToCurrentLogger(logging.Handler):
    """Repeats records in mmengine's current logger, so that the log of a run says what the backbones loaded."""

    def emit(self, record: logging.LogRecord) -> None:
        MMLogger.get_current_instance().log(record.levelno, record.getMessage())


# Trunks and necks know nothing of mmengine: its initialisers and its log reach them from here.
Module.initialize = staticmethod(initialize)
logging.getLogger("vitdense.backbones").setLevel(logging.INFO)
logging.getLogger("vitdense.backbones").addHandler(_ToCurrentLogger())
