"""Proofs: a file beside an exported program, with which ``vitdense verify`` checks what an engine computes."""

from vitdense.seams import Extension

EXTENSION = Extension(
    commands={"verify": ("use", "whether an exported model computes here what it did where it was trained")},
    options={"export": "vitdense.extensions.proof.option"},
)
