"""Checkpoints as data: read a file, detect its naming scheme, rename, resize, check, load, convert."""
