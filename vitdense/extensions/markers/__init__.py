"""Whether boxes, masks and label maps follow what the steps of a training pipeline make of images."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"check": "vitdense.extensions.markers.options"})
