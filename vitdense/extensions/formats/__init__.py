"""Annotations in other formats than COCO's: `vitdense new detection --yolo`, `--voc`."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"new detection": "vitdense.extensions.formats.options"})
