"""Keypoints of objects: RF-DETR's head for them, data, metric, checks."""

from vitdense.seams import Extension

_HERE = "vitdense.extensions.keypoints"
EXTENSION = Extension(
    options={"new detection": f"{_HERE}.new"},
    registers={"mmdet": f"{_HERE}.registered"},
    kinds={"vitdense.KeypointDataset": f"{_HERE}.kind"},
    loaders=("LoadKeypoints",),
    schemes=dict.fromkeys(("rfdetr_keypoints", "rfdetr_keypoints_projector"), f"{_HERE}.checkpoint"),
)
