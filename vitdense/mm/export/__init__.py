"""Detectors and segmentors of mm as programs: images in, boxes or classes out, of fixed numbers."""
