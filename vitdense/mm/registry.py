"""The registries of the scope ``vitdense``, children of mmengine's root, and what is registered in them.

``type='vitdense.Swin'`` makes mmengine import this module, then the `locations` below, from the mmdet and the mmseg
scope alike. One that needs mmdet or mmseg is listed only where that is installed: a user of one need not own the other.
"""

import logging
from importlib.util import find_spec

from mmengine import registry as root
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import MMLogger
from mmengine.model import initialize
from mmengine.registry import Registry
from timm.layers import LayerNorm2d

import vitdense.mm.checkpoints  # noqa: F401  registers the file backend vitdense.atomic
from vitdense.families import FLOORS, FOLDERS, backbone_class
from vitdense.models.vit.tokens import JointViT, TokenViT
from vitdense.models.vit.windowed import WindowedViT
from vitdense.module import Module
from vitdense.necks import DeconvPyramid
from vitdense.seams import registering


def _child(parent: Registry, **locations: str) -> Registry:
    """A registry of scope vitdense, filled on first use by importing each module, relative to vitdense.mm, whose needed
    package is installed: ``package="module"``."""
    here = [f"vitdense.mm.{module}" for needs, module in locations.items() if find_spec(needs)]
    here += ["vitdense.research.registered"] if "research" in FLOORS else []
    here += registering()
    return Registry(parent.name, parent=parent, scope="vitdense", locations=here)


# `_base_ = "mmseg::FOLDER/NAME.py"` in a config: mmengine asks for the distribution, which onedl and upstream
# name differently; by the name of the package it finds both.
MODULE2PACKAGE.update(vitdense="vitdense", mmseg="mmseg")

MODELS = _child(root.MODELS, mmdet="heads.detection", mmseg="heads.segmentation")
DATASETS = _child(root.DATASETS, mmdet="data.detection", mmseg="data.segmentation")
DATA_SAMPLERS = _child(root.DATA_SAMPLERS, mmengine="data.seeded")
TRANSFORMS = _child(root.TRANSFORMS, mmcv="data.transforms", mmdet="data.detection", mmseg="data.segmentation")
METRICS = _child(root.METRICS, mmdet="train.metrics")
HOOKS = _child(root.HOOKS, mmengine="train.hooks")
PARAM_SCHEDULERS = _child(root.PARAM_SCHEDULERS, mmengine="train.optim")
OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS, mmengine="train.optim")
OPTIM_WRAPPER_CONSTRUCTORS = _child(root.OPTIM_WRAPPER_CONSTRUCTORS, mmengine="train.optim")

for _module in (*map(backbone_class, FOLDERS), JointViT, TokenViT, WindowedViT, DeconvPyramid):
    MODELS.register_module(module=_module)
# LayerNorm over the channels of every pixel of a map [B, C, H, W]: ViTDet's norm in box and mask heads.
MODELS.register_module(name="LN2d", module=LayerNorm2d)


class _ToCurrentLogger(logging.Handler):
    """Repeats records in mmengine's current logger, so that the log of a run says what the backbones loaded."""

    def emit(self, record: logging.LogRecord) -> None:
        MMLogger.get_current_instance().log(record.levelno, record.getMessage())


# Trunks and necks know nothing of mmengine: its initialisers and its log reach them from here.
Module.initialize = staticmethod(initialize)
logging.getLogger("vitdense.models").setLevel(logging.INFO)
logging.getLogger("vitdense.models").addHandler(_ToCurrentLogger())
