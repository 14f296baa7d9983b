"""The registries of the scope ``vitdense``, children of mmengine's root, and their content.

``type='vitdense.Swin'`` makes mmengine import this module, from the mmdet and the mmseg scope alike. Modules that need
mmdet or mmseg are imported only if that is installed.
"""

import logging
from importlib import import_module
from importlib.util import find_spec

from mmengine import registry as root
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import MMLogger
from mmengine.model import initialize
from mmengine.registry import DefaultScope, Registry

import vitdense.mm.checkpoints  # registers the file backend vitdense.atomic
from vitdense.families import FLOORS, FOLDERS
from vitdense.layers.blocks import LayerNorm2d
from vitdense.module import Module
from vitdense.seams import registering

RESEARCH = {"mmengine": "vitdense.research.registered"} if "research" in FLOORS else {}


class Lazy(Registry):
    """A registry of scope vitdense that imports modules until one has the requested name.

    Modules for the scope in use come first, so that a detector does without mmseg, and both do without timm.

    Args:
        parent: mmengine's registry of the same kind.
        public: Names of `vitdense` in this registry.
        **modules: Needed package -> module, relative to vitdense.mm, that registers classes.
    """

    def __init__(self, parent: Registry, public: tuple[str, ...] = (), **modules: str) -> None:
        own = {package: f"vitdense.mm.{module}" for package, module in modules.items()}
        everything = [*own.items(), *RESEARCH.items(), *registering()]
        self.public, self.modules = public, [pair for pair in everything if find_spec(pair[0])]
        locations = [module for _, module in self.modules]
        super().__init__(parent.name, parent=parent, scope="vitdense", locations=locations)

    def get(self, key: str) -> type | None:
        scope, name = self.split_scope_key(key)
        if scope in (None, self.scope):
            self._register(name)
            in_use = DefaultScope.get_current_instance()
            in_use = in_use and in_use.scope_name
            for _, module in sorted(self.modules, key=lambda pair: pair[0] != in_use):
                if name in self._module_dict:
                    return self._module_dict[name]
                import_module(module)
        return super().get(key)

    @property
    def module_dict(self) -> dict[str, type]:
        """Name -> class, for all imported classes and `public`."""
        for name in self.public:
            self._register(name)
        return super().module_dict

    def _register(self, name: str) -> None:
        if name in self.public and name not in self._module_dict:
            self.register_module(module=getattr(vitdense, name))


# `_base_ = "mmseg::FOLDER/NAME.py"` in a config: mmengine asks for the distribution, which onedl and upstream
# name differently; by the name of the package it finds both.
MODULE2PACKAGE.update(vitdense="vitdense", mmseg="mmseg")

TRUNKS = (*FOLDERS, "JointViT", "TokenViT", "WindowedViT", "DeconvPyramid")
MODELS = Lazy(root.MODELS, TRUNKS, mmdet="heads.detection", mmseg="heads.segmentation")
DATASETS = Lazy(root.DATASETS, mmdet="data.detection", mmseg="data.segmentation")
DATA_SAMPLERS = Lazy(root.DATA_SAMPLERS, mmengine="data.seeded")
TRANSFORMS = Lazy(root.TRANSFORMS, mmcv="data.transforms", mmdet="data.detection", mmseg="data.segmentation")
METRICS = Lazy(root.METRICS, mmdet="train.metrics")
HOOKS = Lazy(root.HOOKS, mmengine="train.hooks")
LOOPS, VISUALIZERS = Lazy(root.LOOPS), Lazy(root.VISUALIZERS)
PARAM_SCHEDULERS = Lazy(root.PARAM_SCHEDULERS, mmengine="train.optim")
OPTIM_WRAPPERS = Lazy(root.OPTIM_WRAPPERS, mmengine="train.optim")
OPTIM_WRAPPER_CONSTRUCTORS = Lazy(root.OPTIM_WRAPPER_CONSTRUCTORS, mmengine="train.optim")

# LayerNorm over the channels of every pixel of a map [B, C, H, W]: ViTDet's norm in box and mask heads.
MODELS.register_module(name="LN2d", module=LayerNorm2d)


class _ToCurrentLogger(logging.Handler):
    """Repeats records in mmengine's current logger, so that the log of a run has what the backbones loaded."""

    def emit(self, record: logging.LogRecord) -> None:
        MMLogger.get_current_instance().log(record.levelno, record.getMessage())


# Trunks and necks do not import mmengine: they get its initialisers and its log from here.
Module.initialize = staticmethod(initialize)
logging.getLogger("vitdense.models").setLevel(logging.INFO)
logging.getLogger("vitdense.models").addHandler(_ToCurrentLogger())
