"""Heads for mmdet, registered under the scope ``vitdense``; needs mmdet."""

from vitdense.heads.cascade import Detectron2CascadeRoIHead
from vitdense.heads.reppoints_v2 import RepPointsV2Head

__all__ = ["Detectron2CascadeRoIHead", "RepPointsV2Head"]
