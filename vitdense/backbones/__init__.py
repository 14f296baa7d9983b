"""Backbones for dense prediction, registered under the scope ``vitdense``."""

from vitdense.backbones.base import Backbone
from vitdense.backbones.swin import Swin

__all__ = ["Backbone", "Swin"]
