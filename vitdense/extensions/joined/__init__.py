"""Several trained models on one trunk, whose blocks run once for all of them."""

from vitdense.seams import Extension

EXTENSION = Extension(
    names={"join": "vitdense.extensions.joined.model"},
    options=dict.fromkeys(("export", "predict"), "vitdense.extensions.joined.option"),
)
