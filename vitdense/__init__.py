"""Vision-transformer backbones for dense prediction; importing it makes `mmcv.ops` importable without a compiler."""

from vitdense.ops.finder import install as _install_ops

__version__ = "0.1.0"

_install_ops()
