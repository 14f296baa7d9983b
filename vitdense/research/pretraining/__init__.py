"""Training of backbones before dense work: classification with distillation, and masked images. Needs mmengine."""

from vitdense.research.pretraining.classifier import Classifier
from vitdense.research.pretraining.masked import MaskedImageModel

__all__ = ["Classifier", "MaskedImageModel"]
