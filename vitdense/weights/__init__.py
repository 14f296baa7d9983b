"""Checkpoints as data: read, detect the naming scheme, rename, check, load."""
