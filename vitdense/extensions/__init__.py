"""Capabilities that the core is complete without, a folder each: see `vitdense.seams`.

Folders do not import each other; what several of them need is in a module beside them.
"""
