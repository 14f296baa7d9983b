"""Training of backbones before dense work: classification with distillation, and masked images. Needs mmengine."""

from vitdense.pretraining.classifier import Classifier
from vitdense.pretraining.masked import MaskedImageModel

__all__ = ["Classifier", "MaskedImageModel"]
