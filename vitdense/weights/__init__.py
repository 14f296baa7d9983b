"""Checkpoints as data: find and read them, detect their naming scheme, rename, resize, check, load, convert."""
