"""Ops of mmcv that the core has no stand-in for. Imports the standard library only."""

from importlib import import_module

from vitdense.seams import merged

# setup.py of onedl-mmcv compiles only if it can import torch, hence no build isolation. A cached wheel may be the
# pure-Python one. FORCE_CUDA is needed if no GPU is visible during the build.
BUILD_COMMAND = (
    "FORCE_CUDA=1 pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation "
    "--no-binary onedl-mmcv onedl-mmcv"
)


class OpNotAvailableError(NotImplementedError):
    """The called op of mmcv is in its compiled extension only."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"mmcv op {name!r} needs the compiled extension of mmcv; vitdense has no stand-in for it. With a C++ "
            f"compiler and the CUDA toolkit that torch was built with, run: {BUILD_COMMAND}  "
            "(without CUDA leave out FORCE_CUDA=1)"
        )


def missing_op(name: str):
    """`__getattr__` of the stand-in's module. mmcv looks up all ops on import: an extension's is imported by a call."""
    if name.startswith("__"):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def call(*args, **kwargs):
        if name not in (ops := merged("ops")):
            raise OpNotAvailableError(name)
        return getattr(import_module(ops[name]), name)(*args, **kwargs)

    return call
