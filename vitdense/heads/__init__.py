"""Heads for mmdet, registered under the scope ``vitdense``; needs mmdet."""

from vitdense.heads.cascade import Detectron2CascadeRoIHead

__all__ = ["Detectron2CascadeRoIHead"]
