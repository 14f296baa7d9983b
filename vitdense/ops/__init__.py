"""The ops of mmcv that detectors and segmentors call, without a compiler: torchvision.ops and plain torch.

Importing this package needs the standard library only. `finder` makes `mmcv._ext` importable; `table` has the ops.

Every op has the name, argument names and in-place results of its namesake in mmcv's compiled extension (onedl-mmcv
2.3.6, `mmcv/ops/csrc/pytorch/pybind.cpp`), so `mmcv.ops` works on either. Arguments that only size the buffers of the
compiled kernels (`columns`, `ones`, `im2col_step`) are accepted because mmcv passes them; nothing here needs them. All
ops run on the CPU and on CUDA. Half types are computed in float32 and cast back, which is more exact than the compiled
kernels.

Covered are the ops that a config of mmdet or mmseg on COCO, LVIS, ADE20K or Cityscapes uses, except those of CARAFE,
PSANet, guided anchoring (masked convolution), deformable RoI pooling and mmcv's own SyncBN. An op that is not covered
raises `OpNotAvailableError` when it is called.
"""

from vitdense.ops.finder import BUILD_COMMAND, OpNotAvailableError, OpsInUse, install, ops_in_use

__all__ = ["BUILD_COMMAND", "OpNotAvailableError", "OpsInUse", "install", "ops_in_use"]
