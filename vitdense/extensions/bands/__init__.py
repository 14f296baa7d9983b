"""Images of any number of bands, of 8, 16 or 32 bits, from TIFF files and NumPy arrays."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={
        "images": "vitdense.extensions.bands.images",
        "new": "vitdense.extensions.bands.new",
        "predict": "vitdense.extensions.bands.shown",
    },
    registers={
        "mmcv": "vitdense.extensions.bands.step",
        "mmdet": "vitdense.extensions.bands.detectors",
        "mmseg": "vitdense.extensions.bands.segmentors",
    },
)
