"""Importing this module registers the classes for keypoints with mmdet."""

from vitdense.extensions.keypoints import data, head, metric, steps  # noqa: F401
