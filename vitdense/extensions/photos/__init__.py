"""Programs that take photos: their resize and normalisation inside an ONNX file."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"export": "vitdense.extensions.photos.options"})
