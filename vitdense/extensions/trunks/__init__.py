"""Trunks of timm and transformers as backbones, named ``timm://NAME`` and ``hf://OWNER/REPO``."""

from vitdense.seams import Extension

EXTENSION = Extension(backbones={"TimmTrunk": "timm://", "TransformersTrunk": "hf://"})
