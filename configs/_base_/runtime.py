"""Runtime shared by detection and segmentation: logging with ETA, checkpoints, reproducible runs."""

# Makes mmcv usable without a compiler and `vitdense.*` types known, before anything else is imported.
custom_imports = dict(imports=["vitdense", "vitdense.mm"], allow_failed_imports=False)

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    # TensorBoard then has metrics and losses over the same iterations.
    logger=dict(type="LoggerHook", interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    # Written to a temporary name and renamed; at least two are kept, so that a kill never leaves none.
    checkpoint=dict(type="CheckpointHook", interval=1, max_keep_ckpts=3, backend_args=dict(backend="vitdense.atomic")),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    # Here and not in custom_hooks, so that a config that sets custom_hooks keeps them.
    reproducible=dict(type="vitdense.ReproducibleHook"),
    exact_load=dict(type="vitdense.ExactLoadHook"),
    guard=dict(type="vitdense.GuardModelHook"),
)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),
)
log_processor = dict(type="LogProcessor", window_size=50, by_epoch=True)
log_level = "INFO"
load_from = None
resume = False
