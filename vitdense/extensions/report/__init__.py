"""`vitdense check --report`: a page of faults with pictures."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"check": "vitdense.extensions.report.options"})
