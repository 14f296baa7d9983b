"""`vitdense test --report`: where a model fails, and which labels look wrong, on one page with pictures."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"test": "vitdense.extensions.errors.options"})
