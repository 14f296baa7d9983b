"""Operating points: the minimum scores of a detector that meet a wish on the validation data."""

from vitdense.seams import Extension

EXTENSION = Extension(
    options={
        "test": "vitdense.extensions.operating_point.option",
        "load": "vitdense.extensions.operating_point.point",
    },
    registers={"mmengine": "vitdense.extensions.operating_point.hook"},
)
