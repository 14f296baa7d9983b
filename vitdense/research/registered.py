"""What mm builds of this floor: importing this module registers it."""

from vitdense.mm.registry import MODELS
from vitdense.research.non_local.attention import NonLocal, SAGANAttention
from vitdense.research.pretraining import Classifier, MaskedImageModel
from vitdense.research.pretraining.data import DrawMask, ImageFolder, TimmTransform, Top1

__all__ = ["Classifier", "DrawMask", "ImageFolder", "MaskedImageModel", "TimmTransform", "Top1"]

# Plugin layers for mm's ResNets.
for _module in (NonLocal, SAGANAttention):
    MODELS.register_module(module=_module)
