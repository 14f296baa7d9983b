"""`vitdense swap` and ``new --backbone``: another backbone in a config of mmdet, mmseg or this package."""

from vitdense.seams import Extension

EXTENSION = Extension(
    commands={"swap": ("prepare", "another backbone in a config you already have")},
    options={"new": "vitdense.extensions.swap.options"},
)
