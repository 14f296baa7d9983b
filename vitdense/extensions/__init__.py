"""Capabilities that the core is complete without, a folder each: see `vitdense.seams`."""
