"""All heads for mmdet: importing this module registers them."""

from vitdense.mm.heads.cascade import Detectron2CascadeRoIHead
from vitdense.mm.heads.htc.roi_head import HTCRoIHead
from vitdense.mm.heads.losses import ClampedFocalLoss
from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead
from vitdense.mm.heads.reppoints_v2.bifpn import BiFPN
from vitdense.mm.heads.reppoints_v2.head import RepPointsV2Head
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.projector import C2fProjector
from vitdense.mm.heads.rfdetr.resize import BatchResize
from vitdense.mm.heads.rle_masks import RLEHTCMaskHead, RLEMaskFormerFusionHead, RLEMaskHead
from vitdense.mm.heads.tiled import TiledDetector
from vitdense.mm.heads.tta import InstanceTTAModel
from vitdense.mm.registry import MODELS

__all__ = [
    "BatchResize",
    "BiFPN",
    "C2fProjector",
    "ClampedFocalLoss",
    "Detectron2CascadeRoIHead",
    "EoMTHead",
    "HTCRoIHead",
    "InstanceTTAModel",
    "PMTHead",
    "RFDETRHead",
    "RLEHTCMaskHead",
    "RLEMaskFormerFusionHead",
    "RLEMaskHead",
    "RepPointsV2Head",
    "TiledDetector",
]

MODELS.register_module(module=BiFPN)
