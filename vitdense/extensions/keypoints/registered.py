"""Importing this module registers what keypoints add to mmdet."""

from vitdense.extensions.keypoints import data, head, metric, steps  # noqa: F401
