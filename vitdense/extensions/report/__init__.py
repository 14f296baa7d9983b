"""`vitdense check --report`, a page of faults with pictures; `--pictures`, a batch as the model will see it."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"check": "vitdense.extensions.report.options"})
