"""Stand-in for the compiled ops of mmcv that detectors and segmentors call, on torchvision.ops and plain torch.

Importing this package needs the standard library only. `finder` makes `mmcv._ext` importable; `table` lists the ops.

Every op has the name, the argument names and the in-place results of the op in mmcv's compiled extension (onedl-mmcv
2.3.6, `mmcv/ops/csrc/pytorch/pybind.cpp`). mmcv also passes arguments for the buffers of the compiled kernels
(`columns`, `ones`, `im2col_step`); they are ignored here. The ops run on the CPU and on CUDA, except `softnms`: as the
compiled op, it takes tensors on the CPU, to which `mmcv.ops.soft_nms` copies them. They compute half types in float32
and cast back, which is more exact than the compiled kernels.

The stand-in has the ops that configs of mmdet and mmseg on COCO, LVIS, ADE20K or Cityscapes use, except CARAFE,
PSANet, guided anchoring (masked convolution), deformable RoI pooling and mmcv's own SyncBN. Extensions add others. The
rest raise `OpNotAvailableError` when they are called.
"""

from vitdense.ops.finder import OpsInUse, install, ops_in_use
from vitdense.ops.table import BUILD_COMMAND, OpNotAvailableError

__all__ = ["BUILD_COMMAND", "OpNotAvailableError", "OpsInUse", "install", "ops_in_use"]
