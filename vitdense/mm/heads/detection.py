"""All heads for mmdet: importing this module registers them."""

from vitdense.mm.heads.cascade import Detectron2CascadeRoIHead
from vitdense.mm.heads.losses import ClampedFocalLoss
from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.projector import C2fProjector
from vitdense.mm.heads.rfdetr.resize import BatchResize
from vitdense.mm.heads.rle_masks import RLEHTCMaskHead, RLEMaskFormerFusionHead, RLEMaskHead
from vitdense.mm.heads.tiled import TiledDetector
from vitdense.mm.heads.tta import InstanceTTAModel

__all__ = [
    "BatchResize",
    "C2fProjector",
    "ClampedFocalLoss",
    "Detectron2CascadeRoIHead",
    "EoMTHead",
    "InstanceTTAModel",
    "PMTHead",
    "RFDETRHead",
    "RLEHTCMaskHead",
    "RLEMaskFormerFusionHead",
    "RLEMaskHead",
    "TiledDetector",
]
