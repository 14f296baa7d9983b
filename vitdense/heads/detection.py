"""All heads for mmdet: importing this module registers them."""

from vitdense.heads.cascade import Detectron2CascadeRoIHead
from vitdense.heads.htc import HTCRoIHead
from vitdense.heads.losses import ClampedFocalLoss
from vitdense.heads.reppoints_v2 import RepPointsV2Head
from vitdense.heads.tta import InstanceTTAModel

__all__ = ["ClampedFocalLoss", "Detectron2CascadeRoIHead", "HTCRoIHead", "InstanceTTAModel", "RepPointsV2Head"]
