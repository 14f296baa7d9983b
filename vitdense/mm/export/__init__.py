"""Detectors and segmentors of mm as programs: images in, a fixed number of boxes or classes out."""

FORMATS = ("pt2", "onnx")
INT8_BOUND = 0.1  # most lost and new objects in int8, as a share; for a segmentor, most pixels with another class
