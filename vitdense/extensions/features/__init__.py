"""A frozen trunk runs once for every image and view: ``train --cache-features``."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={"train": "vitdense.extensions.features.options"},
    registers={"mmengine": "vitdense.extensions.features.hook"},
)
