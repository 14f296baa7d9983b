"""Operating points: minimum scores of a detector for a wanted precision, recall or F1 on validation data."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={
        "test": "vitdense.extensions.operating_point.option",
        "load": "vitdense.extensions.operating_point.point",
    },
)
