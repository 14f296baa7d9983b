"""Detectors and segmentors of mm as programs: images in, boxes or classes out, of fixed numbers."""

FORMATS = ("pt2", "onnx")
INT8_BOUND = 0.1  # lost and new objects of int8, as a share of the model's; of a segmentor, pixels of another class
