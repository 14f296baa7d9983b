"""Oriented boxes: RF-DETR's head for them, data, metric; and mmcv's ops for them in plain torch."""

from vitdense.seams import Extension

_HERE = "vitdense.extensions.oriented"
_OPS = (
    *("box_iou_rotated", "box_iou_quadri", "nms_rotated", "nms_quadri"),
    *("roi_align_rotated_forward", "roi_align_rotated_backward", "diff_iou_rotated_sort_vertices_forward"),
    *("min_area_polygons", "points_in_polygons_forward"),
)
EXTENSION = Extension(
    options={"new detection": f"{_HERE}.new", "report": f"{_HERE}.metric"},
    registers={"mmdet": f"{_HERE}.registered"},
    kinds={"vitdense.OrientedDataset": f"{_HERE}.kind"},
    schemes={"rfdetr_oriented": f"{_HERE}.checkpoint"},
    ops=dict.fromkeys(_OPS, f"{_HERE}.stand_in"),
)
