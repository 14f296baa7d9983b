"""Mask transformers on plain ViTs: EoMT and PMT."""
