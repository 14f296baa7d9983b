"""Importing this module registers the classes of `vitdense.research` with mm."""

from importlib.util import find_spec

from vitdense.mm.registry import MODELS
from vitdense.research.htcpp.global_block import GlobalBlock
from vitdense.research.non_local.attention import NonLocal, SAGANAttention
from vitdense.research.pretraining import Classifier, MaskedImageModel
from vitdense.research.pretraining.data import DrawMask, ImageFolder, TimmTransform, Top1

__all__ = ["Classifier", "DrawMask", "ImageFolder", "MaskedImageModel", "TimmTransform", "Top1"]

if find_spec("mmdet"):
    from vitdense.research.htcpp.roi_head import HTCRoIHead
    from vitdense.research.htcpp.tta import InstanceTTAModel
    from vitdense.research.reppoints_v2.bifpn import BiFPN
    from vitdense.research.reppoints_v2.head import RepPointsV2Head

    __all__ += ["BiFPN", "HTCRoIHead", "InstanceTTAModel", "RepPointsV2Head"]
    MODELS.register_module(module=BiFPN)

# Plugin layers for mm's ResNets, and a neck.
for _module in (NonLocal, SAGANAttention, GlobalBlock):
    MODELS.register_module(module=_module)
