"""The ops of mmcv that have a stand-in; each is imported when it is called. Imports the standard library only."""

import sys
from importlib import import_module

from vitdense.seams import merged

# setup.py of onedl-mmcv compiles only if it can import torch, hence no build isolation. A cached wheel may be the
# pure-Python one. FORCE_CUDA is needed if no GPU is visible during the build.
BUILD_COMMAND = (
    "FORCE_CUDA=1 pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation "
    "--no-binary onedl-mmcv onedl-mmcv"
)


_BOXES = ("get_compiler_version", "get_compiling_cuda_version", "nms", "softnms", "nms_match")
_BOXES += ("roi_align_forward", "roi_align_backward", "sigmoid_focal_loss_forward", "sigmoid_focal_loss_backward")
_DEFORMABLE = ("deform_conv_forward", "deform_conv_backward_input", "deform_conv_backward_parameters")
_DEFORMABLE += ("modulated_deform_conv_forward", "modulated_deform_conv_backward")
_DEFORMABLE += ("ms_deform_attn_forward", "ms_deform_attn_backward")
# Op -> module.
OPS = {**dict.fromkeys(_BOXES, "vitdense.ops.stand_in"), **dict.fromkeys(_DEFORMABLE, "vitdense.ops.deformable")}


class OpNotAvailableError(NotImplementedError):
    """The called op of mmcv is in its compiled extension only."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"mmcv op {name!r} needs the compiled extension of mmcv; vitdense has no stand-in for it. With a C++ "
            f"compiler and the CUDA toolkit that torch was built with, run: {BUILD_COMMAND}  "
            "(without CUDA leave out FORCE_CUDA=1)"
        )


def find_op(name: str):
    """`__getattr__` of the stand-in's module. mmcv looks up all ops on import; one is imported when it is called."""
    if name.startswith("__"):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def call(*args, **kwargs):
        ops = OPS | merged("ops")
        if name not in ops:
            raise OpNotAvailableError(name)
        op = getattr(import_module(ops[name]), name)
        setattr(sys.modules["mmcv._ext"], name, op)  # found there from now on
        return op(*args, **kwargs)

    return call
