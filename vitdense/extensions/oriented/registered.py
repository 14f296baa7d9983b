"""Importing this module registers the classes for oriented boxes with mmdet."""

from vitdense.extensions.oriented import data, drawn, head, metric, steps, visualizer  # noqa: F401
