"""Annotations in other formats than COCO's: `vitdense new detection --yolo`, `--voc`; checks of mmdet's XMLDataset."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={"new detection": "vitdense.extensions.formats.options"},
    kinds={"vitdense.XMLDataset": "vitdense.extensions.formats.kind"},
)
