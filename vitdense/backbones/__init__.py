"""Backbones for dense prediction, registered under the scope ``vitdense``."""

from vitdense.backbones.base import Backbone
from vitdense.backbones.mvit import MViT
from vitdense.backbones.swin import Swin
from vitdense.backbones.swin_v2 import SwinV2
from vitdense.backbones.vit import ViT

__all__ = ["Backbone", "MViT", "Swin", "SwinV2", "ViT"]
