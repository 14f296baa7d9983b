"""Training and validation of detectors in tiles: `vitdense new detection --tiles 640`."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={"new detection": "vitdense.extensions.tiles.new", "check": "vitdense.extensions.tiles.small"},
    registers={"mmcv": "vitdense.extensions.tiles.dataset", "mmdet": "vitdense.extensions.tiles.loops"},
)
