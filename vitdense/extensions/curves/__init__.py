"""Curves of trainings: a picture at the end of each, and ``vitdense plot`` to compare some."""

from vitdense.seams import Extension

EXTENSION = Extension(
    commands={"plot": ("train", "draw the curves of training runs")},
    options={"train": "vitdense.extensions.curves.options"},
    registers={"mmengine": "vitdense.extensions.curves.hook"},
)
