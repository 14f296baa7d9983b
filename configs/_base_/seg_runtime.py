"""Runtime of segmentation configs, whose schedules count iterations."""

_base_ = "runtime.py"

default_scope = "mmseg"
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=4000, save_best="mIoU"),
    visualization=dict(type="SegVisualizationHook"),  # draws nothing but with mmseg's test.py --show-dir
)
visualizer = dict(type="SegLocalVisualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer")
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
tta_model = dict(type="SegTTAModel")  # for vitdense test --tta, with the tta_pipeline of the data set
