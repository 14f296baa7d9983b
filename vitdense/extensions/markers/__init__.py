"""A check whether boxes, masks and label maps move with the image in every step of a training pipeline."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"check": "vitdense.extensions.markers.options"})
