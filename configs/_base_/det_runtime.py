"""Runtime of detection configs."""

_base_ = "runtime.py"

default_scope = "mmdet"
default_hooks = dict(visualization=dict(type="DetVisualizationHook"))
visualizer = dict(type="DetLocalVisualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer")
