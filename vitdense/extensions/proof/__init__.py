"""Proofs: a file beside an exported program, by which ``vitdense verify`` tells whether an engine computes the same."""

from vitdense.seams import Extension

EXTENSION = Extension(
    commands={"verify": "whether an exported model computes here what it did where it was trained"},
    options={"export": "vitdense.extensions.proof.option"},
)
